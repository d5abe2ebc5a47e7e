"""What a run took: lines for standard error."""

from collections.abc import Sequence
from typing import Any

from gpu.cli.output import Answer
from gpu.explain import weight_bytes, weight_bytes_read
from gpu.machine import machine, peak_memory
from refimpl.bottleneck.serving import kv_bytes_per_token, kv_bytes_read
from refimpl.contract import host

__all__ = ["bytes_decoded", "statistics"]


@host
def bytes_decoded(model: Any, answers: Sequence[Answer]) -> int:
    """Return the bytes that the decode steps read: weights once a step, and every sequence's keys and values."""
    steps = max(len(answer.ids) - answer.drafted for answer in answers) - 1
    moved = steps * weight_bytes_read(model.weights, model.spec, len(answers))
    for answer in answers:
        own = max(len(answer.ids) - 1, 0)
        moved += own * kv_bytes_read(model.spec, 1, len(answer.prompt_ids) + own // 2, "float32")
    return moved


def _rate(count: float, seconds: float) -> str:
    return f"{count / seconds:.1f}" if seconds > 0 else "-"


@host
def statistics(model: Any, answers: Sequence[Answer], load_s: float) -> list[str]:
    """Return the lines of --stats."""
    held = peak_memory()  # before the machine is measured, which takes memory itself
    ran = [answer for answer in answers if answer.ids]
    lines = [f"load     {load_s:.2f} s"]
    if ran:
        first = max(answer.first for answer in ran)
        prompt_s, decode_s = first - min(answer.begun for answer in ran), max(answer.last for answer in ran) - first
        asked = sum(len(answer.prompt_ids) for answer in ran)
        made = sum(len(answer.ids) for answer in ran) - len(ran)
        ttft_s = first - min(answer.asked for answer in ran)
        speed = f"{_rate(asked, prompt_s)} tok/s, TTFT {ttft_s:.2f} s"
        lines.append(f"prompt   {asked} tokens in {prompt_s:.2f} s: {speed}")
        per_token = f", TPOT {1e3 * decode_s / made * len(ran):.2f} ms" if made else ""
        lines.append(f"decode   {made} tokens in {decode_s:.2f} s: {_rate(made, decode_s)} tok/s{per_token}")
        drafted = sum(answer.drafted for answer in ran)
        if drafted:
            lines.append(f"draft    {drafted} of these tokens were proposed, and judged with others in one pass")
        if made and decode_s:
            read, limit = bytes_decoded(model, ran) / decode_s, machine().bytes_per_s
            share = f"{100 * read / limit:.0f} % of the {limit / 1e9:.1f} GB/s that this machine reads"
            lines.append(f"reads    {read / 1e9:.1f} GB/s, {share}")
    tokens = sum(len(answer.prompt_ids) + len(answer.ids) for answer in answers)
    cache = tokens * kv_bytes_per_token(model.spec, "float32")
    parts = f"weights {weight_bytes(model.weights) / 1e6:.0f} MB, cache {cache / 1e6:.1f} MB"
    lines.append(f"memory   {held / 1e6:.0f} MB at most; {parts}")
    lines.append("stop     " + ", ".join(answer.stop for answer in answers))
    return lines
