"""Laws of the feed-forward block and of a whole layer."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics import activation, linear, norm
from refimpl.basics.activation import gelu_tanh, relu
from refimpl.basics.gated import geglu, swiglu
from refimpl.llm import attention, kv_cache, mlp, position, rope_scaling
from refimpl.llm.kv_cache import new_cache
from refimpl.models.layer import run_layer
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tests.laws.strategies import assert_near, normal, seeds, sizes

OPS = SimpleNamespace(**{
    name: getattr(module, name)
    for module in (activation, linear, norm, position, attention, kv_cache, mlp)
    for name in module.__all__
})
D, F, N, K, H = 6, 10, 4, 2, 4


TURNED = RopeSpec(H)


def model(network, norm="rms", rope=TURNED, norms="before", eps=1e-5, **more):
    """Return a model of two layers, of which the second has a window."""
    mixers = [AttentionSpec(N, K, H, rope, window, **more) for window in (None, 3)]
    layers = tuple(LayerSpec(mixer, network, norms) for mixer in mixers)
    return ModelSpec("made", 5, D, layers, 64, norm=norm, norm_eps=eps)


GATED, PLAIN = MlpSpec(F, "silu"), MlpSpec(F, "gelu_tanh", gated=False)
LLAMA, NORMED = model(GATED), model(GATED, qk_norm="head")
GPT2 = model(PLAIN, "layer", None)


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
        table = position.rope_table(np.arange(start, end), inv_freq, factor, np.float64) if spec.ropes else None
        y, cache = run_layer(x[start:end], weights, spec, number, cache, table, OPS)
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


def test_every_weight_of_a_layer_counts():
    x = normal(0, 4, D)
    for spec, weights in ((NORMED, layer(0, biased=True, head_norm=True)), (GPT2, layer(0, gated=False, biased=True))):
        y = run(x, weights, spec, [4])
        for name, weight in weights.items():
            # An RMS norm has no bias. Without rope a bias on all keys shifts a row of scores, which softmax ignores.
            idle = ("attention_norm.bias", "mlp_norm.bias") if spec is NORMED else ("b_k",)
            changed = weights | {name: weight + normal(1, *weight.shape)}
            assert np.allclose(run(x, changed, spec, [4]), y) == (name in idle), name


@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from([0, 1]))
def test_layer_does_not_know_its_chunks(seed, chunks, number):
    x = normal(seed, sum(chunks), D)
    for spec, weights in ((NORMED, layer(seed, head_norm=True)), (GPT2, layer(seed, gated=False, biased=True))):
        whole = run(x, weights, spec, [len(x)], number)
        for cut in (chunks, [1] * len(x)):
            assert_near(run(x, weights, spec, cut, number), whole, terms=500)


@given(seeds, sizes)
def test_layer_is_causal_and_its_window_is_short(seed, T):
    x = normal(seed, T + 4, D)
    changed = x.copy()
    changed[T] += 1
    weights = layer(seed)
    windowed = [run(tokens, weights, LLAMA, [T + 4], 1) for tokens in (x, changed)]
    assert_near(windowed[0][:T], windowed[1][:T], terms=500)
    assert_near(windowed[0][T + 3], windowed[1][T + 3], terms=500)  # a window of 3 ends at T + 2
    assert not np.allclose(windowed[0][T : T + 3], windowed[1][T : T + 3])


@given(seeds)
def test_layer_by_its_definition(seed):
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
    spec = model(GATED, qk_norm="head", eps=0.0)
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
    interleaved = model(GATED, rope=RopeSpec(H, interleaved=True))
    assert_near(run(x, permuted, interleaved, [4]), run(x, weights, LLAMA, [4]), terms=500)


POST = {"attention_post_norm.gain": (D,), "mlp_post_norm.gain": (D,)}


def gains(seed, *names):
    return {name: 1 + 0.3 * normal(seed + i, D) for i, name in enumerate(names)}


@given(seeds, sizes)
def test_norms_stand_before_behind_or_on_both_sides(seed, T):
    """Each form by its equation, attention and network taken from layers without norms of their own."""
    x, bare = normal(seed, T, D), {name: w for name, w in layer(seed).items() if "norm" not in name}
    own = gains(9, "attention_norm.gain", "mlp_norm.gain", *POST)
    still = {**bare, "w_down": np.zeros((D, F))}  # a network that adds nothing

    def norm(rows, name):
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * own[name + ".gain"]

    def attend(rows):
        return run(rows, still, LLAMA, [T]) - rows

    def feed(rows):
        return OPS.gated_mlp(rows, bare["w_gate"], bare["w_up"], bare["w_down"])

    before = x + attend(norm(x, "attention_norm"))
    behind = x + norm(attend(x), "attention_post_norm")
    both = x + norm(attend(norm(x, "attention_norm")), "attention_post_norm")
    wanted = {
        "before": before + feed(norm(before, "mlp_norm")),
        "after": behind + norm(feed(behind), "mlp_post_norm"),
        "sandwich": both + norm(feed(norm(both, "mlp_norm")), "mlp_post_norm"),
        "parallel": before + feed(norm(x, "mlp_norm")),
    }
    for norms, y in wanted.items():
        kept = [name for name in own if ("post" in name and norms in ("after", "sandwich")) or
                ("post" not in name and norms != "after")]
        found = run(x, bare | {name: own[name] for name in kept}, model(GATED, norms=norms), [T])
        assert_near(found, y, terms=500, scale=99.0)


@given(seeds, st.integers(2, 6))
def test_residual_scale_weighs_what_the_parts_add(seed, T):
    x, weights = normal(seed, T, D), {name: w for name, w in layer(seed).items() if "norm" not in name}
    halved = weights | {"w_o": weights["w_o"] / 2, "w_down": weights["w_down"] / 2}
    assert_near(run(x, weights, replace(LLAMA, residual_scale=0.5), [T]), run(x, halved, LLAMA, [T]), terms=500)


@given(seeds, st.integers(1, 6))
def test_row_norm_sees_all_heads_of_a_token(seed, T):
    """With one head it is the norm of that head; with more, louder heads stay louder."""
    x, weights = normal(seed, T, D), layer(seed)
    weights |= {"q_norm.gain": np.ones(N * H), "k_norm.gain": np.ones(K * H)}
    spec = model(GATED, qk_norm="row", eps=0.0)
    louder = weights | {"w_q": 8 * weights["w_q"]}
    assert_near(run(x, louder, spec, [T]), run(x, weights, spec, [T]), terms=500)
    one = weights | {"w_q": np.concatenate([8 * weights["w_q"][:H], weights["w_q"][H:]])}
    assert T == 1 or not np.allclose(run(x, one, spec, [T]), run(x, weights, spec, [T]))


def test_growing_queries_by_their_equation():
    """A temperature is a scale of scores by position: 1 + a log(1 + floor((p + 1) / f))."""
    x, weights = normal(3, 7, D), layer(3)
    warm = model(GATED, rope=None, temperature=(2.0, 0.5))
    growth = 1 + 0.5 * np.log1p((np.arange(7) + 1) // 2)
    for t in range(7):
        scaled = weights | {"w_q": growth[t] * weights["w_q"]}
        assert_near(run(x, weights, warm, [3, 4])[t], run(x, scaled, model(GATED, rope=None), [7])[t], terms=500)


def test_a_chunk_begins_anew():
    x, weights = normal(4, 7, D), layer(4)
    chunked = model(GATED, rope=None, chunk=3)
    whole = run(x, weights, chunked, [2, 5])
    for first in (0, 3, 6):
        alone = run(x[first : first + 3], weights, model(GATED, rope=None), [len(x[first : first + 3])])
        assert_near(whole[first : first + 3], alone, terms=500)
