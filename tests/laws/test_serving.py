"""What a model asks of a device: the chapter's figures, published sizes, and laws."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.bottleneck.cost import cost
from refimpl.bottleneck.roofline import DEVICES, bound, seconds
from refimpl.bottleneck.serving import (
    attention_pairs,
    denoiser_passes,
    experts_reached,
    kv_bytes_per_token,
    kv_bytes_read,
    parameters,
    phase_costs,
    phase_seconds,
    serve,
    weight_bytes,
)
from refimpl.contract import UsageError
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec, weight_shapes

H100 = DEVICES["H100"]
lengths = st.integers(1, 300)


def model(layers: int, width: int, heads: int, kv_heads: int, network: int | MoeSpec, vocab: int, **more) -> ModelSpec:
    network = MlpSpec(network, "silu") if isinstance(network, int) else network
    layer = LayerSpec(AttentionSpec(heads, kv_heads, 128, RopeSpec(128), **more), network)
    return ModelSpec("made", vocab, width, (layer,) * layers, 8192)


def with_windows(spec: ModelSpec, *windows: int | None) -> ModelSpec:
    layers = zip(spec.layers, windows, strict=True)
    return replace(spec, layers=tuple(replace(one, mixer=replace(one.mixer, window=size)) for one, size in layers))


def with_networks(spec: ModelSpec, *networks: MlpSpec | MoeSpec) -> ModelSpec:
    layers = zip(spec.layers, networks, strict=True)
    return replace(spec, layers=tuple(replace(layer, network=network) for layer, network in layers))


QWEN3 = model(94, 4096, 64, 4, MoeSpec(128, 8, 1536), 151936, qk_norm="head")
MIXTRAL = model(32, 4096, 32, 8, MoeSpec(8, 2, 14336), 32000)
LLAMA_8B = model(32, 4096, 32, 8, 14336, 128256)
LLAMA_70B = model(80, 8192, 64, 8, 28672, 128256)
TINY = with_windows(model(2, 256, 2, 1, 64, 96), None, 4)
MOE = MoeSpec(6, 2, 32, shared_size=48, shared_gate=True, biases=True, router_bias=True)
TINY_MOE = with_networks(TINY, TINY.layers[0].network, MOE)


@pytest.mark.parametrize(
    ("spec", "total", "active"),
    [
        (QWEN3, 235.1, 22.2),  # the model's name: 235B, 22B active
        (MIXTRAL, 46.7, 12.9),  # Jiang et al., Mixtral of experts: 47B, of which a token meets 13B
        (LLAMA_8B, 8.03, 8.03),  # the Llama 3 model card
        (LLAMA_70B, 70.6, 70.6),
    ],
    ids=["Qwen3-235B-A22B", "Mixtral 8x7B", "Llama 3 8B", "Llama 3 70B"],
)
def test_parameters_are_those_published(spec, total, active):
    assert [count / 1e9 for count in parameters(spec)] == pytest.approx([total, active], rel=0.005)


def test_the_chapters_names_of_models_are_their_sizes():
    assert [round(count / 1e9) for count in (*parameters(QWEN3), *parameters(MIXTRAL))] == [235, 22, 47, 13]


def test_an_image_is_about_a_hundred_passes():  # the chapter: 30 to 50 steps, two passes each for guidance
    assert (denoiser_passes(30), denoiser_passes(50)) == (60, 100) and denoiser_passes(50, guided=False) == 50


@pytest.mark.parametrize("spec", [LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3])
def test_prefill_is_bound_by_arithmetic_and_decode_by_memory_on_the_h100(spec):
    prefill, decode = phase_costs(spec, 8192), phase_costs(spec, 1, 8192)
    assert {bound(part, H100) for part in decode.values()} == {"memory"}
    heavy = [part for part in prefill.values() if seconds(part, H100) > 0.02 * phase_seconds(prefill, H100)]
    assert {bound(part, H100) for part in heavy} == {"compute"}


def test_cache_of_a_token():
    assert kv_bytes_per_token(LLAMA_8B) == 128 * 1024  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert kv_bytes_per_token(LLAMA_70B) == 320 * 1024
    assert kv_bytes_per_token(LLAMA_70B, "float8") == 160 * 1024


def test_weights_in_formats():
    held = {dtype: sum(weight_bytes(LLAMA_8B, dtype).values()) for dtype in ("float16", "float8", "q4_0", "q8_0")}
    count = parameters(LLAMA_8B)[0]
    assert held["float16"] == 2 * count and held["float8"] == count
    assert held["q4_0"] == pytest.approx(count * 18 / 32) and held["q8_0"] == pytest.approx(count * 34 / 32)
    with pytest.raises(UsageError, match=r"weights and caches are held in float32, .*, not float7"):
        weight_bytes(LLAMA_8B, "float7")


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize(("queries", "start"), [(1, 0), (1, 9), (7, 0), (7, 2), (7, 5)])
def test_pairs_and_keys_are_those_a_loop_counts(queries, start, window):
    pairs = [
        (q, k) for q in range(start, start + queries) for k in range(q + 1) if window is None or q - k < window
    ]
    assert attention_pairs(queries, start, window) == len(pairs)
    spec = with_windows(TINY, window, window)
    assert kv_bytes_read(spec, queries, start) == len({k for _, k in pairs}) * kv_bytes_per_token(spec)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 500))
def test_a_mixture_of_all_experts_is_dense(experts, layers, tokens):
    moe = MoeSpec(experts, experts, 64)
    assert experts_reached(moe, tokens) == experts
    total, active = parameters(with_networks(TINY, moe, moe))
    assert total == active


@given(st.integers(1, 64), st.integers(1, 500), st.integers(1, 500), st.data())
def test_more_tokens_reach_more_experts_and_never_more_than_there_are(experts, some, more, data):
    moe = MoeSpec(experts, data.draw(st.integers(1, experts)), 64)
    reached = [experts_reached(moe, tokens) for tokens in (1, some, some + more)]
    assert reached[0] == pytest.approx(moe.num_active) and reached == sorted(reached) and reached[-1] <= experts


def test_experts_of_a_spec_have_names_and_shapes():
    shapes = weight_shapes(TINY_MOE)
    assert shapes["layers.0.w_up"] == (64, 256) and "layers.0.router" not in shapes
    assert shapes["layers.1.router"] == (6, 256) and "layers.1.w_up" not in shapes
    assert shapes["layers.1.experts.w_gate"] == (6, 32, 256) and shapes["layers.1.experts.w_down"] == (6, 256, 32)
    assert shapes["layers.1.shared.w_up"] == (48, 256) and shapes["layers.1.shared.w_down"] == (256, 48)
    assert shapes["layers.1.shared.w_share"] == (1, 256) and shapes["layers.1.experts.b_down"] == (6, 256)
    idle = 4 * (3 * 32 * 256 + 32 + 32 + 256)
    total, active = parameters(TINY_MOE)
    assert total - active == idle


@given(lengths, st.integers(0, 300), st.integers(1, 9))
def test_flops_are_two_a_weight_and_four_a_pair(queries, start, batch):
    parts = phase_costs(TINY, queries, start, batch=batch)
    matrices = sum(math.prod(s) for n, s in weight_shapes(TINY).items() if n.startswith("layers.") and len(s) == 2)
    pairs = sum(attention_pairs(queries, start, mixer.window) for mixer in TINY.mixers)
    wanted = 2 * queries * matrices + 4 * 2 * 128 * pairs + 2 * 96 * 256
    assert sum(part.flops for part in parts.values()) == batch * wanted


@given(lengths, st.integers(1, 9))
def test_a_batch_reads_weights_once_and_every_cache(start, batch):
    one, many = phase_costs(TINY, 1, start), phase_costs(TINY, 1, start, batch=batch)
    rows = {"w_q": 256 + 256, "w_k": 256 + 128, "w_up": 256 + 64}  # activations: read and written by every token
    for name, width in rows.items():
        assert many[name].bytes - one[name].bytes == 2 * 2 * (batch - 1) * width
    for name in ("attention", "attention 4"):
        assert many[name].bytes == batch * one[name].bytes


@given(lengths, st.integers(1, 64))
def test_chunks_read_the_weights_again(queries, chunk):
    whole, cut = (phase_costs(TINY, queries, chunk=size)["w_up"] for size in (None, chunk))
    again = math.ceil(queries / chunk) - 1
    assert cut.bytes - whole.bytes == again * 2 * 2 * 64 * 256 and cut.flops == whole.flops


@given(lengths)
def test_an_expert_is_read_if_a_token_goes_to_it(batch):
    part = phase_costs(TINY_MOE, 1, 5, batch=batch)["experts.w_up"]
    read = part.bytes - 2 * batch * 2 * (256 + 32)  # rows of two experts a token
    assert read == pytest.approx(2 * 32 * 256 * experts_reached(MOE, batch))
    assert part.flops == 2 * batch * 2 * 32 * 256


@given(lengths)
def test_every_token_passes_the_shared_expert_and_biases_are_no_matrices(batch):
    parts = phase_costs(TINY_MOE, 1, 5, batch=batch)
    assert parts["shared.w_up"] == cost("linear", b=2, T=batch, O=48, D=256)
    assert parts["shared.w_share"] == cost("linear", b=2, T=batch, O=1, D=256)
    assert not any("b_" in name for name in parts)


@given(lengths, st.integers(0, 300))
def test_attention_is_counted_by_its_window(queries, start):
    parts = phase_costs(TINY, queries, start)
    alone = {name: phase_costs(with_windows(TINY, *windows), queries, start)["attention" + name]
             for name, windows in (("", (None, None)), (" 4", (4, 4)))}  # fmt: skip
    for name, twice in alone.items():
        part = parts["attention" + name]
        assert (2 * part.flops, 2 * part.bytes) == (twice.flops, twice.bytes)
    rows = 2 * queries * (2 * 2 * 128 + 2 * 128)  # queries, what they get, and keys and values as they are written
    assert parts["attention"].bytes + parts["attention 4"].bytes - 2 * rows == kv_bytes_read(TINY, queries, start)


def test_a_window_keeps_no_more_than_it_sees():
    short, long = (serve(TINY, H100, context=context, batch=3).memory for context in (4, 104))
    assert long - short == 3 * 100 * kv_bytes_per_token(TINY) / 2  # of two layers, one has a window


def test_a_step_of_the_whole_cannot_be_faster_than_its_weights():
    alone = serve(LLAMA_8B, H100, context=1)
    read = 2 * (parameters(LLAMA_8B)[0] - 128256 * 4096)  # of the embedding, one row
    assert alone.tpot == pytest.approx(read / H100.bytes_per_s, rel=0.01)
    assert alone.tps == 1 / alone.tpot
    assert alone.memory == 2 * parameters(LLAMA_8B)[0] + kv_bytes_per_token(LLAMA_8B)


def test_a_prompt_cannot_be_read_faster_than_its_arithmetic():
    found = serve(LLAMA_70B, H100, context=4096)
    least = 2 * 4096 * (parameters(LLAMA_70B)[0] - 2 * 128256 * 8192) / 989e12
    assert least < found.ttft < 1.1 * least


@given(st.integers(1, 64), st.integers(1, 4000))
def test_batches_trade_latency_for_throughput(batch, context):
    alone, many = serve(LLAMA_8B, H100, context=context), serve(LLAMA_8B, H100, context=context, batch=batch)
    assert many.tpot >= alone.tpot and many.ttft >= alone.ttft and many.memory >= alone.memory
    assert many.tps >= alone.tps * (1 - 1e-9)


def test_narrower_weights_are_faster_in_decode_and_not_in_prefill():
    wide, narrow = (serve(LLAMA_8B, H100, context=8192, weights=dtype) for dtype in ("float16", "q4_k"))
    assert narrow.tps > 2 * wide.tps and narrow.ttft == pytest.approx(wide.ttft, rel=0.02)


def test_a_mixture_decodes_like_its_active_parameters_and_takes_memory_like_all():
    found = serve(QWEN3, H100, context=1)
    active = 2 * (parameters(QWEN3)[1] - 151936 * 4096) / H100.bytes_per_s
    assert found.tpot == pytest.approx(active, rel=0.01) and found.memory > 5 * H100.memory


def test_cost_of_the_head_is_that_of_linear():
    assert phase_costs(TINY, 7, batch=3)["head"] == cost("linear", b=2, T=3, O=96, D=256)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    "asked",
    [{"queries": 0}, {"queries": -1}, {"start": -1}, {"batch": 0}, {"chunk": 0},
     *({name: math.nan} for name in ("queries", "batch", "start"))],
)  # fmt: skip
def test_a_phase_without_tokens_is_refused(asked):
    with pytest.raises(UsageError, match="a phase needs tokens: "):
        phase_costs(LLAMA_8B, **{"queries": 5} | asked)


@pytest.mark.parametrize("asked", [{"context": 0}, {"context": 9, "batch": 0}, {"context": -9}])
def test_serving_nothing_is_refused(asked):
    with pytest.raises(UsageError, match="a phase needs tokens: "):
        serve(LLAMA_8B, H100, **asked)
