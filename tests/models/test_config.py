"""A config.json is read in both spellings, and whatever might change the model is read or refused by name."""

import copy
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_config
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.families import SUPPORTED, read_spec
from refimpl.models.spec import MlpSpec
from tests.models.tiny import GPT2, LLAMA, MORE, PHI3_FACTORS

FAMILIES = Path(__file__).parents[2] / "golden" / "families"
BASIC = {"rope_theta": 500.0, "partial_rotary_factor": 0.5}
SCALINGS = {
    "none": {"type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 2.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 3.0},
    "llama3": {
        "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0],
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALINGS)
def test_both_spellings_say_the_same(kind: str):
    wide = LLAMA | {"model_type": "phi3", "head_dim": 8}
    classic = wide | BASIC | {"rope_scaling": SCALINGS[kind], "torch_dtype": "float16"}
    parameters = {("rope_type" if key == "type" else key): value for key, value in SCALINGS[kind].items()} | BASIC
    version_5 = wide | {"rope_parameters": parameters, "dtype": "float16", "pretraining_tp": 1}
    spec = read_spec(classic)
    assert spec == read_spec(version_5)
    (rope,) = spec.ropes
    assert (rope.scaling, rope.theta, rope.dim) == (kind, 500.0, 4)


def test_lengths_that_a_scaling_implies():
    def read(**more: Any):
        return read_spec(LLAMA | more)

    assert read(rope_scaling=SCALINGS["dynamic"]).max_positions == 128
    assert read(rope_scaling=SCALINGS["yarn"]).max_positions == 64
    assert read(rope_scaling=SCALINGS["yarn"] | {"factor": 8.0}).max_positions == 128
    phi3 = read(model_type="phi3", original_max_position_embeddings=16, rope_scaling=PHI3_FACTORS)
    assert dict(phi3.ropes[0].params)["factor"] == 4.0
    assert phi3.max_positions == 64


def test_old_name_of_longrope():
    renamed = LLAMA | {"model_type": "phi3", "rope_scaling": PHI3_FACTORS | {"type": "su"}}
    assert read_spec(renamed) == read_spec(renamed | {"rope_scaling": PHI3_FACTORS})


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 3}, (3, 3)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None)),
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "qwen2", "sliding_window": 3, "use_sliding_window": False}, (None, None)),
        ({"model_type": "qwen2", "sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1}, (None, 3)),
        ({"model_type": "qwen2", "sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0}, (3, 3)),
        (
            {
                "model_type": "qwen3", "sliding_window": 3, "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (3, None),
        ),
        ({"model_type": "phi3", "sliding_window": 5}, (5, 5)),
        ({}, (None, None)),
    ],
)  # fmt: skip
def test_windows_per_layer(more: dict[str, Any], windows: tuple[int | None, ...]):
    assert tuple(mixer.window for mixer in read_spec(LLAMA | more).mixers) == windows


@pytest.mark.parametrize(
    ("name", "ours"),
    [("silu", "silu"), ("gelu", "gelu_erf"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"),
     ("quick_gelu", "gelu_quick"), ("relu", "relu")],
)  # fmt: skip
def test_names_of_activations(name: str, ours: str):
    assert read_spec(LLAMA | {"hidden_act": name}).layers[0].network.activation == ours
    assert read_spec(GPT2 | {"activation_function": name}).layers[1].network.activation == ours


def test_defaults_of_the_families():
    gpt2 = read_spec(GPT2)
    assert (gpt2.tied_embeddings, gpt2.learned_positions, gpt2.ropes) == (True, True, ())
    assert gpt2.layers[0].network == MlpSpec(48, "gelu_tanh", gated=False, biases=("b_up", "b_down"))
    assert not read_spec(LLAMA).tied_embeddings
    without = {key: value for key, value in LLAMA.items() if key not in ("head_dim", "rms_norm_eps")}
    assert read_spec(without | {"model_type": "qwen3"}).head_dim == 128
    assert read_spec(without | {"model_type": "phi3", "hidden_size": 16}).norm_eps == 1e-5
    assert read_spec(without | {"hidden_size": 16}).norm_eps == 1e-6


@pytest.mark.parametrize(
    ("name", "theta"),  # of configuration_NAME.py in transformers 5.24
    [("llama", 1e4), ("qwen3_moe", 1e4), ("mixtral", 1e6), ("smollm3", 2e6), ("llama4", 5e5), ("gemma2", 1e4),
     ("glm4_moe", 1e4), ("granite", 1e4)],
)  # fmt: skip
def test_theta_where_a_config_states_none(name: str, theta: float):
    without = {key: value for key, value in MORE[name].items() if not key.startswith("rope_")}
    assert {rope.theta for rope in read_spec(without).ropes} == {theta}


def test_what_ends_an_answer_where_a_config_states_nothing(tmp_path: Path):
    for name, ends in (("t5", (1,)), ("bart", (2,))):
        config = json.loads((FAMILIES / name / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "eos_token_id"}))
        assert read_spec(read_config(tmp_path)).eos_ids == ends


def test_ends_are_a_set():
    assert read_spec(LLAMA | {"eos_token_id": [7, 2, 7]}).eos_ids == (2, 7)
    assert read_spec(LLAMA | {"eos_token_id": None}).eos_ids == ()
    assert read_spec(LLAMA | {"bos_token_id": 5}).bos_id == 5


@pytest.mark.parametrize("name", MORE)
def test_unset_keys_are_harmless(name: str):
    more = {"logit_scale": None, "use_mup": False, "adapters": [], "notes": ""}
    assert read_spec(MORE[name] | more) == read_spec(MORE[name])


LENGTH = "max_position_embeddings"
QWEN = {"model_type": "qwen2", "use_sliding_window": True}

REFUSED = [
    ("logit_scale", {"logit_scale": 0.5}),
    ("attention_multiplier", {"attention_multiplier": 0}),
    ("num_experts_per_tok must be an integer from 1 to 4", {"model_type": "mixtral", "num_local_experts": 4,
                                                            "num_experts_per_tok": 5}),
    ("use_sliding_window needs layer_types", {"model_type": "qwen2_moe", "use_sliding_window": True}),
    ("n_group 3 of 8 experts", {"model_type": "glm4_moe", "n_routed_experts": 8, "n_group": 3, "topk_group": 2}),
    ("n_group 4 of 8 experts, the best 1 for 3", {"model_type": "glm4_moe", "n_routed_experts": 8, "n_group": 4,
                                                  "num_experts_per_tok": 3}),
    ("no_rope_layers must hold 2 of 0 and 1", {"model_type": "smollm3", "no_rope_layers": [1]}),
    ("swiglu_alpha must be 1.702, not 2.0", {"model_type": "gpt_oss", "swiglu_alpha": 2.0}),
    ("mlp_only_layers must list", {"model_type": "qwen3_moe", "mlp_only_layers": "all"}),
    ("'use_bidirectional_attention' = True", {"model_type": "gemma3_text", "use_bidirectional_attention": True}),
    ("quantised by 'gptq'", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    ("longrope, default, su, not 'ntk'", {"rope_scaling": {"type": "ntk", "factor": 2.0}}),
    ("mrope_section", {"rope_scaling": {"type": "default", "mrope_section": [1, 1]}}),
    ("factor' is missing", {"rope_scaling": {"type": "linear"}}),
    ("factor must be a number from 1e-06 to 1000000.0, not -1.0", {"rope_scaling": {"type": "linear", "factor": -1.0}}),
    ("low_freq_factor", {"rope_scaling": {"type": "llama3", "factor": 2.0, "original_max_position_embeddings": 8}}),
    ("must list 2 factors", {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
    ("must be an object", {"rope_scaling": "linear"}),
    ("cannot rotate 1 of 4", {"model_type": "phi3", "partial_rotary_factor": 0.25}),
    ("partial_rotary_factor 0.5, but models of this kind turn whole heads", {"partial_rotary_factor": 0.5}),
    ("experts have hidden_act silu or gelu_pytorch_tanh, not relu", {"model_type": "mixtral", "hidden_act": "relu"}),
    (
        "all layers of qwen3_moe slide, or none",
        {"model_type": "qwen3_moe", "use_sliding_window": True, "layer_types": ["full_attention"] * 2},
    ),
    ("attn_logit_softcapping", {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}),
    ("rope_theta must be a number from 2 to 1e+30, not 0.5", {"rope_theta": 0.5}),
    (
        "cannot rotate 2 of 4",
        {"model_type": "phi3", "partial_rotary_factor": 0.5, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    ),
    ("must be at most high_freq_factor", {"rope_scaling": SCALINGS["llama3"] | {"low_freq_factor": 4.5}}),
    (
        "original_max_position_embeddings must be an integer from 2",
        {"model_type": "phi3", "original_max_position_embeddings": 1, "rope_scaling": PHI3_FACTORS},
    ),
    ("factor must be a number from", {"rope_scaling": SCALINGS["yarn"] | {"factor": 2**63}}),
    ("the context that factor makes", {"rope_scaling": {"type": "dynamic", "factor": 1e5}, **{LENGTH: 2**30}}),
    ("each of short_factor must be a number from", {"rope_scaling": PHI3_FACTORS | {"short_factor": [1.0, 0.0]}}),
    ("max_window_layers must be an integer from 0", QWEN | {"max_window_layers": "abc"}),
    ("max_window_layers must be an integer from 0", QWEN | {"max_window_layers": [1]}),
    ("a token id must be an integer below 2^31", {"bos_token_id": 10**400}),
    ("hidden_act must be one of", {"hidden_act": "mish"}),
    ("3 key/value heads do not divide 4", {"num_key_value_heads": 3}),
    ("4 heads do not divide", {"head_dim": None, "hidden_size": 13}),
    ("hidden_size must be an integer", {"hidden_size": "12"}),
    ("hidden_size must be an integer", {"hidden_size": -12}),
    ("hidden_size must be an integer", {"hidden_size": True}),
    ("num_hidden_layers must be an integer", {"num_hidden_layers": 10**9}),
    ("rms_norm_eps must be a number", {"rms_norm_eps": float("nan")}),
    ("attention_bias must be true or false", {"attention_bias": "yes"}),
    ("'vocab_size' is missing", {"vocab_size": None}),
    ("a token id must be an integer", {"eos_token_id": ["</s>"]}),
    ("sliding_window", {"sliding_window": 8}),
    ("layer_types must hold 2", {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"]}),
    (
        "sliding_window is not set",
        {"model_type": "mistral", "sliding_window": None, "layer_types": ["sliding_attention", "full_attention"]},
    ),
]


@pytest.mark.parametrize(("message", "more"), REFUSED, ids=[str(row) for row in range(len(REFUSED))])
def test_what_is_refused_is_named(message: str, more: dict[str, Any]):
    with pytest.raises(CheckpointError) as refusal:
        read_spec(LLAMA | more)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


DAMAGE = [
    None, True, "abc", "", [], [1], {}, {"a": 1}, 0, -1, 1, 2, 0.5, -0.5, 1e-300, 1e300, 2**63, 10**400, -(10**400),
    float("nan"), float("inf"), float("-inf"), [None], [[]], [0.0, 1.0], [float("nan")] * 2, [10**400] * 2,
]  # fmt: skip
WHOLE = MORE | {kind: LLAMA | {"rope_scaling": scaling} for kind, scaling in SCALINGS.items()}
PLACES = [(name, key) for name, config in WHOLE.items() for key in config]
PLACES += [(name, f"rope_scaling.{key}") for name in WHOLE for key in WHOLE[name].get("rope_scaling", ())]
PLACES += [(name, key) for name in ("llama", "qwen2") for key in (*BASIC, "hidden_act", "bos_token_id", "layer_types")]
PLACES += [("gpt2", key) for key in ("n_inner", "layer_norm_epsilon", "activation_function", "scale_attn_weights")]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_damaged_value_is_refused_in_a_line_or_read_as_something_that_runs(name: str, place: str):
    for value in DAMAGE:
        config = copy.deepcopy(WHOLE[name])
        *outer, key = place.split(".")
        (config[outer[0]] if outer else config)[key] = value
        try:
            spec = read_spec(config)
        except CheckpointError as refusal:
            assert "\n" not in str(refusal) and len(str(refusal)) < 400
            continue
        assert 0 <= spec.norm_eps <= 1 and 0 < spec.max_positions < 2**31
        for rope, length in product(spec.ropes, (1, spec.max_positions)):
            inv_freq, factor = rope_frequencies(
                rope.dim, rope.theta, scaling=rope.scaling, seq_len=length, **dict(rope.params)
            )
            assert np.isfinite(inv_freq).all() and (inv_freq > 0).all() and 0 < factor < np.inf


def test_what_gpt2_refuses():
    for message, more in [
        ("scale_attn_weights", {"scale_attn_weights": False}),
        ("scale_attn_by_inverse_layer_idx", {"scale_attn_by_inverse_layer_idx": True}),
        ("5 heads do not divide n_embd 12", {"n_head": 5}),
    ]:
        with pytest.raises(CheckpointError, match=message):
            read_spec(GPT2 | more)


PUBLISHED = {
    "SmolLM2-135M-Instruct": (
        """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_cache": true, "vocab_size": 49152}""",
        {"head_dim": 64, "tied_embeddings": True, "biases": ()},
    ),
    "Llama-3.2-1B": (
        """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256}""",
        {"max_positions": 131072, "eos_ids": (128001,)},
    ),
    "Mistral-7B-v0.1": (
        """{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000}""",
        {"window": 4096, "family": "llama"},
    ),
    "Qwen2.5-0.5B-Instruct": (
        """{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936}""",
        {"window": None, "biases": ("b_q", "b_k", "b_v")},
    ),
    "Qwen3-0.6B": (
        """{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936}""",
        {"qk_norm": "head", "head_dim": 128, "biases": ()},
    ),
    "gpt2": (
        """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}""",
        {"size": 3072, "tied_embeddings": True, "gated": False},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str):
    text, expected = PUBLISHED[name]
    spec = read_spec(json.loads(text))
    places = (spec, spec.layers[-1].mixer, spec.layers[-1].network)
    found = {field: next(getattr(p, field) for p in places if hasattr(p, field)) for field in expected}
    assert found == expected


def test_partly_rotated_phi():
    more = {"partial_rotary_factor": 0.75, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}
    more |= {"head_dim": 8, "sliding_window": 262144, "tie_word_embeddings": True}
    spec = read_spec(LLAMA | {"model_type": "phi3"} | more)
    assert spec.ropes[0].dim == 6


@pytest.mark.parametrize("kind", [None, "rwkv", 3])
def test_unknown_architecture_lists_the_known(kind: Any):
    with pytest.raises(CheckpointError) as refusal:
        read_spec({"model_type": kind})
    assert all(name in str(refusal.value) for name in SUPPORTED)
