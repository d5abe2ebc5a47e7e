"""Every kernel of mixtures gives what the reference gives, and a token the same bits in every way and any company."""

import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from gpu import device
from gpu.grid import blocks_for
from gpu.llm import experts as maps
from gpu.llm import moe as twins
from gpu.llm.block_kernels import WARPS, linear_blocks_kernel
from gpu.llm.router import softmax_top_k
from refimpl.blocks import FORMATS
from refimpl.contract import ContractError
from refimpl.llm.quantize import dequantize
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, reference, seeds
from tests.equivalence.test_quantize import of_a_format, outputs, random_blocks
from tests.laws.test_moe import BROKEN

counts = st.sampled_from((0, 1, 2, 9, 33))
routings = st.sampled_from(((1, 1), (2, 2), (5, 2), (7, 3), (40, 1)))  # E, A
widths = st.sampled_from((1, 8, 33))
inner = st.sampled_from((1, 17, 65))
activations = st.sampled_from(("gelu_tanh", "silu", "swiglu_clamped"))
limits = st.sampled_from((7.0, 1.5))


def stacks(seed, E, D, F, dtype, has_bias=False):
    shapes = {"w_gate": (E, F, D), "w_up": (E, F, D), "w_down": (E, D, F)}
    shapes |= {"b_gate": (E, F), "b_up": (E, F), "b_down": (E, D)} if has_bias else {}
    return {name: numbers(seed + i, *shape, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}


def routed(seed, T, E, A):
    """Draw distinct experts, of which the last few stay without tokens, and weights."""
    used = max(A, E - 2)
    ids = np.argsort(np.random.default_rng(seed).random((T, used)), axis=1)[:, :A]
    return {"ids": ids, "weights": np.abs(numbers(seed + 9, T, A))}


def wide(arguments):
    floats = {name for name, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype.kind not in "iu"}
    return {name: x.astype(np.float64) if name in floats else x for name, x in arguments.items()}


def amplified(x, w_gate, w_up, w_down, truth, weights=None):
    """Return the square of how much larger the parts of the sums of a row may be than its largest value."""
    size = np.linalg.norm(x, axis=1) * (1 if weights is None else np.maximum(1, np.abs(weights)).max(1, initial=1))
    gate, up, down = (np.linalg.norm(w, axis=-1).max(initial=0) for w in (w_gate, w_up, w_down))
    parts = (size * gate + 1) * (size * up + 1) * math.sqrt(w_up.shape[-2]) * down
    parts = parts * (1 if weights is None else np.abs(weights).sum(1))
    most = np.abs(truth).max(1, initial=0)
    return float(np.square(np.minimum(parts[most > 0] / most[most > 0], 1e3)).max(initial=1.0))


@each_kernel("moe", "grouped_moe", "indexed_moe")
@examples
@given(seeds, counts, routings, widths, inner, dtypes, activations, limits, st.booleans(), st.booleans())
def test_mixtures(kernel, seed, T, routing, D, F, dtype, activation, limit, has_bias, weight_inputs):
    arguments = {"x": numbers(seed, T, D, dtype=dtype), **routed(seed, T, *routing)}
    arguments |= stacks(seed + 1, routing[0], D, F, dtype, has_bias)
    settings = {"activation": activation, "limit": limit, "weight_inputs": weight_inputs}
    in_float64 = wide(arguments)
    truth = reference(kernel.op)(**in_float64, **settings)
    names = ("x", "w_gate", "w_up", "w_down")
    terms = 9 * amplified(*(in_float64[name] for name in names), truth, in_float64["weights"])
    verdict = judge(kernel.call(**arguments, **settings), truth, dtype, terms=round(terms))
    assert verdict.passed, verdict.reason


@examples
@given(seeds, counts, routings, widths, inner, dtypes, st.booleans())
def test_grouped_moe_and_indexed_moe_have_the_same_bits(seed, T, routing, D, F, dtype, weight_inputs):
    arguments = {"x": numbers(seed, T, D, dtype=dtype), **routed(seed, T, *routing), "weight_inputs": weight_inputs}
    arguments |= stacks(seed + 1, routing[0], D, F, dtype)
    together = twins.grouped_moe(**arguments)
    assert np.array_equal(twins.indexed_moe(**arguments), together)
    for t in {0, T // 2, T - 1} & set(range(T)):
        alone = arguments | {name: arguments[name][t : t + 1] for name in ("x", "ids", "weights")}
        assert np.array_equal(twins.moe(**alone)[0], together[t])


@given(seeds, st.sampled_from((1, 9, 20)), st.sampled_from(((2, 2), (5, 2), (7, 3))))
def test_what_neighbours_and_unchosen_experts_hold_changes_nothing(seed, T, routing):
    E, A = routing
    arguments = {"x": numbers(seed, T, 8), **routed(seed, T, E, A), **stacks(seed + 1, E, 8, 5, "float32")}
    whole, kept = twins.moe(**arguments), seed % T
    poisoned = {name: x.copy() for name, x in arguments.items()}
    poisoned["x"][np.arange(T) != kept] = np.nan
    for name in ("w_gate", "w_up", "w_down"):
        poisoned[name][~np.isin(np.arange(E), arguments["ids"][kept])] = np.inf
    for mixture in (twins.moe, twins.grouped_moe, twins.indexed_moe):
        assert np.array_equal(mixture(**poisoned)[kept], whole[kept])


@given(seeds, st.sampled_from((1, 9, 20)), st.sampled_from((2, 5, 33)))
def test_renamed_experts_give_the_same_bits(seed, T, E):
    x, logits, w = numbers(seed, T, 8), numbers(seed + 1, T, E), stacks(seed + 2, E, 8, 5, "float32")
    order = np.random.default_rng(seed).permutation(E)
    ids, weights = softmax_top_k(logits, 2)
    moved_ids, moved_weights = softmax_top_k(logits[:, order], 2)
    assert np.array_equal(order[moved_ids], ids) and np.allclose(moved_weights, weights, 1e-5)
    moved = {name: stack[order] for name, stack in w.items()}
    assert np.array_equal(twins.moe(x, moved_ids, weights, **moved), twins.moe(x, ids, weights, **w))


@each_kernel("expert_permutation")
@examples
@given(seeds, st.sampled_from((0, 1, 7, 128, 129, 300)), st.integers(1, 4), st.sampled_from((1, 2, 31, 257)))
def test_expert_permutation(kernel, seed, T, A, E):
    ids = np.random.default_rng(seed).integers(0, max(1, E - seed % 3), (T, A)).astype(np.int16)
    found, truth = kernel.call(ids, E), reference(kernel.op)(ids, E)
    assert all(x.dtype == np.int32 and np.array_equal(x, y) for x, y in zip(found, truth, strict=True))


@given(seeds, st.sampled_from((1, 100, 257)), st.integers(1, 9))
def test_the_permutation_knows_its_inverse(seed, T, E):
    ids = np.random.default_rng(seed).integers(0, E, (T, 2)).astype(np.int32)
    order, places, offsets = (device.empty(size, np.int32) for size in (2 * T, 2 * T, E + 1))
    maps.expert_permutation_into(order, offsets, ids, places)
    assert np.array_equal(order[places], np.arange(2 * T))


def reach(x, w, truth):
    """Return the square of how much larger the parts of sums are than the sums, in the row where that is most."""
    parts = np.linalg.norm(x, axis=1) * np.linalg.norm(w, axis=-1).max(initial=0)
    most = np.abs(truth).max(1, initial=0)
    return float(np.square(parts[most > 0] / most[most > 0]).max(initial=1.0))


@each_kernel("grouped_linear")
@examples
@given(seeds, st.lists(st.sampled_from((0, 1, 3, 16, 17)), min_size=1, max_size=5), inner, widths, dtypes, dtypes)
def test_grouped_linear(kernel, seed, groups, D, outputs, dtype, w_dtype):
    x = numbers(seed, sum(groups), D, dtype=dtype)
    w = numbers(seed + 1, len(groups), outputs, D, dtype=w_dtype)
    b = numbers(seed + 2, len(groups), outputs, dtype=w_dtype) if seed % 2 else None
    arguments = {"x": x, "w": w, "offsets": np.cumsum([0, *groups]), "b": b}
    in_float64 = wide(arguments)
    truth = reference(kernel.op)(**in_float64)
    terms = round((D + 1) * reach(in_float64["x"], in_float64["w"], truth))
    verdict = judge(kernel.call(**arguments), truth, dtype, terms=terms)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("name", FORMATS)
@of_a_format
@given(seeds, st.lists(st.sampled_from((0, 1, 3, 32, 33)), min_size=1, max_size=5), outputs, st.booleans())
def test_grouped_blocks_is_grouped_linear_of_the_weights(name, seed, groups, rows, has_bias):
    data = random_blocks(seed, len(groups) * rows, 2, name)
    w = dequantize(data, name).astype(np.float64).reshape(len(groups), rows, -1)
    x, b = numbers(seed, sum(groups), w.shape[-1]), numbers(seed + 1, len(groups), rows) if has_bias else None
    y, offsets = device.empty((len(x), rows), np.float32), np.cumsum([0, *groups], dtype=np.int32)
    maps.grouped_blocks_into(y, x, data.reshape(len(groups), rows, -1), name, offsets, b)
    truth = reference("grouped_linear")(x.astype(np.float64), w, offsets, b)
    verdict = judge(y, truth, "float32", terms=round((w.shape[-1] + 1) * reach(x.astype(np.float64), w, truth)))
    assert verdict.passed, verdict.reason
    alone = device.empty((1, rows), np.float32)
    for e, r in enumerate(offsets[:-1]):
        if groups[e]:
            linear_blocks_kernel_of(alone, x[r : r + 1], data.reshape(len(groups), rows, -1)[e], name, b, e)
            assert np.array_equal(alone[0], y[r])


def linear_blocks_kernel_of(y, x, blocks, name, b, e):
    """Launch the kernel that serves every format, of one expert."""
    b = np.zeros(0, np.float32) if b is None else b[e]
    made, words = linear_blocks_kernel(name), blocks.reshape(-1).view(np.uint16)
    device.launch(made, (blocks_for(y.shape[1], WARPS), 1), 32 * WARPS, y, x, words, b, y[:0])


@each_kernel("indexed_linear")
@examples
@given(seeds, counts, routings, inner, widths, dtypes, dtypes)
def test_indexed_linear(kernel, seed, T, routing, D, outputs, dtype, w_dtype):
    E, A = routing
    x, w = numbers(seed, T, D, dtype=dtype), numbers(seed + 1, E, outputs, D, dtype=w_dtype)
    b = numbers(seed + 2, E, outputs, dtype=w_dtype) if seed % 2 else None
    arguments = {"x": x, "w": w, "ids": routed(seed, T, E, A)["ids"], "b": b}
    in_float64 = wide(arguments)
    truth = reference(kernel.op)(**in_float64)
    rows = truth.reshape(-1, outputs)
    terms = round((D + 1) * reach(np.repeat(in_float64["x"], A, 0), in_float64["w"], rows))
    verdict = judge(kernel.call(**arguments), truth, dtype, terms=terms)
    assert verdict.passed, verdict.reason


@each_kernel("add_shared_expert")
@examples
@given(seeds, counts, widths, inner, dtypes, activations, st.booleans())
def test_add_shared_expert(kernel, seed, T, D, F, dtype, activation, has_share):
    one = {name: w[0] for name, w in stacks(seed + 2, 1, D, F, dtype).items()}
    arguments = {"y": numbers(seed, T, D, dtype=dtype), "x": numbers(seed + 1, T, D, dtype=dtype), **one}
    arguments |= {"w_share": numbers(seed + 7, 1, D, dtype=dtype)} if has_share else {}
    in_float64 = wide(arguments)
    truth = reference(kernel.op)(**in_float64, activation=activation)
    terms = 9 * amplified(*(in_float64[name] for name in ("x", "w_gate", "w_up", "w_down")), truth)
    verdict = judge(kernel.call(**arguments, activation=activation), truth, dtype, terms=round(terms))
    assert verdict.passed, verdict.reason


def test_nothing_gives_nothing_without_a_launch():
    w = stacks(1, 2, 3, 4, "float32")
    with device.recording() as launches:
        for mixture in (twins.moe, twins.grouped_moe, twins.indexed_moe):
            nobody = np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.float32)
            assert mixture(*nobody, **w).shape == (0, 3)
    assert launches == []


def twin_of(function):
    return getattr(importlib.import_module(function.__module__.replace("refimpl", "gpu", 1)), function.__name__)


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin_of(function)(*arguments, **keywords)


def test_float64_is_refused_by_name():
    w = {name: stack.astype(np.float64) for name, stack in stacks(1, 2, 3, 4, "float32").items()}
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        twins.moe(np.ones((2, 3)), np.zeros((2, 1), np.int64), np.ones((2, 1)), **w)
