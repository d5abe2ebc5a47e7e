"""Mixtures on the CPU executor: the router's rule, only the chosen experts read, what cannot be run refused."""

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.executor.cpu import CpuExecutor, memory_bytes
from gpu.executor.network_operations import mix_experts, route
from gpu.executor.router import ROUTERS
from refimpl import operations
from refimpl.contract import UsageError
from refimpl.llm.moe import moe
from refimpl.models.decoder import forward, new_caches
from refimpl.models.spec import MoeSpec
from refimpl.models.tensor import Tensor, stack
from tests.executor.tiny_models import (
    BLOCK_EXPERTS,
    SPECS,
    decoder,
    distance,
    random_tensors,
    reference,
    rounding_reference,
)  # fmt: skip

EPS = float(np.finfo(np.float32).eps)
MIXTURES = [name for name, spec in SPECS.items() if any(isinstance(layer.network, MoeSpec) for layer in spec.layers)]
SPECIAL = [0.0, 1.0, 1.0, -1.0, 1e-40, 200.0, -200.0, np.nan]


@pytest.fixture
def build():
    """Return a maker of executors that are closed at the end."""
    made = []

    def make(spec, tensors, **settings):
        made.append(CpuExecutor(spec, tensors, **{"threads": 2, "context": 256, **settings}))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@st.composite
def routed(draw):
    """Draw a router, logits with ties and NaN, and keywords."""
    name = draw(st.sampled_from(ROUTERS))
    groups, width = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    experts, tokens = groups * width, draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    logits = random.normal(size=(tokens, experts)).astype(np.float32)
    mask = random.random(logits.shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    logits[mask] = random.choice(SPECIAL, mask.sum())
    settings, most = {}, experts
    if name == "softmax_top_k":
        settings["renormalise"] = draw(st.booleans())
    if name == "sigmoid_group_top_k":
        top = draw(st.integers(1, groups))
        settings = {"groups": groups, "top_groups": top, "scale": 2.5, "renormalise": draw(st.booleans())}
        settings["bias"] = random.normal(size=experts).astype(np.float32) if draw(st.booleans()) else None
        most = top * width
    return name, logits, draw(st.integers(1, most)), settings


@given(routed())
def test_routers_choose_as_the_references(case):
    name, logits, k, settings = case
    ids, weights = route(name)(logits, k, **settings)
    expected, shares = getattr(operations, name)(logits, k, **settings)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(weights, shares, rtol=4e-7, atol=1e-37)


@given(data=st.data())
def test_a_mixture_is_the_references(data):
    tokens, experts = data.draw(st.integers(0, 40)), data.draw(st.integers(3, 9))
    active = data.draw(st.integers(1, 3))
    width, inner = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    random = np.random.default_rng(1)
    shapes = [(tokens, width), (experts, inner, width), (experts, inner, width), (experts, width, inner)]
    x, *stacks = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    ids, weights = random.integers(0, experts, (tokens, active)), random.random((tokens, active), np.float32)
    settings = {"activation": data.draw(st.sampled_from(["silu", "swiglu_clamped"]))}
    settings["weight_inputs"] = data.draw(st.booleans())
    ours = mix_experts(x, ids, weights, *stacks, **settings)
    wide = (each.astype(np.float64) for each in (x, weights, *stacks))
    truth = moe(next(wide), ids, *wide, **settings)
    assert np.abs(ours - truth).max(initial=0) <= 64 * EPS * np.abs(truth).max(initial=1)


def chosen(spec, tensors, ids):
    """Return the experts that the reference chooses for some tokens, mixture after mixture."""
    seen = []

    def spy(router):
        def call(*arguments, **settings):
            seen.append(router(*arguments, **settings))
            return seen[-1]

        return call

    ops = SimpleNamespace(**vars(operations) | {name: spy(getattr(operations, name)) for name in ROUTERS})
    weights = {key: tensor.read() for key, tensor in tensors.items()}
    forward(np.asarray(ids), weights, spec, new_caches(spec, len(ids)), ops)
    return [np.unique(experts) for experts, _ in seen]


@pytest.mark.parametrize("name", MIXTURES)
def test_only_the_chosen_experts_are_read(build, name):
    """The weights of all others are no numbers, and not a bit moves."""
    spec, tensors = SPECS[name], random_tensors(SPECS[name])
    used, poisoned = iter(chosen(spec, tensors, [7])), dict(tensors)
    for i, layer in enumerate(spec.layers):
        experts = next(used) if isinstance(layer.network, MoeSpec) else []
        for key in (f"layers.{i}.experts.w_{kind}" for kind in ("gate", "up", "down") if len(experts)):
            data = np.full_like(tensors[key].data, np.nan)
            data[experts] = tensors[key].data[experts]
            poisoned[key] = replace(tensors[key], source=data)
    clean, after = build(spec, tensors).hidden_states([7]), build(spec, poisoned).hidden_states([7])
    assert all(np.isfinite(x).all() and np.array_equal(x, y) for x, y in zip(after, clean, strict=True))


@pytest.mark.parametrize("name", ["q8_0", "q4_1", "mxfp4"])
def test_blocks_of_experts_stay_as_they_are(build, name):
    tensors, ids = random_tensors(BLOCK_EXPERTS, name=name), np.arange(40)
    executor, exact = build(BLOCK_EXPERTS, tensors), reference(BLOCK_EXPERTS, tensors, ids)[-1]
    assert distance(executor.logits(ids), exact) < 64 * EPS
    assert executor.weights.bytes < build(BLOCK_EXPERTS, tensors, dtype="float32").weights.bytes / 2


@pytest.mark.parametrize("name", ["q8_0", "q4_1", "mxfp4"])
def test_int8_activations_of_experts_are_the_references(build, name):
    tensors, ids = random_tensors(BLOCK_EXPERTS, name=name), np.arange(40)
    ours = build(BLOCK_EXPERTS, tensors, activations="int8").logits(ids)
    rounded = rounding_reference(BLOCK_EXPERTS, tensors, ids)
    assert distance(ours, rounded) < distance(ours, reference(BLOCK_EXPERTS, tensors, ids)[-1]) / 5


def test_experts_of_their_own_tensors_and_converted_ones(build):
    spec, ids = SPECS["gpt_oss"], np.arange(40)
    tensors = random_tensors(spec)
    apart = {
        key: stack([tensor.part(i) for i in range(len(tensor.data))]) if len(tensor.shape) == 3 else tensor
        for key, tensor in tensors.items()
    }
    assert np.array_equal(build(spec, apart).logits(ids), build(spec, tensors).logits(ids))
    rounded = {
        key: Tensor("float32", tensor.shape, tensor.data.astype(ml_dtypes.bfloat16).astype(np.float32))
        if len(tensor.shape) > 1 and ".b_" not in key else tensor
        for key, tensor in tensors.items()
    }  # fmt: skip
    assert np.array_equal(build(spec, tensors, dtype="bfloat16").logits(ids), build(spec, rounded).logits(ids))


@pytest.mark.parametrize("name", [*MIXTURES, "gemma", "olmo", "chunks"])
def test_a_request_leaves_no_trace(build, name):
    """The same prompt after others, in a batch of others, and from pages that others left, has the same bits."""
    executor = build(SPECS[name], random_tensors(SPECS[name]), capacity=512)
    random = np.random.default_rng(5)
    text, others = random.integers(0, 70, 45), [random.integers(0, 70, n) for n in (3, 90)]
    alone = executor.logits(text)
    for other in others:
        sequence = executor.new_sequence()
        executor.step([(sequence, other)])
        executor.free(sequence)
    sequences = [executor.new_sequence() for _ in range(3)]
    executor.step(list(zip(sequences[1:], others, strict=True)))
    assert np.array_equal(executor.step([(sequences[1], [3]), (sequences[0], text), (sequences[2], [1])])[1], alone[-1])
    executor.rewind(sequences[0], 20)
    rows = executor.step([(sequences[0], text[20:40])], [20])
    assert np.array_equal(rows, alone[20:40])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"router": "hash_route"}, "routers are softmax_top_k"), ({"num_active": 6}, "6 of 5 experts"),
        ({"routing": (("groups", 5),)}, "softmax_top_k does not take groups"), ({"correction": True}, "a correction"),
        ({"router": "sigmoid_group_top_k", "routing": (("groups", 2),)}, "of 2 groups"),
        ({"activation": "tanh"}, "activations are"), ({"window": 3, "chunk": 4}, "a window of 3 in chunks of 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_at_once(fields, words):
    spec = decoder(**{"num_experts": 5, "num_active": 2} | fields)
    with pytest.raises(UsageError, match=words):
        CpuExecutor(spec, random_tensors(spec), threads=1)


@pytest.mark.parametrize("name", [*MIXTURES, "llama", "gemma"])
def test_memory_is_what_is_held(build, name):
    spec = SPECS[name]
    tensors = random_tensors(spec)
    executor = build(spec, tensors, context=256, capacity=256)
    work = executor._work.memory
    held = executor.weights.bytes + executor.cache.memory.nbytes + sum(x.nbytes for key, x in work.items())
    said = memory_bytes(spec, tensors, 256)
    parts = sum(work[key].nbytes for key in ("parts", "ids", "shares", "places", "order", "group_table"))
    padding = executor.weights.bytes - sum(tensor.nbytes for tensor in tensors.values())
    assert held - parts - padding == said
