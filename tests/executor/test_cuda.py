"""The CUDA executor, emulated: the reference's greedy ids and logits, one bit pattern whatever the batch, its cache."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from gpu import device
from gpu.executor.cuda import CudaExecutor
from refimpl.blocks import FORMATS
from refimpl.contract import ContractError, UsageError
from refimpl.llm.block_writers import quantize
from refimpl.models.spec import AttentionSpec, ModelSpec, RopeSpec
from refimpl.models.tensor import Tensor, stack
from tests.executor.tiny_models import LLAMA, SPECS, decoder, random_tensors, reference

IDS = np.array([3, 1, 41, 5, 9])


def of_user_size(family: str, head_dim: int) -> ModelSpec:
    """Return a small model whose heads have the width of real ones."""
    return decoder(
        family=family, vocab_size=320, hidden_size=256, num_heads=256 // head_dim, num_kv_heads=128 // head_dim,
        head_dim=head_dim, size=512, max_positions=64, rope=RopeSpec(head_dim, theta=1e6),
        qk_norm="head" if family == "qwen3" else "none", tied_embeddings=family == "qwen3",
    )  # fmt: skip


def in_format(spec: ModelSpec, name: str) -> dict[str, Tensor]:
    """Return random weights, matrices in a format; scaled so that logits do not tie."""
    tensors = random_tensors(spec, seed=spec.head_dim, name=name)
    if name == "bfloat16":
        for key, tensor in tensors.items():
            if len(tensor.shape) == 2:
                tensors[key] = Tensor(name, tensor.shape, tensor.data.astype(ml_dtypes.bfloat16))
    return tensors


def greedy(executor: CudaExecutor, ids: list[int], count: int) -> list[int]:
    sequence, output = executor.new_sequence(len(ids) + count), list[int]()
    for _ in range(count):
        (logits,) = executor.step([(sequence, output[-1:] or ids)])
        output.append(int(logits.argmax()))
    executor.free(sequence)
    return output


@pytest.mark.parametrize("name", ["float32", "bfloat16", "q8_0", "q4_1"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_ids_are_the_references(family: str, head_dim: int, name: str):
    spec = of_user_size(family, head_dim)
    tensors = in_format(spec, name)
    expected, ids = [], IDS.tolist()
    for _ in range(4):
        expected.append(int(reference(spec, tensors, np.array(ids + expected))[-1][-1].argmax()))
    assert greedy(CudaExecutor(spec, tensors, "emulated"), ids, 4) == expected


def in_sight(spec: ModelSpec) -> ModelSpec:
    """Return a model whose windows and chunks are shorter than IDS."""

    def near(mixer: AttentionSpec) -> AttentionSpec:
        return replace(mixer, window=mixer.window and min(mixer.window, 3), chunk=mixer.chunk and 3)

    layers = tuple(replace(layer, mixer=near(layer.mixer)) for layer in spec.layers)
    return replace(spec, layers=layers, max_positions=64)


def assert_as_the_reference(spec: ModelSpec, tensors: dict[str, Tensor], ids: np.ndarray) -> None:
    executor = CudaExecutor(spec, tensors, "emulated")
    results = [*executor.hidden_states(ids), executor.logits(ids)]
    for result, truth in zip(results, reference(spec, tensors, ids), strict=True):
        assert np.abs(result - truth).max() <= 2e-6 * np.abs(truth).max()


@pytest.mark.parametrize("name", SPECS)
def test_states_and_logits_are_the_references(name: str):
    spec = in_sight(SPECS[name])
    assert_as_the_reference(spec, random_tensors(spec), IDS)


@pytest.mark.parametrize("name", ["gpt_oss", "glm moe", "sandwiched moe"])
def test_many_tokens_are_sorted_by_expert(name: str):
    """Nine tokens are more than those that read their experts one by one; they have the same bits."""
    spec = in_sight(SPECS[name])
    spec, ids = replace(spec, layers=spec.layers[1:]), np.array([*IDS, 2, 6, 5, 35])
    tensors = random_tensors(spec)
    assert_as_the_reference(spec, tensors, ids)
    executor = CudaExecutor(spec, tensors, "emulated")
    whole, cut = executor.new_sequence(16), executor.new_sequence(16)
    executor.step([(cut, ids[:7])])
    assert np.array_equal(executor.step([(whole, ids)]), executor.step([(cut, ids[7:])]))


@pytest.mark.parametrize("name", ["bfloat16", "q8_0", "q6_k", "mxfp4"])
def test_experts_are_taken_as_they_are_stored(name: str):
    wide = FORMATS[name].elements if name in FORMATS else 32
    moe = {"num_experts": 4, "num_active": 2, "size": wide, "shared_size": wide, "biases": True}
    spec = decoder(moe, hidden_size=wide, head_dim=16, rope=RopeSpec(16), max_positions=32)
    tensors = random_tensors(spec)
    for key, tensor in tensors.items():
        if "experts.w_" in key:
            whole = tensor.read() / 4
            parts = [Tensor(name, part.shape, quantize(part, name)) for part in whole] if name in FORMATS else None
            tensors[key] = stack(parts) if parts else Tensor(name, tensor.shape, whole.astype(ml_dtypes.bfloat16))
    assert_as_the_reference(spec, tensors, IDS)


@pytest.mark.parametrize("name", ["gemma", "parallel", "glm moe", "qwen moe"])
def test_a_step_makes_no_buffers(name: str, monkeypatch: pytest.MonkeyPatch):
    spec = replace(SPECS[name], max_positions=64)
    executor = CudaExecutor(spec, random_tensors(spec), "emulated", capacity=64)
    sequence = executor.new_sequence()
    made, empty = [], device.empty
    monkeypatch.setattr(device, "empty", lambda *given: made.append(empty(*given)) or made[-1])
    executor.step([(sequence, [3])])
    assert [array.shape for array in made if array.size] == []


def test_a_sequence_does_not_depend_on_its_neighbours():
    spec = decoder({}, {"window": 5}, max_positions=64)
    executor = CudaExecutor(spec, random_tensors(spec), "emulated", capacity=256)
    alone = executor.new_sequence(20)
    (first,), (second,) = executor.step([(alone, IDS)]), executor.step([(alone, [7])])
    executor.free(alone)
    held = executor.new_sequence(40)
    executor.step([(held, np.arange(30))])  # the pages are others now
    again = executor.new_sequence(20)
    executor.step([(held, [1]), (again, IDS[:2])])
    results = executor.step([(again, IDS[2:]), (held, [2, 3])])
    assert np.array_equal(results[0], first)
    assert np.array_equal(executor.step([(held, [4]), (again, [7])])[1], second)


def test_cache_and_ids_are_guarded():
    spec = replace(LLAMA, max_positions=32)
    executor = CudaExecutor(spec, random_tensors(spec), "emulated", capacity=32)
    first, second = executor.new_sequence(), executor.new_sequence()
    executor.step([(first, IDS)])
    with pytest.raises(UsageError, match="2 blocks are needed, 1 of 2 are left"):
        executor.step([(second, np.arange(20))])
    with pytest.raises(UsageError, match="holds 32 tokens, it would have 35"):
        executor.step([(first, np.arange(30))])
    for ids in ([], [spec.vocab_size], [-1], [0.5]):
        with pytest.raises(ContractError, match="C"):
            executor.step([(first, ids)])
    executor.free(first)
    executor.free(first)
    with pytest.raises(ContractError, match="C1"):
        executor.step([(first, [1])])
    with pytest.raises(UsageError, match="another executor"):
        CudaExecutor(spec, random_tensors(spec), "emulated", capacity=32).free(second)
