"""--explain for pictures: what the operations of one pass cost, counted as they are called."""

import inspect
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from gpu.explain import this_machine
from gpu.machine import machine
from gpu.media.namespace import namespace
from refimpl.bottleneck.cost import cost
from refimpl.bottleneck.roofline import Cost, Device, bound, ridge, seconds
from refimpl.contract import host
from refimpl.media.pipeline import noise_of, picture_of
from refimpl.sizes import sizes

__all__ = ["counting", "explain_picture"]

_DTYPE = "float32"


@host
def counting(total: dict[str, list[Cost]]) -> Any:
    """Return the operations, each of which adds to ``total`` what every call costs."""
    operations = namespace("cpu")

    def counted(name: str) -> Any:
        op = getattr(operations, name)
        signature = inspect.signature(op)

        def call(*args: Any, **named: Any) -> Any:
            arguments = signature.bind(*args, **named).arguments
            result = op(*args, **named)
            total[name].append(cost(name, **(sizes(op, arguments) | _extra(name, arguments, result))))
            return result

        return call

    return SimpleNamespace(**{name: counted(name) for name in operations.__all__})


def _extra(name: str, arguments: dict[str, Any], result: Any) -> dict[str, int]:
    """Return sizes that no array of the arguments has."""
    if name == "conv2d":
        return dict(zip(("out_y", "out_x"), result.shape[1:], strict=True)) | {"groups": arguments.get("groups", 1)}
    if name == "conv3d":
        return dict(zip(("out_frames", "out_y", "out_x"), result[0].shape[1:], strict=True))
    if name == "upsample_nearest":
        return dict(zip(("scale_y", "scale_x"), arguments["scale"], strict=True))
    return {}


@host
def explain_picture(job: Any) -> list[str]:
    """Return the lines of --explain: what asking the denoiser once costs, and the decoder, and what bounds each."""
    limits, pipeline = machine(again=True), job.pipeline
    target, each = this_machine(limits), 1 if job.scale == 1 else 2
    latent = noise_of(0, 0, 0, job.shape)
    asking, decoding = defaultdict[str, list[Cost]](list), defaultdict[str, list[Cost]](list)
    way = job.steps(0, pipeline, counting(asking))
    next(way), next(way)
    picture = picture_of(pipeline, latent, counting(decoding))
    held = pipeline.denoiser_weights, pipeline.autoencoder_weights
    millions = [sum(w.size for w in weights.values()) / 1e6 for weights in held]
    steps, shape = len(job.plan.timesteps), " x ".join(map(str, picture.shape[:0:-1]))
    passes = "one pass of the denoiser" if each == 1 else f"{each} passes of the denoiser (guidance)"
    first, of_asking = _table(f"a step: {passes} and the solver", asking, target)
    second, of_decoding = _table("the decoder, at the end", decoding, target)
    return [
        f"model: {pipeline.path.name}; weights: denoiser {millions[0]:.2f} M, autoencoder {millions[1]:.2f} M",
        f"{pipeline.kind}: {shape} from a latent {list(job.shape)}; {steps} steps of {pipeline.scheduler.name}",
        f"machine: {limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s in {_DTYPE}; under "
        f"{ridge(target, _DTYPE):.1f} FLOP a byte memory bounds, above it arithmetic",
        *first, *second,
        f"at the least {1e3 * (steps * of_asking + of_decoding):.2f} ms: {steps} times {1e3 * of_asking:.3f} ms "
        f"and the decoder's {1e3 * of_decoding:.3f} ms, all at the machine's limits",
    ]  # fmt: skip


def _table(title: str, costs: Mapping[str, list[Cost]], target: Device) -> tuple[list[str], float]:
    """Return a table of operations, and the least seconds of all together."""
    head = f"  {'operation':22} {'calls':>5} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>8}  {'bound':7} {'ms least':>9}"
    sums = {name: sum(each, Cost(0, 0)) for name, each in costs.items()}
    times = {name: seconds(each, target, _DTYPE) for name, each in sums.items()}
    calls, lines = {name: len(each) for name, each in costs.items()}, [title, head]
    sums["total"], times["total"] = sum(sums.values(), Cost(0, 0)), sum(times.values())
    calls["total"] = sum(calls.values())
    for name, each in sums.items():
        numbers = f"{calls[name]:5} {each.flops / 1e9:9.4f} {each.bytes / 1e6:9.3f} {each.intensity:8.1f}"
        lines.append(f"  {name:22} {numbers}  {bound(each, target, _DTYPE):7} {1e3 * times[name]:9.4f}")
    return lines, times["total"]
