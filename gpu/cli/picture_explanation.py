"""--explain for pictures: what the operations of one pass cost, counted as they are called."""

import inspect
from collections import defaultdict
from types import SimpleNamespace
from typing import Any


from gpu.explain import this_machine
from gpu.machine import machine
from refimpl.bottleneck.cost import cost
from refimpl.bottleneck.roofline import Cost, bound, ridge, seconds
from refimpl.contract import host
from refimpl.media import operations
from refimpl.media.dit import dit
from refimpl.media.pipeline import noise_of, picture_of
from refimpl.sizes import sizes

__all__ = ["counting", "explain_picture"]

_DTYPE = "float32"


@host
def counting(total: dict[str, list[Cost]]) -> Any:
    """Return the operations, each of which adds to ``total`` what every call costs."""

    def counted(name: str) -> Any:
        op = getattr(operations, name)
        signature = inspect.signature(op)

        def call(*args: Any, **named: Any) -> Any:
            arguments = signature.bind(*args, **named).arguments
            result = op(*args, **named)
            known = sizes(op, arguments) | _extra(name, arguments, result)
            total[name].append(cost(name, **known))
            return result

        return call

    return SimpleNamespace(**{name: counted(name) for name in operations.__all__})


def _extra(name: str, arguments: dict[str, Any], result: Any) -> dict[str, int]:
    """Return sizes that no array of the arguments has."""
    if name == "conv2d":
        return dict(zip(("out_y", "out_x"), result.shape[1:], strict=True)) | {"groups": arguments.get("groups", 1)}
    if name == "upsample_nearest":
        return dict(zip(("scale_y", "scale_x"), arguments["scale"], strict=True))
    return {}


@host
def explain_picture(job: Any) -> list[str]:
    """Return the lines of --explain: a pass of the denoiser, the decoder, and what bounds each on this machine."""
    limits, pipeline = machine(again=True), job.pipeline
    target = this_machine(limits)
    latent, parts = noise_of(0, 0, 0, job.shape), {"denoiser, one pass": defaultdict(list), "decoder": defaultdict(list)}
    dit(latent, float(job.plan.timesteps[0]), job.labels[0], pipeline.denoiser_weights, pipeline.denoiser,
        counting(parts["denoiser, one pass"]))
    picture = picture_of(pipeline, latent, counting(parts["decoder"]))
    passes = len(job.plan.timesteps) * (1 if job.scale == 1 else 2)
    weights = [sum(w.size for w in each.values()) for each in (pipeline.denoiser_weights, pipeline.autoencoder_weights)]
    lines = [
        f"model: {pipeline.path.name}, denoiser {weights[0] / 1e6:.2f} M, autoencoder {weights[1] / 1e6:.2f} M weights",
        f"picture: {picture.shape[2]} x {picture.shape[1]} pixels from a latent {list(job.shape)}; {passes} passes",
        f"machine: {limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s in {_DTYPE}; below "
        f"{ridge(target, _DTYPE):.1f} FLOP a byte memory bounds, above it arithmetic",
    ]
    least = 0.0
    for title, costs in parts.items():
        lines += [title, f"  {'operation':22} {'calls':>5} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>8}  {'bound':7} {'ms least':>9}"]
        sums = {name: sum(each, Cost(0, 0)) for name, each in costs.items()}
        for name, each in [*sums.items(), ("total", sum(sums.values(), Cost(0, 0)))]:
            calls = len(costs[name]) if name in sums else sum(map(len, costs.values()))
            time = 1e3 * seconds(each, target, _DTYPE)
            row = f"{calls:5} {each.flops / 1e9:9.4f} {each.bytes / 1e6:9.3f} {each.intensity:8.1f}"
            lines.append(f"  {name:22} {row}  {bound(each, target, _DTYPE):7} {time:9.4f}")
        least += time * (passes if title.startswith("denoiser") else 1)
    return [*lines, f"at the least {least:.2f} ms a picture: {passes} passes and the decoder, all at the machine's limits"]


