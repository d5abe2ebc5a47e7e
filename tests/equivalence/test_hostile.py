"""Arguments at the edges of what a signature allows: a twin gives what its operation gives, or refuses as it does."""

import numpy as np
import pytest

from gpu import device
from gpu.efficient.flash import merge_states
from gpu.registry import variants
from refimpl.contract import ContractError, UsageError
from tests.equivalence.strategies import numbers, reference

TWIN = {variant.op: variant.call for variant in variants() if variant.name == "numba"}
POOL, TABLES = (3, 4, 1, 4), {
    "block_tables": np.array([[0, 2], [1, -1]]), "context_lens": np.array([5, 4]), "cu_seqlens": np.array([0, 1, 2])}


def assert_same(op, arguments):
    given, wanted = TWIN[op](**arguments), reference(op)(**arguments)
    assert (given.shape, given.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(given, wanted, 1e-5, 1e-6)


def shifted(x):
    """Return the same numbers, one byte further on than kernels can read them."""
    place = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    place[...] = x
    return place


def heads(T, S, width, value_width):
    shapes = {"q": (T, 2, width), "k": (S, 1, width), "v": (S, 1, value_width)}
    return {name: numbers(len(name + str(shape)), *shape, dtype="float32") for name, shape in shapes.items()}


@pytest.mark.parametrize("window", [2**31, 2**40, 2**63, 2**64])
def test_window_beyond_every_integer(window):
    k_cache, v_cache = numbers(1, *POOL, dtype="float32"), numbers(2, *POOL, dtype="float32")
    assert_same("attention", heads(3, 5, 8, 8) | {"window": window})
    pages = {"q": numbers(3, 2, 2, 4, dtype="float32"), "k_cache": k_cache, "v_cache": v_cache} | TABLES
    assert_same("paged_attention", pages | {"window": window})
    in_halves = {name: x.astype(np.float16) for name, x in heads(3, 5, 64, 64).items()}
    tensor_cores = next(variant for variant in variants("attention") if variant.takes(**in_halves))
    np.testing.assert_array_equal(tensor_cores.call(**in_halves, window=window), tensor_cores.call(**in_halves))


@pytest.mark.parametrize("op", ["attention", "flash_attention"])
def test_values_without_columns(op):
    assert_same(op, heads(3, 5, 8, 0))


def test_bytes_at_an_odd_address():
    blocks = shifted(np.random.default_rng(1).integers(0, 60, (2, 34)).astype(np.uint8))
    assert_same("dequantize", {"blocks": blocks, "format": "q8_0"})
    assert_same("linear_int8", {"x": numbers(1, 1, 32, dtype="float32"), "blocks": blocks, "format": "q8_0"})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_at_an_odd_address(dtype):
    x = shifted(numbers(1, 2, 8, dtype=dtype))
    with device.use("emulated"):
        there = device.array(x)
    assert there.flags.aligned and np.array_equal(there, x)
    assert_same("relu", {"x": x})


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("number", [0.5, np.float32(1), "1"])
def test_uniform_of_no_integer(number):
    for uniform in (TWIN["uniform"], reference("uniform")):
        with pytest.raises(UsageError, match=r"^seed is a whole number, got "):
            uniform(number, 1, 1)


@pytest.mark.parametrize("penalty", [2**62, -(2**63), 2**63])
@pytest.mark.parametrize("op", ["frequency_penalty", "presence_penalty"])
def test_penalty_beyond_every_integer(op, penalty):
    arguments = {"logits": numbers(1, 4, dtype="float32"), "ids": np.array([1, 1, 1, 2]), "penalty": penalty}
    assert_same(op, arguments)
    assert reference(op)(**arguments)[1] == np.float32((-3.0 if op == "frequency_penalty" else -1.0) * penalty)


def test_log_sum_exps_of_float64_are_refused():
    o, lse = np.zeros((1, 1, 2), np.float32), np.zeros((1, 1))
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        merge_states(o, lse.astype(np.float32), o, lse)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_slots_of_unsigned_numbers(dtype):
    arguments = {"block_table": np.array([200, 3], dtype), "positions": np.array([250, 7], dtype), "block_size": 128}
    assert_same("slot_mapping", arguments)
    assert reference("slot_mapping")(**arguments).tolist() == [3 * 128 + 122, 200 * 128 + 7]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_ban_holds_whatever_the_logit(number):
    arguments = {"logits": np.array([number, 1.0], np.float32), "ids": np.array([1])}
    assert_same("bad_words", arguments | {"words": [[1, 0]]})
    assert_same("sequence_bias", arguments | {"biases": [([1, 0], -np.inf)]})
    assert reference("bad_words")(**arguments, words=[[1, 0]]).tolist() == [-np.inf, 1.0]


def test_noise_of_negative_zero_is_zero():
    arguments = {"probs": np.array([0.5, 0.5], np.float32), "noise": np.array([-0.0, 1.0], np.float32)}
    assert TWIN["draw_race"](**arguments) == reference("draw_race")(**arguments) == 0


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("half", [np.float16(0.5), np.float32(0.5), np.float64(0.5)])
def test_settings_as_scalars_of_numpy(half):
    logits = numbers(1, 9, dtype="float32")
    for op, name in (("top_p", "p"), ("typical", "p"), ("top_h", "h"), ("epsilon_cutoff", "epsilon"), ("draw", "u")):
        first = {"probs": np.abs(logits)} if op == "draw" else {"logits": logits}
        np.testing.assert_array_equal(reference(op)(**first, **{name: half}), reference(op)(**first, **{name: 0.5}))
        np.testing.assert_array_equal(TWIN[op](**first, **{name: half}), reference(op)(**first, **{name: 0.5}))
    scores = reference("attention")(**heads(3, 5, 8, 8), scale=half, softcap=half, return_lse=True)[1]
    assert scores.dtype == np.float32


def test_no_query_heads():
    cache, q = numbers(1, *POOL, dtype="float32"), numbers(2, 2, 0, 4, dtype="float32")
    assert_same("paged_attention", {"q": q, "k_cache": cache, "v_cache": cache} | TABLES)


@pytest.mark.parametrize("length", [2**63, 2**64 + 1])
def test_a_ring_of_a_sequence_beyond_every_integer(length):
    cache = numbers(1, 3, 1, 4, dtype="float32")
    given, wanted = (read(cache, cache, length) for read in (TWIN["ring_read"], reference("ring_read")))
    np.testing.assert_array_equal(given, wanted)
    np.testing.assert_array_equal(wanted[0], np.roll(cache, -(length % 3), axis=0))
