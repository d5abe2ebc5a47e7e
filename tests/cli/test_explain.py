"""What --explain says, against counts made by hand; the formulas themselves are judged in tests/laws."""

import math
import re

import numpy as np
import pytest

from gpu.cli.costs import describe, explain_phase, layer_kinds, phases, title
from gpu.explain import Stored, expert_bytes, fit_line, stored, this_machine, weight_bytes, weight_bytes_read
from gpu.machine import Machine
from gpu.run import main
from refimpl.bottleneck.roofline import bound, ridge, seconds
from refimpl.bottleneck.serving import parameters, phase_costs
from refimpl.bottleneck.serving import weight_bytes as bytes_of_spec
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec, weight_shapes
from refimpl.models.tensor import Tensor

MOE = MoeSpec(num_experts=8, num_active=2, size=16, shared_size=24)


def _spec(tied: bool = True, windows: tuple[int | None, ...] = (None, 4), *networks: MlpSpec | MoeSpec) -> ModelSpec:
    networks = networks or (MlpSpec(64, "silu"),) * len(windows)
    mixers = (AttentionSpec(4, 2, 8, RopeSpec(8), window) for window in windows)
    layers = tuple(map(LayerSpec, mixers, networks))
    return ModelSpec("llama", 96, 32, layers, 128, tied_embeddings=tied)


def _weights(spec: ModelSpec, dtype: str | None = None) -> dict[str, Stored]:
    shapes = weight_shapes(spec).items()
    return stored({name: Tensor("float32", shape, np.zeros(shape, np.float32)) for name, shape in shapes}, dtype)


class Model:
    """What --explain asks of a model, with weights in a dtype."""

    def __init__(self, dtype: str | None = None, spec: ModelSpec | None = None) -> None:
        self.spec = spec or _spec()
        self.weights = _weights(self.spec, dtype)


def test_a_tied_embedding_is_read_and_an_untied_one_looked_up() -> None:
    tied, untied = _weights(_spec()), _weights(_spec(tied=False))
    assert weight_bytes_read(tied, _spec()) == weight_bytes(tied)
    assert weight_bytes_read(untied, _spec()) == weight_bytes(untied) - 96 * 32 * 4 == weight_bytes_read(tied, _spec())


def test_a_step_reads_the_experts_of_its_token() -> None:
    spec = _spec(True, (None, 4), MlpSpec(64, "silu"), MOE)
    weights = _weights(spec)
    assert expert_bytes(weights) == 8 * 3 * 16 * 32 * 4
    assert weight_bytes(weights) - weight_bytes_read(weights, spec) == 6 * 3 * 16 * 32 * 4
    assert weight_bytes_read(weights, spec, 2) - weight_bytes_read(weights, spec) == 1.5 * 3 * 16 * 32 * 4
    assert weight_bytes_read(weights, spec, 10**6) == weight_bytes(weights)


def test_converted_matrices_are_counted_converted() -> None:
    whole, half = _weights(_spec()), _weights(_spec(), "bfloat16")
    vectors = sum(w.nbytes for w in whole.values() if len(w.shape) == 1)
    assert weight_bytes(half) - vectors == (weight_bytes(whole) - vectors) // 2


def test_weights_of_a_spec_are_those_of_its_tensors() -> None:
    assert {name: w.nbytes for name, w in _weights(_spec()).items()} == bytes_of_spec(_spec(), "float32")


def test_phases_count_the_bytes_that_the_executor_holds() -> None:
    whole, half = (list(phases(Model(dtype), 5, 3).values()) for dtype in (None, "bfloat16"))
    for phase, narrow in zip(whole, half, strict=True):
        saved = sum(phase[name].bytes - narrow[name].bytes for name in phase)
        assert saved == sum(math.prod(w.shape) for w in Model().weights.values() if len(w.shape) == 2) * 2
        assert {name: cost.flops for name, cost in phase.items()} == {name: cost.flops for name, cost in narrow.items()}


def test_phases_are_the_prompt_and_the_last_step() -> None:
    assert [title(*phase) for phase in phases(Model(), 5, 3)] == ["prefill: 5 tokens", "decode: 1 token after 7"]


def test_what_bounds_a_phase_turns_at_the_ridge() -> None:
    spec, device = _spec(windows=(None, None)), this_machine(Machine(1e9, 5e9))
    kept = {"weights": bytes_of_spec(spec, "float32"), "activations": "float32", "cache": "float32"}
    part = {queries: phase_costs(spec, queries, chunk=64, **kept)["w_q"] for queries in (1, 64)}
    assert ridge(device, "float32") == 5
    assert bound(part[1], device, "float32") == "memory" and bound(part[64], device, "float32") == "compute"
    assert seconds(part[64], device, "float32") == part[64].flops / 5e9


def test_table_of_a_phase_adds_up() -> None:
    device = this_machine(Machine(1e6, 1e7))
    first, head, *rows, total = explain_phase(_spec(), (5, 0), phases(Model(), 5, 3)[5, 0], device)
    assert first == "prefill: 5 tokens" and head.split()[0] == "part" and total.split()[0] == "total"
    begin = head.index("GFLOP") - 4
    numbers = [[float(word) for word in re.findall(r"-?[\d.]+(?= |$)", row[begin:])] for row in (*rows, total)]
    for column in (0, 1, 3):  # GFLOP, MB and milliseconds; the intensity of the whole is no sum
        parts, whole = [row[column] for row in numbers[:-1]], numbers[-1][column]
        assert sum(parts) == pytest.approx(whole, abs=0.01 * len(parts))


def test_layers_are_said_by_their_kinds() -> None:
    dense = MlpSpec(64, "silu")
    mixed = _spec(True, (4, None, 4, 4), dense, MOE, MOE, MOE)
    assert layer_kinds(_spec()) == "1 with all keys, feed-forward 64; 1 with 4 keys, feed-forward 64"
    experts = "2 of 8 experts of 16, one of 24 for all"
    assert layer_kinds(mixed) == f"1 with 4 keys, feed-forward 64; 1 with all keys, {experts}; 2 with 4 keys, {experts}"


def test_parts_of_layers_that_differ_say_how_many_have_them() -> None:
    model = Model(spec=_spec(True, (4, None, 4, 4), MlpSpec(64, "silu"), MOE, MOE, MOE))
    rows = explain_phase(model.spec, (1, 9), phases(model, 7, 3)[1, 9], this_machine(Machine(1e9, 5e9)))
    shapes = {row[2:].partition("[")[0].strip(): row for row in rows[2:-1]}
    for part, words in {
        "w_q": "[1 32] [32 32] x 4 ", "w_up": "[1 32] [32 64] x 1 ", "router": "[1 32] [32 8] x 3 ",
        "experts.w_up": "[2 32] [32 16] 2 of 8 x 3 ", "shared.w_down": "[1 24] [24 32] x 3 ",
        "attention 4": "[1 4 8] [4 2 8] x 3 ", "attention": "[1 4 8] [10 2 8] x 1 ", "head": "[1 32] [32 96] ",
    }.items():
        assert words in shapes[part]


def test_a_mixture_says_which_experts_are_read() -> None:
    model = Model(spec=_spec(True, (None,), MOE))
    model_line, layers, weights, experts, _ = describe(model, Machine(1e9, 5e9), 2)
    assert "of 8 experts" in layers and model_line.startswith("model: llama, 1 layers of 32")
    total, active = parameters(model.spec)
    assert weights.startswith(f"weights: {total / 1e6:.1f} M, {active / 1e6:.1f} M of which a token meets, in ")
    whole = 8 * 3 * 16 * 32 * 4 / 1e6
    step, most = f"a decode step reads {whole / 4:.1f} MB, 2 in a layer", f"reach 3.5 of 8: {whole * 3.5 / 8:.1f} MB"
    assert experts == f"experts: {whole:.1f} MB, of which {step}; 2 tokens of a prompt {most}"


def test_a_line_is_fitted_by_least_squares() -> None:
    intercept, slope = fit_line([(0.0, 1.0), (1.0, 2.0), (2.0, 6.0)])
    assert intercept == pytest.approx(0.5) and slope == pytest.approx(2.5)
    assert fit_line([(4.0, 1.0), (4.0, 3.0)]) == (2.0, 0.0)  # as of a window that holds no more than one token


def test_explain_speaks_of_the_model_the_phases_and_the_machine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", model, "the cat", "-n", "8", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begins = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert begins == ["model", "layers", "weights", "machine", "prefill", "decode", "memory", "time"]
    assert sum("attention" in line for line in lines) == 2


@pytest.mark.parametrize("context", [2, 3, 4, 16, 17, 18])
def test_a_small_context_is_explained_unless_it_has_no_decode_step(
    base: str, context: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["-m", base, "t", "--ctx-size", str(context), "--explain"])
    out, err = capsys.readouterr()
    assert (code, "ms a token" in out) == ((2, False) if context < 3 else (0, True))
    assert context > 2 or err.endswith("a context of 2 leaves no decode step to measure: it takes 3 tokens\n")


@pytest.mark.parametrize("flags", [["--draft-model", "ngram"], ["--verify"]])
@pytest.mark.parametrize("asked", [["--explain"], ["--plot", "a.png"]])
def test_what_gives_no_answer_takes_no_flag_of_answers(
    flags: list[str], asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["t", *asked, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and flags[0] in err and asked[0] in err and err.count("\n") == 1
