"""GGUF files say the same model as the checkpoints that they were made of; what they say and is not read is named."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl
from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_folder
from refimpl.files.gguf import read_gguf
from refimpl.llm.position import rope, rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.families import read_spec, read_weights
from refimpl.models.gguf_names import architectures, gguf_config, gguf_spec, gguf_weights, halves_order
from refimpl.models.spec import AttentionSpec
from refimpl.models.tensor import Tensor
from tests.models.gguf_files import ARCHITECTURES, interleave, write
from tests.models.test_families import DECODERS, GOLDEN, META, answers, config_of, judge

NOT_IN_GGUF = {
    "qwen2_sliding": "GGUF knows of no first layer that slides",
    "qwen3_moe_sparse_step": "GGUF knows of no dense layers among those of this architecture",
    "smollm3_sliding": "GGUF knows of no windows of this architecture",
}
IN_GGUF = [name for name in DECODERS if config_of(name)["model_type"] in ARCHITECTURES and name not in NOT_IN_GGUF]
FLOAT32 = 1e-6  # metadata are float32, and thetas too


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return {name: write(GOLDEN / name, folder / f"{name}.gguf") for name in IN_GGUF}


def tensor_of(array: np.ndarray) -> Tensor:
    return Tensor(array.dtype.name, array.shape, array)


def test_every_architecture_is_written():
    assert set(architectures()) == {ARCHITECTURES[config_of(name)["model_type"]] for name in IN_GGUF}


@pytest.mark.parametrize("name", IN_GGUF)
def test_file_gives_the_logits_of_its_checkpoint(name: str, files: dict[str, Path]):
    model, expected = refimpl.load(str(files[name])), answers(name)
    for key, ids in expected.items():
        if key.endswith("input_ids"):
            logits = key.replace("input_ids", "logits")
            allowed = META[name]["tolerances"][logits]
            got = np.stack([model.logits(row) for row in ids])
            judge(logits, got, expected[logits], allowed["max_abs"], allowed["rel_l2"])
    judge_state = model.hidden_states(expected["input_ids"][0])[-1]
    most = 10 * META[name]["tolerances"]["logits"]["rel_l2"]
    judge("state", judge_state, expected["hidden_states"][-1], most * np.abs(judge_state).max(), most)


@pytest.mark.parametrize("name", IN_GGUF)
def test_weights_are_those_of_the_checkpoint(name: str, files: dict[str, Path]):
    config, tensors = read_folder(GOLDEN / name)
    spec = read_spec(config)
    metadata, found = read_gguf(files[name])
    weights = gguf_weights(metadata, found, gguf_spec(metadata, found))
    for key, tensor in read_weights(tensors, spec).items():
        stored = tensor.read() + (spec.gain_offset if key.endswith(".gain") else 0)
        np.testing.assert_array_equal(weights[key].read(), stored, err_msg=key)


@pytest.mark.parametrize("name", IN_GGUF)
def test_spec_is_that_of_the_checkpoint(name: str, files: dict[str, Path]):
    """Numbers are float32 in a file, and tables of factors stand for scalings; all else is equal."""
    spec, found = read_spec(config_of(name)), gguf_spec(*read_gguf(files[name]))
    assert found.family == spec.family and found.num_layers == spec.num_layers
    assert found.norm_eps == pytest.approx(spec.norm_eps, rel=FLOAT32) and found.gain_offset == 0
    for mine, theirs in zip(spec.layers, found.layers, strict=True):
        assert theirs.norms == mine.norms
        assert replace(theirs.network, **rounded(mine.network)) == mine.network
        mixer = replace(theirs.mixer, rope=mine.mixer.rope, **rounded(mine.mixer))
        assert mixer == mine.mixer and effective_scale(theirs.mixer) == pytest.approx(effective_scale(mine.mixer))
        assert (theirs.mixer.rope is None) == (mine.mixer.rope is None)


def rounded(part: Any) -> dict[str, Any]:
    return {key: getattr(part, key) for key in ("scale", "softcap", "limit", "routing") if hasattr(part, key)}


def effective_scale(mixer: AttentionSpec) -> float:
    return mixer.head_dim**-0.5 if mixer.scale is None else mixer.scale


def written(name: str, path: Path, more: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return read_gguf(write(GOLDEN / name, path / "model.gguf", more))


@pytest.mark.parametrize("name", IN_GGUF)
def test_metadata_that_is_not_understood_is_refused_by_name(name: str, files: dict[str, Path]):
    metadata, tensors = read_gguf(files[name])
    arch = metadata["general.architecture"]
    for key, value in (("twist_factor", 0.5), ("attention.max_alibi_bias", 8.0), ("attention.causal", False)):
        with pytest.raises(CheckpointError, match=key) as refusal:
            gguf_config(metadata | {f"{arch}.{key}": value}, tensors)
        assert "\n" not in str(refusal.value)
    off = {f"{arch}.twist_factor": 0, f"{arch}.attention.causal": True, "other.twist_factor": 0.5}
    assert gguf_config(metadata | off, tensors) == gguf_config(metadata, tensors)


@pytest.mark.parametrize("name", IN_GGUF)
def test_every_missing_tensor_is_refused_by_name(name: str, files: dict[str, Path]):
    metadata, tensors = read_gguf(files[name])
    spec = gguf_spec(metadata, tensors)
    optional = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    for lost in tensors.keys() - optional:
        others = {other: kept for other, kept in tensors.items() if other != lost}
        with pytest.raises(CheckpointError, match=f"tensor {lost} is missing"):
            gguf_weights(metadata, others, spec)
    more = {**tensors, "blk.0.twist.weight": tensors["output_norm.weight"]}
    with pytest.raises(CheckpointError, match=r"tensor blk.0.twist.weight is not part"):
        gguf_weights(metadata, more, spec)


def test_experts_may_have_tensors_of_their_own(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["mixtral"])
    apart = {name: tensor for name, tensor in tensors.items() if "_exps" not in name}
    for name in tensors.keys() - apart.keys():
        parts = [tensors[name].part(e) for e in range(tensors[name].shape[0])]
        apart |= {name.replace("_exps", f".{e}"): part for e, part in enumerate(parts)}
    same(metadata, tensors, apart)


@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo2"])
def test_projections_may_be_stacked(name: str, files: dict[str, Path]):
    metadata, tensors = read_gguf(files[name])
    stacked = {key: tensor for key, tensor in tensors.items() if not re.search(r"attn_[qkv]\.", key)}
    for key in (key for key in tensors if ".attn_q." in key):
        three = [tensors[key.replace("attn_q", f"attn_{letter}")].read() for letter in "qkv"]
        stacked[key.replace("attn_q", "attn_qkv")] = tensor_of(np.concatenate(three))
    assert len(stacked) < len(tensors)
    same(metadata, tensors, stacked)


def test_gates_of_experts_may_be_stacked_on_what_they_gate(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["qwen3_moe"])
    stacked = {name: tensor for name, tensor in tensors.items() if "gate_exps" not in name and "up_exps" not in name}
    for i in range(2):
        pair = [tensors[f"blk.{i}.ffn_{part}_exps.weight"].read() for part in ("gate", "up")]
        stacked[f"blk.{i}.ffn_gate_up_exps.weight"] = tensor_of(np.concatenate(pair, axis=1))
    same(metadata, tensors, stacked)


def test_layers_that_guess_further_tokens_are_left_out(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["glm4_moe"])
    further = {key.replace("blk.1.", "blk.2."): tensor for key, tensor in tensors.items() if key.startswith("blk.1.")}
    further["blk.2.nextn.eh_proj.weight"] = tensors["output_norm.weight"]
    more = metadata | {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    assert gguf_spec(more, tensors | further) == gguf_spec(metadata, tensors)
    same(more, tensors, tensors | further)


def same(metadata: dict[str, Any], tensors: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    spec = gguf_spec(metadata, others)
    assert spec == gguf_spec(metadata, tensors)
    found = gguf_weights(metadata, others, spec)
    for key, tensor in gguf_weights(metadata, tensors, spec).items():
        np.testing.assert_array_equal(found[key].read(), tensor.read(), err_msg=key)


@pytest.mark.parametrize(("name", "period"), [("gemma3_text", 2), ("gpt_oss", 3), ("olmo3", [True, True, False, True])])
def test_a_pattern_says_which_layers_slide(name: str, period: Any, files: dict[str, Path]):
    metadata, tensors = read_gguf(files[name])
    arch = metadata["general.architecture"]
    spec = gguf_spec(metadata | {f"{arch}.attention.sliding_window_pattern": period}, tensors)
    marks = period if isinstance(period, list) else [(i + 1) % period != 0 for i in range(spec.num_layers)]
    assert [mixer.window is not None for mixer in spec.mixers] == marks


@pytest.mark.parametrize(("name", "layers", "scalar"), [("gemma2", 46, 12), ("gemma3_text", 62, 10), ("gemma2", 45, 8)])
def test_scores_of_the_largest_gemma_are_divided_by_the_width_of_heads(
    name: str, layers: int, scalar: int, files: dict[str, Path]
):  # fmt: skip
    metadata, tensors = read_gguf(files[name])
    arch = metadata["general.architecture"]
    more = {f"{arch}.{key}": value for key, value in (("block_count", layers), ("attention.key_length", 8))}
    spec = gguf_spec(metadata | more | {f"{arch}.attention.value_length": 8}, tensors)
    assert spec.mixers[0].scale == pytest.approx(scalar**-0.5)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_order_of_halves_turns_pairs_into_halves(num_heads: int, pairs: int, seed: int):
    random = np.random.default_rng(seed)
    cos, sin = rope_table(np.arange(3), rope_frequencies(2 * pairs)[0], dtype=np.float64)
    x = random.standard_normal((3, num_heads, 2 * pairs))
    order = halves_order(num_heads, 2 * pairs)
    turned = rope(x, cos, sin, interleaved=True).reshape(3, -1)[:, order]
    halves = rope(x.reshape(3, -1)[:, order].reshape(x.shape), cos, sin)
    np.testing.assert_allclose(turned, halves.reshape(3, -1), atol=1e-14)


def test_rows_of_blocks_are_moved_whole(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["llama"])
    for part, rows in (("attn_q", 32), ("attn_k", 16)):
        data = np.random.default_rng(rows).integers(0, 255, (rows, FORMATS["q4_1"].bytes), np.uint8)
        tensors[f"blk.0.{part}.weight"] = Tensor("q4_1", (rows, 32), data)
    weights = gguf_weights(metadata, tensors, gguf_spec(metadata, tensors))
    for part, theirs, heads in (("w_q", "attn_q", 4), ("w_k", "attn_k", 2)):
        tensor = weights[f"layers.0.{part}"]
        assert tensor.format == "q4_1"
        np.testing.assert_array_equal(interleave(tensor.data, heads), tensors[f"blk.0.{theirs}.weight"].data)


def read_rope(more: dict[str, Any], files: dict[str, Path], factors: dict[str, list[float]] | None = None) -> Any:
    metadata, tensors = read_gguf(files["mixtral"])  # heads of 8 dimensions, theta 200
    own = {f"llama.{key}": value for key, value in more.items()}
    tables = {name: tensor_of(np.float32(x)) for name, x in (factors or {}).items()}
    (found,) = gguf_spec(metadata | own, tensors | tables).ropes
    return rope_frequencies(found.dim, found.theta, scaling=found.scaling, seq_len=64, **dict(found.params))


def test_scalings_of_the_metadata(files: dict[str, Path]):
    plain, _ = rope_frequencies(8, 200.0)
    np.testing.assert_allclose(read_rope({}, files)[0], plain)
    np.testing.assert_allclose(read_rope({"rope.freq_base": 100.0}, files)[0], rope_frequencies(8, 100.0)[0])
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    np.testing.assert_allclose(read_rope(linear, files)[0], plain / 4)
    np.testing.assert_allclose(read_rope({"rope.scale_linear": 2.0}, files)[0], plain / 2)
    stretched, factor = read_rope({}, files, {"rope_freqs.weight": [1.0, 8.0, 2.0, 4.0]})
    np.testing.assert_allclose(stretched, plain / [1, 8, 2, 4])
    assert factor == 1.0


def test_yarn_of_the_metadata(files: dict[str, Path]):
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    expected = rope_frequencies(8, 200.0, scaling="yarn", factor=4.0, original_max_position_embeddings=16)
    np.testing.assert_allclose(read_rope(yarn, files)[0], expected[0])
    assert read_rope(yarn, files)[1] == expected[1]
    assert read_rope(yarn | {"rope.scaling.attn_factor": 0.5}, files)[1] == pytest.approx(expected[1] / 2)
    assert read_rope(yarn | {"rope.scaling.yarn_attn_factor": 1.5}, files)[1] == 1.5


def test_ends_of_the_metadata(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["llama"])
    more = metadata | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eot_token_id": 7}
    spec = gguf_spec(more, {name: tensor for name, tensor in tensors.items() if name != "output.weight"})
    assert (spec.bos_id, spec.eos_ids, spec.tied_embeddings) == (1, (2, 7), True)


@pytest.mark.parametrize(
    ("message", "name", "more"),
    [
        ("'mamba' is not supported; supported: gemma2", "llama", {"general.architecture": "mamba"}),
        ("expert_weights_scale", "mixtral", {"llama.expert_weights_scale": 2.0}),
        ("differs between layers", "llama", {"llama.attention.head_count": [4, 2]}),
        ("rotating 4 of 8 dimensions in pairs", "llama", {"llama.rope.dimension_count": 4}),
        ("rotating 4 of 6 dimensions in pairs", "smollm3", {"smollm3.rope.dimension_count": 4}),
        ("values of 16 beside keys of 8", "llama", {"llama.attention.value_length": 16}),
        ("longrope, default, su, not 'ntk'", "mixtral", {"llama.rope.scaling.type": "ntk"}),
        ("must list 4 factors", "mixtral", {"llama.rope.scaling.type": "longrope"}),
        ("embedding_length", "llama", {"llama.embedding_length": None}),
        ("embedding_length", "llama", {"llama.embedding_length": "wide"}),
        ("expert_gating_func must be 2, not 1", "glm4_moe", {"glm4moe.expert_gating_func": 1}),
        ("rope.scaling.finetuned must be True", "granite", {"granite.rope.scaling.finetuned": False}),
        ("num_hidden_layers must be an integer from 1", "glm4_moe", {"glm4moe.nextn_predict_layers": 2}),
        ("layer_types must hold 4", "olmo3", {"olmo2.attention.sliding_window_pattern": [True]}),
    ],
)
def test_what_is_refused_is_named(message: str, name: str, more: dict[str, Any], files: dict[str, Path]):
    metadata, tensors = read_gguf(files[name])
    with pytest.raises(CheckpointError) as refusal:
        gguf_spec(metadata | more, tensors)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_off_values_are_harmless(files: dict[str, Path]):
    metadata, tensors = read_gguf(files["gpt2"])
    off = {"gpt2.expert_count": 0, "gpt2.rope.scaling.finetuned": False, "gpt2.attention.head_count": [4, 4]}
    assert gguf_spec(metadata | off, tensors) == gguf_spec(metadata, tensors)
    assert json.loads(json.dumps(gguf_config(metadata, tensors))) == gguf_config(metadata, tensors)
