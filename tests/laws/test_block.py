"""Laws of the feed-forward block and of the whole transformer block."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics import activation, linear, norm
from refimpl.basics.activation import gelu_tanh, relu
from refimpl.basics.gated import geglu, swiglu
from refimpl.llm import attention, kv_cache, mlp, position, rope_scaling
from refimpl.llm.block import transformer_block
from refimpl.llm.kv_cache import new_cache
from refimpl.models.spec import RopeSpec
from tests.laws.strategies import assert_near, normal, seeds, sizes

OPS = SimpleNamespace(**{
    name: getattr(module, name)
    for module in (activation, linear, norm, position, attention, kv_cache, mlp)
    for name in module.__all__
})
D, F, N, K, H = 6, 10, 4, 2, 4
LLAMA = SimpleNamespace(
    num_heads=N, num_kv_heads=K, head_dim=H, norm="rms", norm_eps=1e-5, rope=RopeSpec(H), windows=(None, 3),
    activation="silu",
)
GPT2 = SimpleNamespace(**vars(LLAMA) | {"norm": "layer", "rope": None, "activation": "gelu_tanh"})


def layer(seed, *, gated=True, biased=False, head_norm=False):
    """Draw the weights of one layer."""
    shapes = {"w_q": (N * H, D), "w_k": (K * H, D), "w_v": (K * H, D), "w_o": (D, N * H), "w_up": (F, D)}
    shapes |= {"w_down": (D, F), "attention_norm.gain": (D,), "mlp_norm.gain": (D,)}
    if gated:
        shapes |= {"w_gate": (F, D)}
    if biased:
        shapes |= {"b" + name[1:]: shape[:1] for name, shape in shapes.items() if name.startswith("w_")}
        shapes |= {"attention_norm.bias": (D,), "mlp_norm.bias": (D,)}
    if head_norm:
        shapes |= {"q_norm.gain": (H,), "k_norm.gain": (H,)}
    return {name: normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def run(x, weights, spec, chunks, number=0, dtype=np.float64):
    """Run a sequence through one layer in chunks of the given lengths."""
    inv_freq, factor = rope_scaling.rope_frequencies(H)
    cache, outputs, end = new_cache(len(x) + 2, K, H, dtype), [], 0
    cache.k[:], cache.v[:] = np.nan, np.nan  # slots that were never written may hold anything
    for count in chunks:
        start, end = end, end + count
        tables = (None, None)
        if spec.rope:
            tables = position.rope_table(np.arange(start, end), inv_freq, factor, np.float64)
        y, cache = transformer_block(x[start:end], weights, spec, number, cache, *tables, OPS)
        outputs.append(y)
    assert cache.length == len(x)
    return np.concatenate(outputs)


@given(seeds, sizes)
def test_mlp_is_two_maps_around_an_activation(seed, T):
    x, w_up, w_down, b_up, b_down = normal(seed, T, D), normal(1, F, D), normal(2, D, F), normal(3, F), normal(4, D)
    plain = gelu_tanh(x @ w_up.T + b_up) @ w_down.T + b_down
    assert_near(OPS.mlp(x, w_up, w_down, b_up, b_down), plain, terms=F + D)
    assert_near(OPS.mlp(x, w_up, w_down, activation="relu"), relu(x @ w_up.T) @ w_down.T, terms=F + D, scale=50.0)


@given(seeds, sizes)
def test_gated_mlp_is_swiglu_or_geglu_between_two_maps(seed, T):
    x, w_gate, w_up, w_down = normal(seed, T, D), normal(1, F, D), normal(2, F, D), normal(3, D, F)
    gate, up = x @ w_gate.T, x @ w_up.T
    assert_near(OPS.gated_mlp(x, w_gate, w_up, w_down), swiglu(gate, up) @ w_down.T, terms=F + D, scale=99.0)
    found = OPS.gated_mlp(x, w_gate, w_up, w_down, activation="gelu_tanh")
    assert_near(found, geglu(gate, up) @ w_down.T, terms=F + D, scale=99.0)
    b_gate, b_up, b_down = normal(4, F), normal(5, F), normal(6, D)
    found = OPS.gated_mlp(x, w_gate, w_up, w_down, b_gate, b_up, b_down)
    assert_near(found, swiglu(gate + b_gate, up + b_up) @ w_down.T + b_down, terms=F + D, scale=99.0)


def test_every_weight_of_a_block_counts():
    x = normal(0, 4, D)
    for spec, weights in ((LLAMA, layer(0, biased=True, head_norm=True)), (GPT2, layer(0, gated=False, biased=True))):
        y = run(x, weights, spec, [4])
        for name, weight in weights.items():
            # An RMS norm has no bias. Without rope a bias on all keys shifts a row of scores, which softmax ignores.
            idle = ("attention_norm.bias", "mlp_norm.bias") if spec is LLAMA else ("b_k",)
            changed = weights | {name: weight + normal(1, *weight.shape)}
            assert np.allclose(run(x, changed, spec, [4]), y) == (name in idle), name


@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from([0, 1]))
def test_block_does_not_know_its_chunks(seed, chunks, number):
    x = normal(seed, sum(chunks), D)
    for spec, weights in ((LLAMA, layer(seed, head_norm=True)), (GPT2, layer(seed, gated=False, biased=True))):
        whole = run(x, weights, spec, [len(x)], number)
        for cut in (chunks, [1] * len(x)):
            assert_near(run(x, weights, spec, cut, number), whole, terms=500)


@given(seeds, sizes)
def test_block_is_causal_and_its_window_is_short(seed, T):
    x = normal(seed, T + 4, D)
    changed = x.copy()
    changed[T] += 1
    weights = layer(seed)
    windowed = [run(tokens, weights, LLAMA, [T + 4], 1) for tokens in (x, changed)]
    assert_near(windowed[0][:T], windowed[1][:T], terms=500)
    assert_near(windowed[0][T + 3], windowed[1][T + 3], terms=500)  # a window of 3 ends at T + 2
    assert not np.allclose(windowed[0][T : T + 3], windowed[1][T : T + 3])


@given(seeds)
def test_block_by_its_definition(seed):
    """The first token sees itself alone, so attention passes its value on."""
    x, weights = normal(seed, 1, D), layer(seed, gated=False, biased=True)

    def normed(x, name):
        centred = x - x.mean()
        return centred / np.sqrt((centred**2).mean() + 1e-5) * weights[name + ".gain"] + weights[name + ".bias"]

    v = weights["w_v"] @ normed(x[0], "attention_norm") + weights["b_v"]
    h = x[0] + weights["w_o"] @ np.repeat(v.reshape(K, H), N // K, axis=0).ravel() + weights["b_o"]
    up = gelu_tanh(weights["w_up"] @ normed(h, "mlp_norm") + weights["b_up"])
    wanted = h + weights["w_down"] @ up + weights["b_down"]
    assert_near(run(x, weights, GPT2, [1])[0], wanted, terms=500)


@given(seeds, st.integers(2, 6))
def test_head_norm_makes_queries_and_keys_scale_free(seed, T):
    x, weights = normal(seed, T, D), layer(seed, head_norm=True)
    louder = weights | {"w_q": 8 * weights["w_q"], "w_k": 16 * weights["w_k"]}
    spec = SimpleNamespace(**vars(LLAMA) | {"norm_eps": 0.0})
    assert_near(run(x, louder, spec, [T]), run(x, weights, spec, [T]), terms=500)


@given(seeds)
def test_interleaved_block_equals_halves_with_permuted_rows(seed):
    """The one thing a GGUF file does to q and k: row 2i + j of a head is row i + j H / 2 of the other layout."""
    x, weights = normal(seed, 4, D), layer(seed)
    order = np.arange(H).reshape(2, H // 2).T.ravel()
    permuted = weights | {
        "w_q": weights["w_q"].reshape(N, H, D)[:, order].reshape(N * H, D),
        "w_k": weights["w_k"].reshape(K, H, D)[:, order].reshape(K * H, D),
    }
    interleaved = SimpleNamespace(**vars(LLAMA) | {"rope": RopeSpec(H, interleaved=True)})
    assert_near(run(x, permuted, interleaved, [4]), run(x, weights, LLAMA, [4]), terms=500)
