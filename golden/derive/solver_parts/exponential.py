"""Solvers over lambda = log(alpha / sigma), in the formulas of their papers: for golden/derive/solvers.py."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.derive.solver_parts.stops import dpm_stops
from golden.values import Array

__all__ = ["Lambdas", "deis", "dpm_multistep", "dpm_singlestep", "unipc"]


class Lambdas:
    """Where the way stops, and what the solvers read there."""

    def __init__(self, way: Any, default: str) -> None:
        self.way, c = way, way.config
        self.times, self.alpha, self.sigma = dpm_stops(c, way.count, way.like_diffusers)
        self.plus = c["predict_x0"] if "predict_x0" in c else c.get("algorithm_type", default).endswith("++")
        pairs = zip(self.alpha, self.sigma, strict=True)
        self.at = [math.log(a / s) if s > 0 else math.inf for a, s in pairs]

    def ask(self, x: Array, i: int) -> Array:
        """Return x0 (++) or the noise at stop i."""
        output = self.way.see(x, x, self.times[i])
        return self.way.read(x, output, self.alpha[i], self.sigma[i])[0 if self.plus else 1]

    def order(self, i: int, known: int) -> int:
        c, n = self.way.config, self.way.count
        order = min(known, c.get("solver_order", 2))
        if c.get("lower_order_final", True) and n < 15:
            order = min(order, n - i)
        ends_at_zero = self.sigma[-1] == 0 or c.get("euler_at_final", False)
        return 1 if i == n - 1 and ends_at_zero else order


def _bracket(p: Lambdas, h: float, d: Sequence[Array], kind: str, i: int) -> Array:
    """Return what the derivatives D0, D1, D2 add in a step of width h: DPM-Solver++ (++), DPM-Solver."""
    if p.plus:
        a = p.alpha[i + 1]
        total = a * -math.expm1(-h) * d[0]
        if len(d) == 2 and kind == "midpoint":
            return total + 0.5 * a * -math.expm1(-h) * d[1]
        if len(d) > 1:
            total = total + a * (math.expm1(-h) / h + 1) * d[1]
        return total - a * ((math.expm1(-h) + h) / h**2 - 0.5) * d[2] if len(d) > 2 else total
    s = p.sigma[i + 1]
    total = -s * math.expm1(h) * d[0]
    if len(d) == 2 and kind == "midpoint":
        return total - 0.5 * s * math.expm1(h) * d[1]
    if len(d) > 1:
        total = total - s * (math.expm1(h) / h - 1) * d[1]
    return total - s * ((math.expm1(h) - h) / h**2 - 0.5) * d[2] if len(d) > 2 else total


def _sde(p: Lambdas, x: Array, h: float, d: Sequence[Array], kind: str, i: int) -> Array:
    """Return the end of a step of SDE-DPM-Solver++ or SDE-DPM-Solver, of order 1 or 2."""
    s, s_end, a, a_end = p.sigma[i], p.sigma[i + 1], p.alpha[i], p.alpha[i + 1]
    z = next(p.way.draws)
    if p.plus:
        gone = -math.expm1(-2 * h)
        second = gone / 2 if kind == "midpoint" else 1 - gone / (2 * h)
        parts = s_end / s * math.exp(-h) * x + a_end * gone * d[0] + s_end * math.sqrt(gone) * z
        return parts + a_end * second * d[1] if len(d) > 1 else parts
    up = math.expm1(h)
    second = up if kind == "midpoint" else 2 * (up / h - 1)
    parts = a_end / a * x - 2 * s_end * up * d[0] + s_end * math.sqrt(math.expm1(2 * h)) * z
    return parts - s_end * second * d[1] if len(d) > 1 else parts


def dpm_multistep(way: Any) -> Array:
    p, x, known = Lambdas(way, "dpmsolver++"), way.x, list[Array]()
    kind, name = way.config.get("solver_type", "midpoint"), way.config.get("algorithm_type", "dpmsolver++")
    for i in range(way.count):
        known = [p.ask(x, i), *known][:3]
        order, h = p.order(i, len(known)), p.at[i + 1] - p.at[i]
        d = [known[0]]
        if order > 1:
            r0 = (p.at[i] - p.at[i - 1]) / h
            d.append((known[0] - known[1]) / r0)
        if order > 2:
            r1 = (p.at[i - 1] - p.at[i - 2]) / h
            older = (known[1] - known[2]) / r1
            d = [d[0], d[1] + r0 / (r0 + r1) * (d[1] - older), (d[1] - older) / (r0 + r1)]
        if name.startswith("sde"):
            x = _sde(p, x, h, d, kind, i)
        else:
            kept = p.sigma[i + 1] / p.sigma[i] if p.plus else p.alpha[i + 1] / p.alpha[i]
            x = kept * x + _bracket(p, h, d, kind, i)
    return x


def dpm_singlestep(way: Any) -> Array:
    """Groups of 1, 2 .. order evaluations, each from the group's first point."""
    p, x, known, base = Lambdas(way, "dpmsolver++"), way.x, list[Array](), way.x
    kind, top, n = way.config.get("solver_type", "midpoint"), way.config.get("solver_order", 2), way.count
    for i in range(n):
        order = i % top + 1
        whole = not way.config.get("lower_order_final", False) and p.sigma[-1] > 0
        if i == n - 1 and not whole and (n % top == 0 or p.sigma[-1] == 0):
            order = 1
        if order == 1:
            known, base = [], x
        known.append(p.ask(x, i))
        first = i - order + 1
        h = p.at[i + 1] - p.at[first]
        slopes = [(m - known[0]) / ((p.at[first + j] - p.at[first]) / h) for j, m in enumerate(known) if j]
        d = [known[0], *slopes]
        if order == 3 and kind == "midpoint":
            a, s, newest = p.alpha[i + 1], p.sigma[i + 1], slopes[1]
            more = a * (math.expm1(-h) / h + 1) * newest if p.plus else -s * (math.expm1(h) / h - 1) * newest
            step = _bracket(p, h, d[:1], kind, i) + more
        else:
            if order == 3:
                r1, r0 = ((p.at[first + j] - p.at[first]) / h for j in (1, 2))
                d = [known[0], (r0 * slopes[0] - r1 * slopes[1]) / (r0 - r1), 2 * (slopes[1] - slopes[0]) / (r0 - r1)]
            step = _bracket(p, h, d, kind, i)
        x = (p.sigma[i + 1] / p.sigma[first] if p.plus else p.alpha[i + 1] / p.alpha[first]) * base + step
    return x


def deis(way: Any) -> Array:
    """tAB-DEIS: Lagrange's polynomials in log(rho), integrated by Gauss's rule of 80 points."""
    p, x, known = Lambdas(way, "deis"), way.x, list[Array]()
    rho = [s / a for s, a in zip(p.sigma, p.alpha, strict=True)]
    places, shares = np.polynomial.legendre.leggauss(80)
    for i in range(way.count):
        known = [p.ask(x, i), *known][:3]
        order = p.order(i, len(known))
        low, high, total = rho[i + 1], rho[i], x / p.alpha[i]
        for j in range(order):
            area = 0.0
            for place, share in zip(places, shares, strict=True):
                at, value = math.log((high + low) / 2 + (low - high) / 2 * place), 1.0
                for k in range(order):
                    if k != j:
                        value *= (at - math.log(rho[i - k])) / (math.log(rho[i - j]) - math.log(rho[i - k]))
                area += share * value * (low - high) / 2
            total = total + area * known[j]
        x = p.alpha[i + 1] * total
    return x


def _unified(p: Lambdas, x: Array, known: Sequence[Array], i: int, order: int, new: Array | None) -> Array:
    """Return UniP's step from stop i, or UniC's with the estimate at its end."""
    h = p.at[i + 1] - p.at[i]
    hh = -h if p.plus else h
    b = hh if p.way.config.get("solver_type", "bh2") == "bh1" else math.expm1(hh)
    kept = p.sigma[i + 1] / p.sigma[i] if p.plus else p.alpha[i + 1] / p.alpha[i]
    scale = p.alpha[i + 1] if p.plus else p.sigma[i + 1]
    r = [(p.at[i - k] - p.at[i]) / h for k in range(1, order)]
    d = [(known[k] - known[0]) / r[k - 1] for k in range(1, order)]
    if new is not None:
        r, d = [*r, 1.0], [*d, new - known[0]]
    bound, part = [], math.expm1(hh) / hh - 1
    for k in range(1, len(r) + 1):
        bound.append(part * math.factorial(k) / b)
        part = part / hh - 1 / math.factorial(k + 1)
    rows = [[each**k for each in r] for k in range(len(r))]
    shares = np.linalg.solve(np.array(rows), np.array(bound)) if len(r) > 1 else np.array([0.5] * len(r))
    mixed = sum((float(share) * each for share, each in zip(shares, d, strict=True)), np.zeros_like(x))
    return kept * x - scale * (math.expm1(hh) * known[0] + b * mixed)


def unipc(way: Any) -> Array:
    p, x, before, known, used = Lambdas(way, "++"), way.x, way.x, list[Array](), 0
    p.plus = way.config.get("predict_x0", True)
    top, n, last = way.config.get("solver_order", 2), way.count, way.config.get("lower_order_final", True)
    for i in range(n):
        newest = p.ask(x, i)
        if i > 0 and i - 1 not in way.config.get("disable_corrector", []):
            x = _unified(p, before, known, i - 1, used, newest)
        known = [newest, *known][:top]
        used = min(len(known), n - i) if last else len(known)
        before = x
        if p.sigma[i + 1] == 0:  # the whole of the last estimate
            x, used = p.alpha[i + 1] * newest, 1
        else:
            x = _unified(p, x, known, i, used, None)
    return x
