"""Where solvers stop, counted one stop after the other in whole numbers and fractions."""

from fractions import Fraction

__all__ = ["flow_sigmas", "previous_timesteps", "timesteps"]


def timesteps(
    spacing: str, count: int, train: int, offset: int = 0, more: int = 0, whole: bool = True
) -> list[float]:
    """Count up from 0 (leading, linspace) or down from the last training step (trailing)."""
    if spacing == "trailing":
        return [float(round(train - Fraction(i * train, count)) - 1) for i in range(count)]
    stops = []
    for i in range(count + more):
        stop = Fraction(i * (train // (count + more)) + offset)
        if spacing == "linspace":
            stop = Fraction(i * (train - 1), max(count + more - 1, 1))
            stop = Fraction(round(stop)) if whole else stop
        stops.append(float(stop))
    return stops[::-1][:count]


def previous_timesteps(stops: list[float], train: int, by_subtraction: bool = False) -> list[float]:
    """Look the next stop up, or subtract."""
    if by_subtraction:
        return [float(stop) - train // len(stops) for stop in stops]
    return [*(float(stop) for stop in list(stops)[1:]), -1.0]


def flow_sigmas(count: int, train: int, factor: float = 1.0, double_shift: bool = False) -> list[float]:
    """Shift each level as a fraction."""
    ratio = Fraction(factor)
    last = Fraction(1, train)
    last = ratio * last / (1 + (ratio - 1) * last) if double_shift else last
    levels = [1 - Fraction(i, max(count - 1, 1)) * (1 - last) for i in range(count)]
    return [float(ratio * level / (1 + (ratio - 1) * level)) for level in levels]
