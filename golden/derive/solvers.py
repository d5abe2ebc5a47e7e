"""Whole ways of schedulers with a model without weights, each solver in the formulas of its paper."""

import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from golden.derive.solver_parts import exponential
from golden.derive.solver_parts.stops import flow_stops, k_stops, karras, place, ratios, signal, stops
from golden.values import Array

__all__ = ["linear_trajectory"]


class _Way:
    """What happens on a way: the configuration, the draws left, and every x that the model was asked about."""

    def __init__(self, config: dict[str, Any], count: int, x: Array, model: Callable[[Array, float], Array]) -> None:
        self.config, self.count, self.x, self.model, self.seen = config, count, x, model, list[Array]()
        self.draws: Iterator[Array] = iter(())
        self.eta: float | None = None
        self.like_diffusers = True

    def see(self, x: Array, scaled: Array, time: float) -> Array:
        self.seen.append(x)
        return self.model(scaled, time)

    def read(self, x: Array, output: Array, alpha: float, sigma: float) -> tuple[Array, Array]:
        """Return x0, held in its range, and the noise."""
        kind = self.config.get("prediction_type", "flow_prediction" if "FlowMatch" in self.name else "epsilon")
        if kind == "epsilon":
            x0, noise = (x - sigma * output) / alpha, output
        elif kind == "sample":
            x0, noise = output, (x - alpha * output) / sigma
        elif kind == "v_prediction":
            x0, noise = alpha * x - sigma * output, sigma * x + alpha * output
        else:
            x0, noise = x - sigma * output, x + alpha * output
        largest = self.config.get("clip_sample_range", 1.0) if self.config.get("clip_sample") else math.inf
        return np.minimum(np.maximum(x0, -largest), largest), noise

    @property
    def name(self) -> str:
        return str(self.config["_class_name"])


def _bars(way: _Way) -> list[tuple[float, float, float, float]]:
    """Return the timestep, alpha^2 there and where the step ends, and the next timestep, of each step."""
    c, table, count = way.config, signal(way.config), way.count
    first = 1.0 if c.get("set_alpha_to_one", way.name != "PNDMScheduler") and way.name != "TCDScheduler" else table[0]
    if "original_inference_steps" in c:
        taught = c["original_inference_steps"]
        every = [(k + 1) * (len(table) // taught) - 1 for k in range(taught)][::-1]
        times = [float(every[i * taught // count]) for i in range(count)]
    else:
        times = stops(c, count, "leading")
    found, subtracts = [], way.like_diffusers and way.name not in ("DDPMScheduler", "LCMScheduler", "TCDScheduler")
    for time, after in zip(times, [*times[1:], -1.0], strict=True):
        after = time - len(table) // count if subtracts else after
        found.append((time, table[int(time)], table[int(after)] if after >= 0 else first, after))
    return found


def _ddpm(way: _Way) -> Array:
    x = way.x
    for time, bar, end, _ in _bars(way):
        x0, _ = way.read(x, way.see(x, x, time), math.sqrt(bar), math.sqrt(1 - bar))
        beta = 1 - bar / end
        x = math.sqrt(end) * beta / (1 - bar) * x0 + math.sqrt(1 - beta) * (1 - end) / (1 - bar) * x
        if time > 0:
            large = way.config.get("variance_type") == "fixed_large"
            x = x + math.sqrt(beta if large else max((1 - end) / (1 - bar) * beta, 1e-20)) * next(way.draws)
    return x


def _ddim(way: _Way) -> Array:
    x, eta = way.x, way.eta or 0.0
    for time, bar, end, _ in _bars(way):
        x0, noise = way.read(x, way.see(x, x, time), math.sqrt(bar), math.sqrt(1 - bar))
        variance = eta**2 * (1 - end) / (1 - bar) * (1 - bar / end)
        x = math.sqrt(end) * x0 + math.sqrt(1 - end - variance) * noise
        x = x + math.sqrt(variance) * next(way.draws) if eta else x
    return x


def _pndm(way: _Way) -> Array:
    steps, x, known = _bars(way), way.x, list[Array]()

    def moved(x: Array, noise: Array, bar: float, end: float) -> Array:
        below = bar * math.sqrt(1 - end) + math.sqrt(bar * (1 - bar) * end)
        return math.sqrt(end / bar) * x - (end - bar) * noise / below

    for i, (time, bar, end, after) in enumerate(steps):
        newest = way.see(x, x, time)
        known = [newest, *known][:4]
        if i == 0:
            there = moved(x, newest, bar, end)
            mixed = (newest + way.see(there, there, after)) / 2
        elif len(known) == 2:
            mixed = (3 * known[0] - known[1]) / 2
        elif len(known) == 3:
            mixed = (23 * known[0] - 16 * known[1] + 5 * known[2]) / 12
        else:
            mixed = (55 * known[0] - 59 * known[1] + 37 * known[2] - 9 * known[3]) / 24
        x = moved(x, mixed, bar, end)
    return x


def _few(way: _Way) -> Array:
    """LCM and TCD."""
    x, table, eta = way.x, signal(way.config), 0.3 if way.eta is None else way.eta
    for i, (time, bar, end, after) in enumerate(_bars(way)):
        x0, noise = way.read(x, way.see(x, x, time), math.sqrt(bar), math.sqrt(1 - bar))
        last = i == way.count - 1
        if way.name == "LCMScheduler":
            t = 10.0 * time
            skip, out = 0.25 / (t * t + 0.25), t / math.sqrt(t * t + 0.25)
            x = out * x0 + skip * x
            x = x if last else math.sqrt(end) * x + math.sqrt(1 - end) * next(way.draws)
            continue
        below = table[math.floor((1 - eta) * max(after, 0.0))]
        x = math.sqrt(below) * x0 + math.sqrt(1 - below) * noise
        if eta and not last:
            x = math.sqrt(end / below) * x + math.sqrt(1 - end / below) * next(way.draws)
    return x


def _k(way: _Way) -> Array:
    """The solvers of k-diffusion: slopes d = (x - x0) / sigma."""
    times, sigma, largest = k_stops(way.config, way.count)
    table, known, x = ratios(way.config), list[Array](), way.x * largest
    name, n = way.name.removesuffix("Scheduler").removesuffix("Discrete"), way.count

    def slope(x: Array, level: float, time: float) -> Array:
        shrink = 1 / math.sqrt(level**2 + 1)
        x0, _ = way.read(x * shrink, way.see(x, x * shrink, time), shrink, level * shrink)
        return (x - x0) / level

    for i in range(n):
        d, end, up = slope(x, sigma[i], times[i]), sigma[i + 1], 0.0
        if "Ancestral" in name:
            up = end * math.sqrt(1 - (end / sigma[i]) ** 2)
            end = (end**2) / sigma[i]
        known = [d, *known][:4]
        if name == "Heun" and end > 0:
            d = (d + slope(x + (end - sigma[i]) * d, end, times[i + 1])) / 2
        if name.startswith("KDPM2") and end > 0:
            middle = math.exp((math.log(sigma[i]) + math.log(end)) / 2)
            d = slope(x + (middle - sigma[i]) * d, middle, place(table, middle))
        x = x + _adams(sigma, i, known) if name == "LMS" else x + (end - sigma[i]) * d
        x = x + up * next(way.draws) if "Ancestral" in name and (name[0] == "E" or end > 0) else x
    return x


def _adams(sigma: list[float], i: int, known: list[Array]) -> Array:
    """Integrate Lagrange's polynomial through the slopes by Gauss's rule, which is exact for it."""
    total = np.zeros_like(known[0])
    for place_, share in zip(*np.polynomial.legendre.leggauss(4), strict=True):
        at = (sigma[i] + sigma[i + 1]) / 2 + (sigma[i + 1] - sigma[i]) / 2 * place_
        for j, slope in enumerate(known):
            others = [k for k in range(len(known)) if k != j]
            value = math.prod((at - sigma[i - k]) / (sigma[i - j] - sigma[i - k]) for k in others)
            total = total + share * (sigma[i + 1] - sigma[i]) / 2 * value * slope
    return total


def _edm(way: _Way) -> Array:
    """Karras et al., table 1: D(x) = c_skip x + c_out F(c_in x, log(sigma) / 4), sigma_data = 1 / 2."""
    levels, data = [*karras(way.count, 0.002, 80.0), 0.0], 0.5
    x = way.x * math.sqrt(80.0**2 + 1)
    for level, end in pairwise(levels):
        both = math.sqrt(level**2 + data**2)
        output = way.see(x, x / both, math.log(level) / 4)
        x0 = data**2 / both**2 * x + level * data / both * output
        x = x + (end - level) * (x - x0) / level
    return x


def _flow(way: _Way) -> Array:
    times, levels = flow_stops(way.config, way.count, way.like_diffusers)
    x = way.x
    for i, time in enumerate(times):
        width, velocity = levels[i + 1] - levels[i], way.see(x, x, time)
        if "Heun" in way.name and levels[i + 1] > 0:
            there = x + width * velocity
            velocity = (velocity + way.see(there, there, times[i + 1])) / 2
        x = x + width * velocity
    return x


_SOLVERS = {
    "DDPM": _ddpm, "DDIM": _ddim, "CogVideoXDDIM": _ddim, "PNDM": _pndm, "LCM": _few, "TCD": _few, "EDMEuler": _edm,
    "FlowMatchEulerDiscrete": _flow, "FlowMatchHeunDiscrete": _flow, "DPMSolverMultistep": exponential.dpm_multistep,
    "DPMSolverSinglestep": exponential.dpm_singlestep, "DEISMultistep": exponential.deis,
    "UniPCMultistep": exponential.unipc,
}  # fmt: skip


def linear_trajectory(
    scheduler_config: str, num_steps: int, noise: Array, direction: Array, a: float = 0.1, draws: Array | None = None,
    eta: float | None = None, like_diffusers: bool = True,
) -> Array:
    config = json.loads(scheduler_config)
    way = _Way(config, num_steps, noise, lambda x, t: a * x + math.sin(t / 1000) * direction)
    way.draws, way.eta, way.like_diffusers = iter(() if draws is None else draws), eta, like_diffusers
    end = _SOLVERS.get(config["_class_name"].removesuffix("Scheduler"), _k)(way)
    return np.stack([*way.seen, end])
