"""python -m golden.make_family FOLDER: a small checkpoint of a model family, and what transformers answers with it.

FOLDER holds a config.json. Beside it are written model.safetensors (random weights, in bfloat16), expected.npz,
meta.json, and config.v5.json where transformers 5 spells the config in another way. Nothing here knows refimpl or gpu.

An answer is the float32 one; NAME + NAME_lo is that in float64, for which every float32 in the code of transformers is
replaced while it runs. Their difference is the noise of float32, and ten times that the tolerance. The command fails
where a key of the config, a weight or an expert does not show in the logits, or where a greedy token is nearly a tie.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from golden.config_changes import changed_configs

__all__ = ["Widened", "main", "make"]

_SEED, _ATTEMPTS = 20240611, 40
_LENGTHS = {"": 24, "extra9_": 9}  # of the prompts, two of each
_GREEDY, _MARGIN = 12, 0.003  # tokens, and by how much each leads at least
_TOLERANCE = 10  # times the noise
_SHOWS = 10  # times the tolerance: what a changed key moves at least
class Widened(TorchFunctionMode):
    """While it is entered, every float32 that the code asks for is float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = {torch.float32: torch.float64, torch.float: torch.float64}
        args = tuple(wide.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args)
        named = {key: wide.get(x, x) if isinstance(x, torch.dtype) else x for key, x in (kwargs or {}).items()}
        func = torch.Tensor.double if func is torch.Tensor.float else func
        result = func(*args, **named)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            raise TypeError(f"{func} gave float32 within the float64 model")
        return result


def _build(config: Mapping[str, Any], state: Mapping[str, Any] | None = None, dtype: Any = torch.float32) -> Any:
    """Make the model of a config, with weights where they are given; ValueError where they do not fit."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        known = transformers.AutoConfig.from_pretrained(folder)
    settings: dict[str, Any] = {"attn_implementation": "eager", "dtype": dtype, "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_config(known, **settings).eval()
    if state is not None:
        own = model.state_dict()
        if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in state.items()}:
            raise ValueError("other weights")
        model.load_state_dict({name: x.to(dtype) for name, x in state.items()})
    return model


def _randomise(model: Any, generator: torch.Generator) -> None:
    """Give every weight numbers that show: matrices of gain 1, sharp queries and keys, gains and biases that differ."""
    names = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if "correction" in n}
    limit = getattr(model.config, "swiglu_limit", None)
    for name, weight in names.items():
        noise = torch.randn(weight.shape, generator=generator)
        fan = model.config.hidden_size if "down" not in name else weight.shape[-1]
        if "norm" in name or ".ln_" in name:
            value = weight + 0.3 * noise
        elif weight.dim() == 1 or "bias" in name or "sinks" in name:
            value = 0.4 * noise
        elif "embed" in name or "wte" in name or "wpe" in name:
            value = 0.6 * noise / fan**0.5 if model.config.tie_word_embeddings else noise
        else:
            sharp = 1.6 if any(part in name for part in ("q_proj", "k_proj", "c_attn", "qkv", "query_key")) else 1.2
            sharp = limit / 2 if limit and "gate_up" in name else sharp
            value = sharp * noise / fan**0.5
        weight.data.copy_(value.to(torch.bfloat16))


def _logits(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.as_tensor(ids), use_cache=False).logits


def _greedy(model: Any, prompt: Any, cached: bool) -> tuple[Any, Any]:
    """Continue every prompt by its likeliest tokens; also return by how much the second is less likely."""
    ids, new, past, margins = torch.as_tensor(prompt), torch.as_tensor(prompt), None, list[Any]()
    with torch.no_grad():
        for _ in range(_GREEDY):
            answer = model(input_ids=new if cached else ids, past_key_values=past, use_cache=cached)
            past, (best, second) = answer.past_key_values if cached else None, answer.logits[:, -1].topk(2).values.T
            new = answer.logits[:, -1:].argmax(-1)
            ids, margins = torch.cat([ids, new], 1), [*margins, (best - second).numpy()]
    return ids[:, len(prompt[0]) :].numpy(), np.stack(margins, 1)


def _answers(config: Mapping[str, Any], model: Any, prompts: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the model in float32 and in float64."""
    state, answers = model.state_dict(), dict[str, Any]()
    torch.set_default_dtype(torch.float64)
    with Widened():
        wide = _build(config, state, torch.float64)
        truth = {name: _logits(wide, ids).numpy() for name, ids in prompts.items()}
    torch.set_default_dtype(torch.float32)
    for name, ids in prompts.items():
        logits = _logits(model, ids).numpy()
        answers |= {f"{name}input_ids": ids, f"{name}logits": logits}
        answers[f"{name}logits_lo"] = (truth[name] - logits.astype(np.float64)).astype(np.float32)
    answers["greedy"], answers["greedy_margin"] = _greedy(model, prompts[""], True)
    answers["greedy_nocache"], without = _greedy(model, prompts[""], False)
    answers["greedy_margin"] = np.minimum(answers["greedy_margin"], without)
    with torch.no_grad():
        states = model(input_ids=torch.as_tensor(prompts[""][:1]), output_hidden_states=True).hidden_states
    return answers | {"hidden_states": np.stack([x[0].numpy() for x in states])}


def _tolerances(answers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for name in [name for name in answers if name.endswith("logits")]:
        noise, logits = answers[name + "_lo"].astype(np.float64), answers[name].astype(np.float64)
        largest, relative = float(np.abs(noise).max()), float(np.linalg.norm(noise) / np.linalg.norm(logits))
        found[name] = {
            "max_abs": _TOLERANCE * largest, "rel_l2": _TOLERANCE * relative, "noise_max_abs": largest,
            "noise_rel_l2": relative, "output_max": float(np.abs(logits).max()),
        }  # fmt: skip
    return found


def _sensitivity(config: Mapping[str, Any], model: Any, prompts: Mapping[str, Any]) -> dict[str, float | str]:
    """Measure how far each key moves the logits, relative to them; one that changes the weights' shapes cannot lie."""
    before = [_logits(model, ids).double() for ids in prompts.values()]
    moved = dict[str, float | str]()
    for name, others in changed_configs(config):
        shifts = []
        for other in others:
            try:
                changed = _build(other, model.state_dict())
                after = [_logits(changed, ids).double() for ids in prompts.values()]
            except Exception:  # of whatever kind: such a model cannot be, or has other weights
                continue
            shifts += [float((new - old).norm() / old.norm()) for new, old in zip(after, before, strict=True)]
        moved[name] = float(f"{max(shifts):.3g}") if shifts else "other weights"
    return moved


def _dead(model: Any, prompts: Mapping[str, Any]) -> list[str]:
    """List the weights, and the experts, that do not show in the logits."""
    model.zero_grad()
    for ids in prompts.values():
        logits = model(input_ids=torch.as_tensor(ids), use_cache=False).logits
        (logits * torch.sin(torch.arange(logits.numel()).reshape(logits.shape))).sum().backward()
    dead = []
    for name, weight in model.named_parameters():
        slices = weight.grad if weight.dim() == 3 and weight.grad is not None else [weight.grad]
        dead += [f"{name}[{i}]" for i, part in enumerate(slices) if part is None or float(part.abs().max()) == 0]
    model.zero_grad()
    return dead


def _prompts(vocab: int, lengths: Mapping[str, int], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: random.integers(3, vocab, (2, length)) for name, length in lengths.items()}


def make(folder: Path) -> list[str]:
    """Make a folder's checkpoint and answers; return what is wrong with it."""
    config = json.loads((folder / "config.json").read_text())
    original = (config.get("rope_scaling") or {}).get("original_max_position_embeddings")
    original = original or config.get("original_max_position_embeddings")
    lengths = _LENGTHS | ({f"extra{original + 6}_": original + 6} if original and original + 6 > 24 else {})
    for attempt in range(_ATTEMPTS):
        prompts, model = _prompts(config["vocab_size"], lengths, _SEED + attempt), _build(config)
        _randomise(model, torch.Generator().manual_seed(_SEED + attempt))
        tokens, margins = _greedy(model, prompts[""], True)
        varied = min(len(set(row)) for row in tokens.tolist())
        if varied > _GREEDY // 3 and margins.min() > _MARGIN:
            break
    dead, answers = _dead(model, prompts), _answers(config, model, prompts)
    tolerances, margin = _tolerances(answers), float(answers["greedy_margin"].min())
    sensitivity, least = _sensitivity(config, model, prompts), _SHOWS * max(t["rel_l2"] for t in tolerances.values())
    weak = [key for key, shift in sensitivity.items() if isinstance(shift, float) and shift < least]
    meta = {
        "kind": "causal-lm", "name": folder.name, "cls": type(model).__name__, "seed": _SEED, "attempt": attempt,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        "tolerances": tolerances, "greedy_n": _GREEDY, "greedy_min_margin": margin, "greedy_distinct": varied,
        "cached_equals_nocache": bool((answers["greedy"] == answers["greedy_nocache"]).all()),
        "hidden_states": "index 0 = embeddings, last = after the final norm, first prompt only",
        "sensitivity_rel_l2": sensitivity, "weak_sensitivity": weak, "dead_parameters": dead,
    }  # fmt: skip
    _write(folder, config, model, answers, meta)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    same = np.array_equal(_logits(again, prompts[""]).numpy(), answers["logits"])
    wrong = [f"{what} does not show" for what in (*weak, *dead)]
    wrong += [] if margin > _MARGIN else [f"a greedy token leads by {margin} alone"]
    return wrong + ([] if same else ["the file gives other logits than the model that was written"])


def _write(folder: Path, config: Any, model: Any, answers: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        model.to(torch.bfloat16).save_pretrained(place)
        version_5 = json.loads((Path(place) / "config.json").read_text()) | {"dtype": "float32"}
        (folder / "model.safetensors").write_bytes((Path(place) / "model.safetensors").read_bytes())
    load_file(folder / "model.safetensors")
    np.savez_compressed(folder / "expected.npz", **answers)
    (folder / "config.v5.json").write_text(json.dumps(version_5, indent=1, sort_keys=True) + "\n")
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one folder, or several; 1 where something does not show."""
    parser = argparse.ArgumentParser(prog="python -m golden.make_family", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("folder", type=Path, nargs="+", metavar="FOLDER", help="it holds config.json")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.disable_progress_bar()
    folders = parser.parse_args(arguments).folder
    absent = [str(folder) for folder in folders if not (folder / "config.json").is_file()]
    if absent:
        parser.error(f"{absent[0]} has no config.json")
    wrong = {folder: make(folder) for folder in folders}
    for folder, reasons in wrong.items():
        print(f"{folder}: {'; '.join(reasons) or 'made'}")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
