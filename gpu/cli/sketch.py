"""--explain of a model without weights: random:NAME, counted from its config, on this machine and on an H100."""

import argparse
import os
from dataclasses import dataclass

from gpu.cli.answering import check_sampling
from gpu.cli.costs import describe, explain_phase, phases
from gpu.executor.plan import CHUNK
from gpu.explain import Stored, stored, this_machine
from gpu.machine import Machine
from refimpl.bottleneck.roofline import DEVICES, Device
from refimpl.bottleneck.serving import kv_bytes_per_token, kv_bytes_read, phase_seconds, serve, weight_bytes
from refimpl.contract import UsageError, host
from refimpl.files.tokenizer import Tokenizer
from refimpl.model import Source, open_model
from refimpl.models.spec import ModelSpec

__all__ = ["Sketch", "check_room", "explain_sketch", "sketch"]

_FORMATS = ("bfloat16", "float8", "q8_0", "q4_k")
_USERS = (1, 32)
_H100 = DEVICES["H100"]


@dataclass(frozen=True)
class Sketch:
    """What is known of a model whose weights were not made."""

    source: Source
    weights: dict[str, Stored]
    context: int

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.source.tokenizer


@host
def sketch(options: argparse.Namespace) -> Sketch:
    """Open the model that the flags name without reading a weight."""
    source = open_model(options.model)
    weights = stored(source.weights, None if options.dtype == "auto" else options.dtype)
    model = Sketch(source, weights, options.ctx_size or source.spec.max_positions)
    check_sampling(options, model)
    return model


@host
def check_room(model: str) -> None:
    """Refuse to make the weights of a model that would take more than three quarters of this machine's memory."""
    held = sum(tensor.nbytes for tensor in open_model(model).weights.values())
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if held > 0.75 * room:
        sizes = f"{held / 1e9:.1f} GB of weights, and this machine has {room / 1e9:.1f} GB of memory"
        raise UsageError(f"{model} has {sizes}: --explain counts without making them")


def _memory(spec: ModelSpec, tokens: int) -> list[str]:
    """Say what weights and cache take in several formats, by 10^9 bytes."""
    held = {name: sum(weight_bytes(spec, name).values()) / 1e9 for name in _FORMATS}
    experts = sum(size for name, size in weight_bytes(spec, "mxfp4").items() if ".experts." in name)
    rest = sum(size for name, size in weight_bytes(spec, "bfloat16").items() if ".experts." not in name)
    mixed = f"; {(experts + rest) / 1e9:.2f} GB with experts in mxfp4 and the rest in bfloat16" if experts else ""
    most, windows = spec.max_positions, any(mixer.window or mixer.chunk for mixer in spec.mixers)
    cache = {count: kv_bytes_read(spec, 1, count - 1) / 1e9 for count in (tokens, most)}
    return [
        "memory: weights " + ", ".join(f"{size:.2f} GB in {name}" for name, size in held.items()) + mixed,
        f"cache: {kv_bytes_per_token(spec):,} B a token in float16: {cache[tokens]:.3f} GB for {tokens} tokens, "
        f"{cache[most]:.2f} GB for all {most}" + (", where a window keeps what it sees" if windows else ""),
    ]


def _served(spec: ModelSpec, context: int, weights: str) -> list[str]:
    """Say what an H100 gives one user and many at best, if it holds the model."""
    lines = []
    for users in _USERS:
        least = serve(spec, _H100, context=context, batch=users, weights=weights, dtype="bfloat16")
        devices = -(-least.memory // _H100.memory)
        speed = f"first token {1e3 * least.ttft:.1f} ms, then {1e3 * least.tpot:.2f} ms a token, {least.tps:.0f} tok/s"
        place = "one holds it" if devices == 1 else f"the memory of {devices:.0f}"
        lines.append(f"H100, {users} x {context} tokens: {speed} in all; {least.memory / 1e9:.1f} GB, {place}")
    return lines


def _tables(
    model: Sketch, prompt: int, answer: int, device: Device, dtype: str, chunk: int | None
) -> tuple[list[str], float]:
    """Return the tables of both phases on a device, and the least seconds of the last step."""
    costs = phases(model, prompt, answer, dtype, chunk)
    tables = [explain_phase(model.spec, phase, parts, device, dtype, chunk) for phase, parts in costs.items()]
    return [row for table in tables for row in table], phase_seconds(list(costs.values())[-1], device, dtype)


@host
def explain_sketch(model: Sketch, prompt: int, answer: int, limits: Machine) -> list[str]:
    """Return the lines of --explain of a model without weights: nothing is measured but the machine."""
    spec, end = model.spec, prompt + answer
    here, step = _tables(model, prompt, answer, this_machine(limits), "float32", CHUNK)
    there, _ = _tables(model, prompt, answer, _H100, "bfloat16", None)
    return [
        *describe(model, limits, prompt),
        *here,
        f"H100: {_H100.bytes_per_s / 1e12:.2f} TB/s, {_H100.flops['bfloat16'] / 1e12:.0f} TFLOP/s in bfloat16",
        *there,
        *_memory(spec, end),
        f"time: not measured, as {model.source.path} has no weights; this machine's limit is {1e3 * step:.2f} ms "
        f"a token after {end - 1} tokens ({1 / step:.1f} tok/s)",
        *_served(spec, end - 1, model.weights["embedding"].format),
    ]
