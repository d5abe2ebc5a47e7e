"""Where the schedulers stop, training step by training step: for golden/derive/solvers.py."""

import math
from typing import Any

__all__ = ["between", "dpm_stops", "flow_stops", "k_stops", "karras", "place", "ratios", "signal", "stops"]


def signal(c: dict[str, Any]) -> list[float]:
    """Return alpha^2 of each training step."""
    train, low, high = c.get("num_train_timesteps", 1000), c.get("beta_start", 1e-4), c.get("beta_end", 0.02)
    schedule, product, bars = c.get("beta_schedule", "linear"), 1.0, []
    for t in range(train):
        if schedule == "linear":
            beta = low + (high - low) * t / (train - 1)
        elif schedule == "scaled_linear":
            beta = (math.sqrt(low) + (math.sqrt(high) - math.sqrt(low)) * t / (train - 1)) ** 2
        else:
            angles = [((t + k) / train + 0.008) / 1.008 * math.pi / 2 for k in (0, 1)]
            beta = min(1 - (math.cos(angles[1]) / math.cos(angles[0])) ** 2, 0.999)
        product *= 1 - beta
        bars.append(product)
    scale = c.get("snr_shift_scale", 1.0)
    bars = [bar / (scale + (1 - scale) * bar) for bar in bars]
    if c.get("rescale_betas_zero_snr"):
        first, last = math.sqrt(bars[0]), math.sqrt(bars[-1])
        bars = [((math.sqrt(bar) - last) * first / (first - last)) ** 2 for bar in bars]
    return bars


def stops(c: dict[str, Any], count: int, spacing: str, more: int = 0, whole: bool = True) -> list[float]:
    """Return the timesteps of ``count`` steps."""
    train, spacing = c.get("num_train_timesteps", 1000), c.get("timestep_spacing", spacing)
    total, offset = count + more, c.get("steps_offset", 0)
    if spacing == "leading":
        every = [i * (train // total) + offset for i in range(total)]
    elif spacing == "trailing":
        return [float(round(train - i * train / count) - 1) for i in range(count)]
    else:
        every = [(train - 1) * i / (total - 1) for i in range(total)]
        every = [round(each) for each in every] if whole else every
    return [float(each) for each in every[::-1][:count]]


def between(table: list[float], at: float) -> float:
    """Return the entry of a table at a place between two of its own."""
    low = min(int(at), len(table) - 2)
    return table[low] + (table[low + 1] - table[low]) * (at - low)


def place(table: list[float], value: float) -> float:
    """Return where a rising table has a value, on a straight line in its logarithm."""
    for low in range(len(table) - 1):
        if value <= table[low + 1] or low == len(table) - 2:
            above, below = math.log(table[low + 1]), math.log(table[low])
            return low + min(max((math.log(value) - below) / (above - below), 0.0), 1.0)
    raise ValueError("a table of one entry")


def karras(count: int, low: float, high: float) -> list[float]:
    """Return noise levels at equal distances in their seventh root."""
    roots = [high ** (1 / 7) + (low ** (1 / 7) - high ** (1 / 7)) * i / max(count - 1, 1) for i in range(count)]
    return [root**7 for root in roots]


def ratios(c: dict[str, Any]) -> list[float]:
    """Return sigma / alpha of each training step."""
    bars = signal(c)
    bars[-1] = max(bars[-1], 2.0**-24)
    return [math.sqrt((1 - bar) / bar) for bar in bars]


def k_stops(c: dict[str, Any], count: int) -> tuple[list[float], list[float], float]:
    """Return the timesteps, the noise levels with the last one, and the scale of x at the start, where alpha is 1."""
    table, spacing = ratios(c), "linspace"
    times = stops(c, count, spacing, whole=False)
    levels = [between(table, t) for t in times]
    if c.get("use_karras_sigmas"):
        levels = karras(count, levels[-1], levels[0])
        times = [place(table, level) for level in levels]
    final = table[0] if c.get("final_sigmas_type") == "sigma_min" else 0.0
    largest = levels[0] if c.get("timestep_spacing", spacing) != "leading" else math.sqrt(levels[0] ** 2 + 1)
    return times, [*levels, final], largest


def dpm_stops(c: dict[str, Any], count: int, whole: bool) -> tuple[list[float], list[float], list[float]]:
    """Return timesteps, alphas and sigmas for the solvers over log(alpha / sigma)."""
    train = c.get("num_train_timesteps", 1000)
    ends_at_zero = c.get("final_sigmas_type", "sigma_min" if c["_class_name"].startswith("DEIS") else "zero") == "zero"
    if c.get("use_flow_sigmas"):
        if c["_class_name"].startswith("UniPC"):
            levels = [1 - i / count * (1 - 1 / train) for i in range(count)]
        else:
            levels = [(1 - 1 / train) * (1 - i / count) for i in range(count)]
        shift = c.get("flow_shift", 1.0)
        levels = [shift * s / (1 + (shift - 1) * s) for s in levels]
        levels[0] = min(levels[0], 1 - 1e-6)
        times = [float(int(s * train)) if whole else s * train for s in levels]
        sigmas = [*levels, 0.0 if ends_at_zero else levels[-1]]
        return times, [1 - s for s in sigmas], sigmas
    table = ratios(c)
    times = stops(c, count, "linspace", more=1)
    levels = [between(table, t) for t in times]
    if c.get("use_karras_sigmas"):
        levels = karras(count, table[0], table[-1])
        times = [float(round(place(table, level))) for level in levels]
    levels.append(0.0 if ends_at_zero else table[0])
    alphas = [1 / math.sqrt(1 + level**2) for level in levels]
    return times, alphas, [level * alpha for level, alpha in zip(levels, alphas, strict=True)]


def flow_stops(c: dict[str, Any], count: int, twice: bool) -> tuple[list[float], list[float]]:
    """Return the timesteps and the noise levels of a straight flow; ``twice`` shifts the ends before the steps."""
    train, shift = c.get("num_train_timesteps", 1000), c.get("shift", 1.0)

    def shifted(s: float) -> float:
        return float(shift * s / (1 + (shift - 1) * s))

    low = shifted(1 / train) if twice else 1 / train
    levels = [shifted(1 + (low - 1) * i / max(count - 1, 1)) for i in range(count)]
    return [s * train for s in levels], [*levels, 0.0]
