"""The decoder against a second derivation in scalars, and the laws that every executor must keep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import operations
from refimpl.contract import ContractError
from refimpl.models.decoder import forward, new_caches, position_table, project_logits
from refimpl.models.families import read_spec
from tests.models.tiny import LLAMA, MORE, random_weights

IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


def run(name: str, ids: np.ndarray = IDS, chunks: tuple[int, ...] = ()) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return logits and hidden states of every position, computed in chunks of the given lengths and a last one."""
    spec = read_spec(MORE[name])
    weights, caches, states = random_weights(spec), new_caches(spec, len(ids), np.float64), []
    for part in np.split(ids, np.cumsum(chunks)):
        if len(part):
            found, caches = forward(part, weights, spec, caches, operations)
            states.append(found)
    joined = [np.concatenate(layer) for layer in zip(*states, strict=True)]
    return project_logits(joined[-1], weights, spec, operations), joined


def scalar_llama(ids: list[int]) -> list[list[float]]:
    """Return the logits of the tiny Llama, by loops over numbers."""
    w = {name: weight.tolist() for name, weight in random_weights(read_spec(LLAMA)).items()}
    N, K, H = 4, 2, 4

    def times(matrix, x):
        return [sum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]

    def norm(x, gain):
        scale = math.sqrt(sum(a * a for a in x) / len(x) + 1e-5)
        return [a / scale * g for a, g in zip(x, gain, strict=True)]

    def rotate(x, t):
        out = list(x)
        for head in range(0, len(x), H):
            for i in range(H // 2):
                angle, a, b = t * 10000 ** (-2 * i / H), x[head + i], x[head + i + H // 2]
                out[head + i] = a * math.cos(angle) - b * math.sin(angle)
                out[head + i + H // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    stream = [w["embedding"][i] for i in ids]
    for layer in ("layers.0.", "layers.1."):
        keys, values = [], []
        for t, x in enumerate(stream):
            y = norm(x, w[layer + "attention_norm.gain"])
            q = rotate(times(w[layer + "w_q"], y), t)
            keys.append(rotate(times(w[layer + "w_k"], y), t))
            values.append(times(w[layer + "w_v"], y))
            o = []
            for n in range(N):
                own = slice(n // (N // K) * H, n // (N // K) * H + H)
                scores = [times([k[own]], q[n * H : n * H + H])[0] / math.sqrt(H) for k in keys]
                probs = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
                o += [sum(p * v[own][h] for p, v in zip(probs, values, strict=True)) for h in range(H)]
            x = [a + b for a, b in zip(x, times(w[layer + "w_o"], o), strict=True)]
            y = norm(x, w[layer + "mlp_norm.gain"])
            gate, up = times(w[layer + "w_gate"], y), times(w[layer + "w_up"], y)
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            stream[t] = [a + b for a, b in zip(x, times(w[layer + "w_down"], inner), strict=True)]
    return [times(w["lm_head"], norm(x, w["final_norm.gain"])) for x in stream]


def test_tiny_llama_by_scalars():
    np.testing.assert_allclose(run("llama")[0], scalar_llama(IDS.tolist()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in MORE if name not in ("llama_dynamic", "phi3_longrope")])
@given(chunks=st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_any_chunking_of_the_prefill_gives_the_same(name: str, chunks: tuple[int, ...]):
    whole, _ = run(name)
    np.testing.assert_allclose(run(name, chunks=chunks)[0], whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MORE)
def test_the_future_changes_nothing(name: str):
    changed = IDS.copy()
    changed[8:] = [7, 7, 7]
    np.testing.assert_allclose(run(name, changed)[0][:8], run(name)[0][:8], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MORE)
def test_hidden_states_are_embeddings_layers_and_the_normalised_end(name: str):
    spec = read_spec(MORE[name])
    weights, (logits, states) = random_weights(spec), run(name)
    embedded = weights["embedding"][IDS] * spec.embedding_scale
    embedded = embedded + (weights["position_embedding"][: len(IDS)] if spec.learned_positions else 0)
    assert len(states) == spec.num_layers + 1
    np.testing.assert_array_equal(states[0], embedded)
    scores, cap = states[-1] @ weights.get("lm_head", weights["embedding"]).T * spec.logit_scale, spec.logit_softcap
    np.testing.assert_allclose(cap * np.tanh(scores / cap) if cap else scores, logits, rtol=1e-12)


def test_a_window_forgets_what_is_older_than_all_layers_see():
    changed = IDS.copy()
    changed[0] = 8
    now, before = run("mistral", changed)[0], run("mistral")[0]
    assert not np.allclose(now[4], before[4])  # two layers of three keys reach back four positions
    np.testing.assert_array_equal(now[5:], before[5:])


@pytest.mark.parametrize("name", ["llama_dynamic", "phi3_longrope"])
def test_a_long_call_leaves_nothing_stretched(name: str):
    before = run(name, IDS[:6])[0]
    run(name, np.tile(IDS, 3))
    np.testing.assert_array_equal(run(name, IDS[:6])[0], before)


@pytest.mark.parametrize("name", ["llama_dynamic", "phi3_longrope"])
def test_cached_keys_keep_their_rotation(name: str):
    together, apart = run(name)[0], run(name, chunks=(8,))[0]
    np.testing.assert_allclose(apart[:8], run(name, IDS[:8])[0], rtol=1e-12)
    assert not np.allclose(apart[8:], together[8:])


def test_table_of_positions():
    (rope,) = read_spec(LLAMA).ropes
    cos, sin = position_table(rope, 2, 5)
    assert cos.shape == sin.shape == (3, 2) and cos.dtype == np.float32
    np.testing.assert_allclose(sin[:, 0], np.sin([2, 3, 4]), rtol=1e-6)
    assert position_table(rope, 0, 1, np.float64)[0].dtype == np.float64


@pytest.mark.parametrize(("label", "ids"), [("C1", []), ("C2", [3, 23]), ("C2", [-1])])
def test_ids_that_are_refused(label: str, ids: list[int]):
    spec = read_spec(LLAMA)
    with pytest.raises(ContractError, match=label):
        forward(np.array(ids, int), random_weights(spec), spec, new_caches(spec, 4), operations)
