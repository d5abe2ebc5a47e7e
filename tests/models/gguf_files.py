"""A golden folder as a GGUF file: what llama.cpp's converter makes of it, written by the gguf library."""

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {  # of gguf, by model_type
    "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3", "olmo2": "olmo2", "olmo3": "olmo2",
    "granite": "granite", "smollm3": "smollm3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe", "gpt_neox": "gptneox",
}  # fmt: skip
KEYS = {
    "block_count": ("num_hidden_layers", "n_layer"), "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"), "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",), "attention.sliding_window": ("sliding_window",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps"),
    "rope.freq_base": ("rope_theta", "rotary_emb_base"),
    "attention.key_length": ("head_dim",), "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",), "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",), "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",), "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",), "rope.freq_base_swa": ("rope_local_base_freq",),
    "attention.scale": ("attention_multiplier",), "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",), "logit_scale": ("logits_scaling",),
    "use_parallel_residual": ("use_parallel_residual",),
}  # fmt: skip
GLM = {
    "expert_shared_count": "n_shared_experts", "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob",
}  # fmt: skip
PAIRED = ("llama", "granite", "smollm3")


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    """Name what the converter writes of a config."""
    arch = ARCHITECTURES[config["model_type"]]
    found = {key: next((config[name] for name in names if name in config), None) for key, names in KEYS.items()}
    meta = {key: value for key, value in found.items() if value is not None}
    head_dim = config.get("head_dim", meta["embedding_length"] // meta["attention.head_count"])
    part = config.get("partial_rotary_factor", config.get("rotary_pct", 1.0))
    meta |= {} if arch in ("gpt2", "gemma2", "gemma3") else {"rope.dimension_count": int(head_dim * part)}
    if arch == "glm4moe":
        meta |= {key: config[name] for key, name in GLM.items()} | {"expert_gating_func": 2}
    if arch == "gpt-oss":
        meta["expert_feed_forward_length"] = config["intermediate_size"]
    if config["model_type"] == "olmo3":
        meta["attention.sliding_window_pattern"] = [(i + 1) % 4 != 0 for i in range(meta["block_count"])]
        meta["rope.freq_base_swa"] = 5e5  # that of the layers that slide, where transformers reads such a config
    meta |= scaling_of(config)
    general = {"general.architecture": arch, "tokenizer.ggml.eos_token_id": 2}
    return general | {f"{arch}.{key}": value for key, value in meta.items()}


def scaling_of(config: dict[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        stretch = np.log(config["max_position_embeddings"] / original) / np.log(original)
        attention = {"rope.scaling.attn_factor": float(np.sqrt(1 + stretch))}
        return attention | {"rope.scaling.original_context_length": original}
    if kind not in ("linear", "yarn"):
        return {}
    found = {"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]}
    names = {"original_context_length": "original_max_position_embeddings", "yarn_attn_factor": "attention_factor"}
    names |= {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    return found | {f"rope.scaling.{key}": scaling[name] for key, name in names.items() if name in scaling}


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder rows as llama.cpp's converter does: a head's halves become pairs."""
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    assert ml_dtypes.bfloat16  # known to safetensors once the module is here
    return {name: weight.astype(np.float32) for name, weight in load_file(folder / "model.safetensors").items()}


def tensors_of(folder: Path, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrange and name the tensors as the converter does."""
    arch, kind = ARCHITECTURES[config["model_type"]], config["model_type"]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    table, out = gguf.get_tensor_name_map(number, layers), dict[str, np.ndarray]()
    for name, weight in arranged(read_tensors(folder), config).items():
        if arch in PAIRED and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            weight = interleave(weight, heads)
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            weight = weight.T
        theirs = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        out[theirs] = np.ascontiguousarray(weight.squeeze())
    return out | frequencies(config)


def arranged(tensors: dict[str, np.ndarray], config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Stack experts and take apart what gpt-oss and GPT-NeoX keep in turn."""
    out, experts = dict[str, np.ndarray](), dict[str, dict[int, np.ndarray]]()
    for name, weight in tensors.items():
        if ".experts." in name and name.split(".experts.")[1][0].isdigit():
            room, rest = name.split(".experts.")
            number, _, part = rest.partition(".")
            room = room.replace("model.", "").replace("block_sparse_moe", "feed_forward") if "sparse" in room else room
            experts.setdefault(f"{room}.experts.{part}", {})[int(number)] = weight
        elif "experts.gate_up_proj" in name:
            both = weight if name.endswith("bias") else weight.swapaxes(-1, -2)
            kind = "bias" if name.endswith("bias") else "weight"
            for i, part in enumerate(("gate_proj", "up_proj")):
                out[f"{name.split('gate_up_proj')[0]}{part}.{kind}"] = both[:, i::2]
        elif name.endswith("experts.down_proj_bias"):
            out[name.replace("_bias", ".bias")] = weight
        elif name.endswith("experts.down_proj"):
            out[f"{name}.weight"] = weight.swapaxes(-1, -2)
        elif "query_key_value" in name:
            heads = config["num_attention_heads"]
            out[name] = weight.reshape(heads, 3, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)
        else:
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            out[name + ".weight" * name.endswith("sinks")] = weight
    return out | {name: np.stack([parts[i] for i in sorted(parts)]) for name, parts in experts.items()}


def frequencies(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Tabulate what rotations are divided by: Llama 3's rope_freqs, Phi-3's factors."""
    scaling = config.get("rope_scaling") or {}
    if "long_factor" in scaling:
        return {f"rope_factors_{key}.weight": np.float32(scaling[f"{key}_factor"]) for key in ("long", "short")}
    if scaling.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    waves = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] / waves - low) / (high - low)
    factors = 1 / ((1 - np.clip(smooth, 0, 1)) / scaling["factor"] + np.clip(smooth, 0, 1))
    return {"rope_freqs.weight": np.float32(factors)}


def write(folder: Path, path: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a golden folder as a GGUF file; ``more`` are further metadata."""
    config = json.loads((folder / "config.json").read_text())
    metadata = metadata_of(config) | (more or {})
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "array"
        kind = "float32" if key.endswith("freq_base") else {int: "uint32", float: "float32"}.get(type(value), kind)
        getattr(writer, f"add_{kind}")(key, value)
    for name, tensor in tensors_of(folder, config).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
