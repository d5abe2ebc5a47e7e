"""Every labelled constraint of the basic operations, refused by its label.

Shapes that a signature states are checked under pytest before an operation sees them; in use nobody checks them,
so that check is off here and the operation must refuse by itself.
"""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from refimpl.basics.activation import log_softmax, logsumexp, softmax
from refimpl.basics.gated import geglu, swiglu
from refimpl.basics.linear import linear
from refimpl.basics.norm import layer_norm, rms_norm
from refimpl.contract import ContractError
from refimpl.efficient.flash import flash_attention, flash_step, merge_states
from refimpl.efficient.paged import paged_append, paged_attention, slot_mapping
from refimpl.llm.attention import attention
from refimpl.llm.cuts import greedy, min_p, temperature, top_k, top_p
from refimpl.llm.embedding import embedding
from refimpl.llm.kv_cache import KVCache, cache_append, new_cache
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.penalties import frequency_penalty, logit_bias, presence_penalty, repetition_penalty
from refimpl.llm.position import learned_position, rope, rope_table
from refimpl.llm.quantize import dequantize, linear_int8, quantize_int8
from refimpl.llm.rng import philox
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.llm.sampler import draw


def a(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


QKV = (a(2, 4, 8), a(3, 2, 8), a(3, 2, 5))
STATE = (a(2, 4, 5), a(2, 4), a(2, 4))
CACHES, TABLES = (a(3, 4, 2, 8), a(3, 4, 2, 5)), (np.array([[0, 2], [1, -1]]), np.array([5, 4]), np.array([0, 1, 2]))
NEW, SLOTS = (a(2, 2, 8), a(2, 2, 5)), np.array([3, -1])
YARN = {"scaling": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
LONG = {"scaling": "longrope", "factor": 2.0, "original_max_position_embeddings": 8}
ONES = {"short_factor": (1.0,), "long_factor": (1.0,)}
CUTS = ((greedy,), (temperature, 1.0), (top_k, 1), (top_p, 0.5), (min_p, 0.5))
PENALTIES = (repetition_penalty, presence_penalty, frequency_penalty)
IDS, BYTES, KEY = np.array([0, 1]), np.zeros((2, 34), np.uint8), np.zeros(2, np.uint32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

BROKEN = [
    (linear, "C1", (a(2, 3), a(4, 2)), {}),
    *((linear, "C1", x_w, {}) for x_w in ((a(), a(4, 3)), (a(3), a(4, 3)), (a(2, 3), a(3)), (a(2, 3), a()))),
    (linear, "C2", (a(2, 3), a(4, 3), a(3)), {}),
    (linear, "C2", (a(2, 3), a(4, 3), a(1)), {}),
    (softmax, "C1", (a(2, 0),), {}),
    (softmax, "C1", (a(0, 2),), {"axis": 0}),
    (logsumexp, "C1", (a(2, 0),), {}),
    (log_softmax, "C1", (a(2, 0),), {}),
    *((each, "C1", (a(),), {}) for each in (softmax, logsumexp, log_softmax)),
    *((each, "C1", (a(2, 3), axis), {}) for each in (softmax, logsumexp, log_softmax) for axis in (2, -3)),
    *((each, "C1", x_gain, {}) for each in (layer_norm, rms_norm) for x_gain in ((a(), a(1)), (a(), a()), (a(3), a()))),
    *((cut, "C2", (a(*shape), *more), {}) for cut, *more in CUTS for shape in ((), (2, 3))),
    *((penalty, "C1", (a(*shape), IDS, 1.5), {}) for penalty in PENALTIES for shape in ((), (2, 3))),
    *((penalty, "C1", (a(3), ids, 1.5), {}) for penalty in PENALTIES for ids in (IDS[None], IDS > 0, IDS * 1.0)),
    *((logit_bias, "C1", (a(*shape), {0: 1.0}), {}) for shape in ((), (2, 3))),
    *((logit_bias, "C1", (a(3), {token_id: 1.0}), {}) for token_id in (True, 0.5, np.float32(1), "1", None, 2**70)),
    *((philox, "C2", (words, KEY), {}) for words in (KEY, np.zeros((2, 8), np.uint32))),
    (philox, "C2", (np.zeros(4, np.uint32), np.zeros(4, np.uint32)), {}),
    (philox, "C2", (np.zeros((3, 4), np.uint32), np.zeros((2, 2), np.uint32)), {}),
    *((draw, "C2", (a(*shape), 0.5), {}) for shape in ((), (2, 3))),
    *((dequantize, "C2", (blocks, "q8_0"), {}) for blocks in (BYTES[0, 0], BYTES[0], BYTES[None], BYTES * 1.0)),
    *((linear_int8, "C2", (a(1, 32), blocks, "q8_0"), {}) for blocks in (BYTES[0, 0], BYTES[0], BYTES[None])),
    *((linear_int8, "C3", (a(*shape), BYTES, "q8_0"), {}) for shape in ((), (32,), (1, 1, 32))),
    *((quantize_int8, "C1", (a(*shape),), {}) for shape in ((), (32,), (1, 1, 32))),
    *((embedding, "C1", (ids, a(2, 2)), {}) for ids in (np.array([True, False]), a(1))),
    *((learned_position, "C1", (a(2, 2), at, a(2, 2)), {}) for at in (np.array([True, False]), a(2))),
    (swiglu, "C1", (a(2, 3), a(1, 3)), {}),
    (geglu, "C1", (a(2, 3), a(1, 3)), {}),
    (layer_norm, "C1", (a(2, 3), a(1)), {}),
    (layer_norm, "C1", (a(2, 3), a(3), a(1)), {}),
    (layer_norm, "C2", (a(2, 3), a(3)), {"eps": -1e-5}),
    (rms_norm, "C1", (a(2, 3), a(1)), {}),
    (rms_norm, "C2", (a(2, 3), a(3), -1e-5), {}),
    *((embedding, "C2", ids_table, {}) for ids_table in ((IDS[None], a(2, 2)), (IDS, a(2)), (IDS, a(2, 1, 2)))),
    *((learned_position, "C2", (a(*shape), IDS, a(2, 2)), {}) for shape in ((1, 2), (3, 2), (2, 1), (2, 2, 2))),
    *((rope, "C3", (a(2, 1, 6), a(*cos), a(*sin)), {}) for cos, sin in (
        ((1, 3), (1, 3)), ((3, 3), (3, 3)), ((2, 3), (2, 2)), ((2, 3), (1, 3)), ((3,), (3,)))),
    (rope, "C3", (a(2, 6), a(2, 3), a(2, 3)), {}),
    (embedding, "C1", (np.array([0, 5]), a(5, 2)), {}),
    (embedding, "C1", (np.array([-1]), a(5, 2)), {}),
    (learned_position, "C1", (a(1, 2), np.array([5]), a(5, 2)), {}),
    (learned_position, "C1", (a(1, 2), np.array([-1]), a(5, 2)), {}),
    (rope_frequencies, "C1", (7,), {}),
    (rope_frequencies, "C1", (0,), {}),
    (rope_frequencies, "C1", (2,), {"scaling": "dynamic", "factor": 2.0, "max_position_embeddings": 8}),
    (rope_frequencies, "C2", (8,), {"scaling": "ntk"}),
    (rope_frequencies, "C3", (8,), {"mrope_section": (1, 1, 2)}),
    (rope_frequencies, "C3", (8,), {"scaling": "linear", "factor": None}),
    (rope_frequencies, "C3", (8,), {**YARN, "factor": None}),
    (rope_frequencies, "C4", (8,), {**LONG, "short_factor": (1.0,), "long_factor": (1.0,) * 4}),
    *((rope_frequencies, "C5", (8, theta), {}) for theta in (1.0, 0.0, -1.0, np.nan, np.inf)),
    (rope_frequencies, "C6", (8,), {"scaling": "linear", "factor": 0.0}),
    (rope_frequencies, "C6", (8,), {"scaling": "dynamic", "factor": np.nan, "max_position_embeddings": 8}),
    (rope_frequencies, "C6", (8,), {**YARN, "original_max_position_embeddings": 0}),
    (rope_frequencies, "C6", (8,), {**LONG, "short_factor": (1.0, 1.0, 0.0, 1.0), "long_factor": (1.0,) * 4}),
    (rope_frequencies, "C6", (2,), {**LONG, **ONES, "original_max_position_embeddings": 1}),
    (rope_frequencies, "C6", (8,), {**YARN, "scaling": "llama3", "low_freq_factor": 4.5, "high_freq_factor": 4.0}),
    (rope_table, "C1", (np.arange(3), a(2), 1.0, np.float16), {}),
    (rope_table, "C1", (np.arange(3), a(2), 1.0, BFLOAT16), {}),
    (rope, "C1", (a(2, 1, 6), a(2, 4), a(2, 4)), {}),
    (rope, "C2", (a(2, 1, 6), a(2, 3, dtype=BFLOAT16), a(2, 3)), {}),
    (rope, "C2", (a(2, 1, 6), a(2, 3), a(2, 3, dtype=np.float16)), {}),
    (attention, "C1", (a(2, 3, 8), *QKV[1:]), {}),
    (attention, "C1", (QKV[0], a(3, 0, 8), a(3, 0, 5)), {}),
    (attention, "C2", (a(2, 4, 7), *QKV[1:]), {}),
    *((attention, "C2", (a(*shape), *QKV[1:]), {}) for shape in ((), (8,), (1, 2, 4, 8))),
    *((flash_attention, "C2", (a(*shape), *QKV[1:]), {}) for shape in ((), (8,), (1, 2, 4, 8))),
    (attention, "C2", (*QKV[:2], a(3, 1, 5)), {}),
    (attention, "C2", (*QKV[:2], a(1, 2, 5)), {}),
    (attention, "C3", QKV, {"mask": a(3, 2) > 0}),
    (attention, "C3", QKV, {"mask": a(2, 2, 3)}),
    (attention, "C4", QKV, {"window": 0}),
    (attention, "C4", QKV, {"window": 2, "causal": False}),
    (attention, "C5", QKV, {"softcap": 0.0}),
    *((flash_attention, "C1", (a(2, heads, 8), *QKV[1:]), {}) for heads in (3, 5)),
    (flash_attention, "C1", (QKV[0], a(3, 0, 8), a(3, 0, 5)), {}),
    (flash_attention, "C2", (a(2, 4, 7), *QKV[1:]), {}),
    (flash_attention, "C2", (*QKV[:2], a(1, 2, 5)), {}),
    (flash_attention, "C3", QKV, {"mask": a(2, 2, 3)}),
    (flash_attention, "C4", QKV, {"window": 0}),
    (flash_attention, "C4", QKV, {"window": 2, "causal": False}),
    (flash_attention, "C5", QKV, {"softcap": -1.0}),
    (flash_attention, "C6", QKV, {"tile": 0}),
    (flash_step, "C1", (*STATE, a(2, 3, 8), *QKV[1:]), {}),
    (flash_step, "C2", (*STATE, *QKV[:2], a(3, 1, 5)), {}),
    (flash_step, "C3", (*STATE, *QKV), {"mask": a(3, 2) > 0}),
    (flash_step, "C4", (a(2, 4, 4), *STATE[1:], *QKV), {}),
    (flash_step, "C4", (STATE[0], a(2, 1), STATE[2], *QKV), {}),
    (flash_step, "C5", (*STATE, *QKV), {"softcap": 0.0}),
    *((merge_states, "C1", (*STATE[:2], *part), {}) for part in ((a(2, 4, 1), a(2, 4)), (a(2, 4, 5), a(1, 4)))),
    (slot_mapping, "C1", (TABLES[0][0], np.array([0]), 0), {}),
    *((slot_mapping, "C2", (TABLES[0][0], np.array([position]), 4), {}) for position in (-1, 8)),
    (slot_mapping, "C3", (TABLES[0][1], np.array([3, 4]), 4), {}),
    *((slot_mapping, "C2", (TABLES[0][0], at, 4), {}) for at in (np.array(1), np.array([[1]]), np.array([1.0]))),
    (slot_mapping, "C3", (np.array([2, 9]), np.array([2**30]), 2**30), {}),
    (paged_append, "C1", (*CACHES, NEW[0], a(2, 2, 4), SLOTS), {}),
    (paged_append, "C1", (*CACHES, *NEW, np.array([3])), {}),
    (paged_append, "C1", (CACHES[0], a(3, 3, 2, 5), *NEW, SLOTS), {}),
    *((paged_append, "C2", (*CACHES, *NEW, np.array([0, slot])), {}) for slot in (-2, 12, 0.5)),
    (paged_append, "C3", (*CACHES, *NEW, np.array([3, 3])), {}),
    (paged_attention, "C1", (a(2, 3, 8), *CACHES, *TABLES), {}),
    (paged_attention, "C2", (a(2, 4, 7), *CACHES, *TABLES), {}),
    *((paged_attention, "C2", (a(*shape), *CACHES, *TABLES), {}) for shape in ((), (8,), (1, 2, 4, 8))),
    (paged_attention, "C3", (QKV[0], *CACHES, TABLES[0] * 1.0, *TABLES[1:]), {}),
    (paged_attention, "C3", (QKV[0], *CACHES, *TABLES[:2], np.array([0, 3, 2], np.uint8)), {}),  # where -1 is 255
    (paged_attention, "C2", (QKV[0], CACHES[0], a(3, 3, 2, 5), *TABLES), {}),
    *((paged_attention, "C3", (QKV[0], *CACHES, *TABLES[:2], np.array(bounds)), {})
      for bounds in ([0, 2], [0, 1, 3], [1, 1, 2], [0, 3, 2])),
    (paged_attention, "C3", (QKV[0], *CACHES, TABLES[0], np.array([5]), TABLES[2]), {}),
    *((paged_attention, "C4", (QKV[0], *CACHES, TABLES[0], np.array([5, n]), TABLES[2]), {}) for n in (-1, 9)),
    *((paged_attention, "C5", (QKV[0], *CACHES, np.array([[0, n], [1, -1]]), *TABLES[1:]), {}) for n in (3, -1)),
    (paged_attention, "C5", (QKV[0], *CACHES, TABLES[0], np.array([5, 5]), TABLES[2]), {}),
    (paged_attention, "C6", (QKV[0], *CACHES, *TABLES), {"window": 0}),
    (paged_attention, "C7", (QKV[0], *CACHES, *TABLES), {"softcap": 0.0}),
    (cache_append, "C1", (new_cache(2, 2, 3), a(3, 2, 3), a(3, 2, 3)), {}),
    (cache_append, "C2", (new_cache(4, 2, 3), a(3, 1, 3), a(3, 1, 3)), {}),
    (cache_append, "C2", (new_cache(4, 2, 3), a(3, 2, 3), a(1, 2, 3)), {}),
    (cache_append, "C3", (KVCache(a(4, 2, 3), a(4, 2, 3), -1), a(1, 2, 3), a(1, 2, 3)), {}),
    (cache_append, "C3", (SimpleNamespace(k=a(4, 2, 3), v=a(2, 2, 3), length=2), a(1, 2, 3), a(1, 2, 3)), {}),
    *((gated_mlp, "C2", (a(1, 2), a(rows, 2), a(3, 2), a(2, 3)), {}) for rows in (1, 2, 4)),
    *((gated_mlp, "C3", (a(1, 2), a(3, 2), a(3, 2), a(2, 3)), {"limit": bound}) for bound in (0.0, -7.0, np.nan)),
    (mlp, "C1", (a(1, 2), a(3, 2), a(2, 3)), {"activation": "gelu"}),
    (gated_mlp, "C1", (a(1, 2), a(3, 2), a(3, 2), a(2, 3)), {"activation": "swish"}),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)


def test_a_refused_paged_append_writes_nothing():
    k_cache, v_cache = a(3, 4, 2, 8), a(3, 4, 2, 5)
    with pytest.raises(ContractError, match=r"^C3: slots \[3 3\] hold one twice$"):
        paged_append(k_cache, v_cache, 2 * NEW[0], 2 * NEW[1], np.array([3, 3]))
    assert (k_cache == 1).all() and (v_cache == 1).all()


def test_a_refused_append_writes_nothing():
    cache = new_cache(2, 1, 1)
    with pytest.raises(ContractError, match=r"^C1: 0 \+ 3 tokens exceed the capacity of 2$"):
        cache_append(cache, a(3, 1, 1), a(3, 1, 1))
    assert (cache.k == 0).all() and (cache.v == 0).all()
