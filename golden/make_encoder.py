"""python -m golden.make_encoder FOLDER: a small encoder or encoder-decoder, and what transformers answers with it.

FOLDER holds a config.json whose ``architectures`` names the class. Beside it are written model.safetensors (random
weights, in bfloat16), expected.npz, meta.json and config.v5.json. The arrays in.NAME of expected.npz are what the model
is given, out.NAME its float32 answers; out.NAME + out.NAME_lo are those in float64. Their difference is the noise of
float32, and ten times that the tolerance. Nothing here knows refimpl or gpu.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from golden.make_family import Widened

__all__ = ["main", "make"]

_SEED, _TOLERANCE, _GREEDY, _ATTEMPTS = 20260101, 10, 12, 40
_OUTPUTS = (
    "last_hidden_state", "pooler_output", "text_embeds", "logits", "prediction_logits", "seq_relationship_logits",
    "encoder_last_hidden_state",
)  # fmt: skip


def _build(config: Mapping[str, Any], dtype: Any = torch.float32) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        known = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config["architectures"][0])
    known._attn_implementation = "eager"
    return kind(known).to(dtype).eval()


def _randomise(model: Any, generator: torch.Generator) -> None:
    """Give every weight numbers that show; those that bfloat16 has, as they are stored so."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            value = (1 if "norm" in name.lower() and name.endswith("weight") else 0) + 0.3 * noise
        elif "embed" in name or "shared" in name:
            value = (0.5 if "position" in name or "type" in name else 1.0) * noise
        elif "relative_attention_bias" in name:
            value = noise
        else:
            value = 1.3 * noise / (3 if "SelfAttention.q" in name else 1) / weight.shape[-1] ** 0.5
        weight.data.copy_(value.to(torch.bfloat16))
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.copy_(torch.randn(bias.shape, generator=generator).to(torch.bfloat16))


def _inputs(config: Mapping[str, Any], model: Any, seed: int) -> dict[str, Any]:
    """Draw three texts, of which two are padded, on the right; the ids of padding and ends stand where they belong."""
    random, length = np.random.default_rng(seed), 14
    ids = random.integers(5, config["vocab_size"] - 3, (3, length))
    lengths, pad = np.array([length, 9, 4]), config.get("pad_token_id", 0)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    ends = config.get("eos_token_id")
    if ends is not None:
        ids[np.arange(3), lengths - 1] = config["vocab_size"] - 1 if ends == 2 else ends
    inputs = {"input_ids": np.where(mask == 1, ids, pad), "attention_mask": mask}
    if config.get("type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (np.arange(length) >= 3).astype(np.int64) * mask
    if config["model_type"] == "clip_text_model":
        del inputs["attention_mask"]
    if "ConditionalGeneration" in config["architectures"][0]:
        answer = random.integers(5, config["vocab_size"], (3, 8))
        answer[:, 0] = config["decoder_start_token_id"]
        inputs["decoder_input_ids"] = answer
    return inputs


def _answers(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: torch.as_tensor(x) for name, x in inputs.items()}
    with torch.no_grad():
        outputs = model(**given, output_hidden_states=True)
    found = {name: outputs[name].numpy() for name in _OUTPUTS if outputs.get(name) is not None}
    if "prediction_logits" in found:
        found["logits"] = found.pop("prediction_logits")
    states = outputs.get("decoder_hidden_states" if "decoder_input_ids" in inputs else "hidden_states")
    if "decoder_input_ids" in inputs:
        found["decoder_hidden_states_first"] = np.stack([x[0].numpy() for x in states])
    elif model.config.model_type != "clip_text_model":  # whose last state stands before the final norm
        found["hidden_states_first"] = np.stack([x[0].numpy() for x in states])
    return found


def _greedy(model: Any, inputs: Mapping[str, Any]) -> tuple[Any, float]:
    """Answer every text by its likeliest tokens; also return by how much the second is less likely, at the least."""
    given = {name: torch.as_tensor(x) for name, x in inputs.items()}
    ids, least = given.pop("decoder_input_ids")[:, :1], float("inf")
    with torch.no_grad():
        for _ in range(_GREEDY):
            logits = model(**given, decoder_input_ids=ids, use_cache=False).logits[:, -1]
            best, second = logits.topk(2).values.T
            least, ids = min(least, float((best - second).min())), torch.cat([ids, logits.argmax(-1)[:, None]], 1)
    return ids[:, 1:].numpy(), least


def _judged(config: Mapping[str, Any], model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answers with their float64 remainders, and the tolerance of each."""
    plain, arrays, tolerances = _answers(model, inputs), {f"in.{name}": x for name, x in inputs.items()}, {}
    wide = _build(config, torch.float64)
    wide.load_state_dict({name: x.double() if x.is_floating_point() else x for name, x in model.state_dict().items()})
    torch.set_default_dtype(torch.float64)
    with Widened():
        truth = _answers(wide, inputs)
    torch.set_default_dtype(torch.float32)
    for name, x in plain.items():
        low = (truth[name] - x.astype(np.float64)).astype(np.float32)
        arrays |= {f"out.{name}": x, f"out.{name}_lo": low}
        relative = float(np.linalg.norm(low.astype(np.float64)) / np.linalg.norm(truth[name]))
        tolerances[name] = {"max_abs": _TOLERANCE * float(np.abs(low).max()), "rel_l2": _TOLERANCE * relative}
    return arrays, tolerances


def make(folder: Path) -> float | None:
    """Make a folder's checkpoint and answers; return by how much every greedy token leads, if there are any."""
    config, least = json.loads((folder / "config.json").read_text()), None
    for attempt in range(_ATTEMPTS):
        model = _build(config)
        _randomise(model, torch.Generator().manual_seed(_SEED + attempt))
        inputs = _inputs(config, model, _SEED + attempt)
        arrays, tolerances = _judged(config, model, inputs)
        if "decoder_input_ids" not in inputs:
            break
        arrays["out.greedy"], least = _greedy(model, inputs)
        varied = min(len(set(row)) for row in arrays["out.greedy"].tolist())
        if least > 20 * tolerances["logits"]["max_abs"] and varied > _GREEDY // 3:
            break
    meta = {
        "kind": "encoder" if least is None else "seq2seq", "name": folder.name, "cls": type(model).__name__,
        "seed": _SEED, "attempt": attempt, "tolerances": tolerances, "greedy_min_margin": least,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        "outputs": {k[4:]: list(x.shape) for k, x in arrays.items() if k[:4] == "out." and not k.endswith("_lo")},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        model.to(torch.bfloat16).save_pretrained(place)
        version_5 = json.loads((Path(place) / "config.json").read_text()) | {"dtype": "float32"}
        (folder / "model.safetensors").write_bytes((Path(place) / "model.safetensors").read_bytes())
    np.savez_compressed(folder / "expected.npz", **arrays)
    (folder / "config.v5.json").write_text(json.dumps(version_5, indent=1, sort_keys=True) + "\n")
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return least


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one folder, or several."""
    parser = argparse.ArgumentParser(prog="python -m golden.make_encoder", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("folder", type=Path, nargs="+", metavar="FOLDER", help="it holds config.json")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for folder in parser.parse_args(arguments).folder:
        print(folder, make(folder), sum(path.stat().st_size for path in folder.iterdir()), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
