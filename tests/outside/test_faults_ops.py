"""The fault reports that concern attention, norms and rotary positions."""

import numpy as np
import pytest

from refimpl.basics.norm import rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.cache_forms import ring_append, ring_read
from refimpl.llm.kv_cache import cache_append, new_cache
from refimpl.llm.rope_scaling import rope_frequencies
from tests.outside.faults import load_case


def tokens_first(*arrays):
    """Turn [heads, tokens, width] into [tokens, heads, width]."""
    return [array.transpose(1, 0, 2) for array in arrays]


@pytest.mark.parametrize("which", ["short_q", "long_q"])
def test_attn_causal_alignment(which):
    case = load_case("attn_causal_alignment")
    q, k, v, wanted = tokens_first(*(case.inputs[f"{x}_{which}"] for x in "qkv"), case.expected[which])
    case.assert_near(attention(q, k, v), wanted)


def test_attn_softcap_then_mask():
    case = load_case("attn_softcap_then_mask")
    q, k, v, wanted = tokens_first(*(case.inputs[x] for x in "qkv"), case.expected["out"])
    case.assert_near(attention(q, k, v, softcap=case.settings["softcap"]), wanted)


@pytest.mark.parametrize("number", range(5))
def test_attn_window_chunked_prefill(number):
    case = load_case("attn_window_chunked_prefill")
    q, k, v, wanted = tokens_first(*(case.inputs[x] for x in "qkv"), case.expected[f"out_{number}"])
    cache, outputs = new_cache(12, *k.shape[1:]), []
    for count in case.settings["chunks"][number]:
        new = slice(cache.length, cache.length + count)
        cache = cache_append(cache, k[new], v[new])
        seen = slice(0, cache.length)
        outputs.append(attention(q[new], cache.k[seen], cache.v[seen], window=case.settings["window"]))
    case.assert_near(np.concatenate(outputs), wanted)


@pytest.mark.parametrize("number", range(5))
def test_attn_window_chunked_prefill_through_a_ring(number):
    case = load_case("attn_window_chunked_prefill")
    q, k, v, wanted = tokens_first(*(case.inputs[x] for x in "qkv"), case.expected[f"out_{number}"])
    window, length, outputs = case.settings["window"], 0, []
    ring = [np.full((window, *x.shape[1:]), np.nan, x.dtype) for x in (k, v)]
    for count in case.settings["chunks"][number]:
        new = slice(length, length + count)
        keys, values = map(np.concatenate, zip(ring_read(*ring, length), (k[new], v[new]), strict=True))
        outputs.append(attention(q[new], keys, values, window=window))
        ring_append(*ring, k[new], v[new], length)
        length += count
    case.assert_near(np.concatenate(outputs), wanted)


def test_rmsnorm_float16():
    case = load_case("rmsnorm_float16")
    y = rms_norm(case.inputs["x"], case.inputs["weight"], case.settings["eps"])
    assert y.dtype == np.float16
    case.assert_near(y, case.expected["y"])


def test_rope_dynamic_ntk_calls():
    case = load_case("rope_dynamic_ntk_calls")
    dim, base, longest, factor = (case.settings[name] for name in ("dim", "base", "max", "factor"))
    for seq_len, wanted in zip(case.inputs["lengths_in_call_order"], case.expected["inv_freq"], strict=True):
        inv_freq, attention_factor = rope_frequencies(
            dim, base, scaling="dynamic", seq_len=int(seq_len), factor=factor, max_position_embeddings=longest
        )
        case.assert_near(inv_freq, wanted)
        assert attention_factor == 1.0


def test_rope_yarn():
    case = load_case("rope_yarn")
    original = case.inputs["original_max_position_embeddings"]
    assert case.inputs["sets"].keys() == case.expected.keys()
    for name, params in case.inputs["sets"].items():
        inv_freq, attention_factor = rope_frequencies(
            case.inputs["dim"], case.inputs["base"], scaling="yarn", original_max_position_embeddings=original, **params
        )
        case.assert_near([*inv_freq, attention_factor], case.expected[name])
