"""Wrong stops of solvers."""

from golden.derive import schedules

__all__ = ["linspace_whatever", "next_whatever", "shifted_twice", "subtracted", "shifted_once", "without_offset"]


def without_offset(spacing: str, count: int, train: int, **named: int) -> list[float]:
    """steps_offset left out."""
    return schedules.timesteps(spacing, count, train)


def linspace_whatever(spacing: str, count: int, train: int, **named: int) -> list[float]:
    """Both ends, whatever the spacing: linspace read as leading."""
    return schedules.timesteps("leading" if spacing == "linspace" else "linspace", count, train)


def subtracted(stops: list[float], train: int, by_subtraction: bool = False) -> list[float]:
    """The end of a step by subtraction."""
    return schedules.previous_timesteps(stops, train, True)


def next_whatever(stops: list[float], train: int, by_subtraction: bool = False) -> list[float]:
    """The next stop where subtraction is asked for."""
    return schedules.previous_timesteps(stops, train)


def shifted_twice(count: int, train: int, factor: float = 1.0, double_shift: bool = False) -> list[float]:
    """The last level shifted, and all shifted again."""
    return schedules.flow_sigmas(count, train, factor, True)


def shifted_once(count: int, train: int, factor: float = 1.0, double_shift: bool = False) -> list[float]:
    """One shift where two are asked for."""
    return schedules.flow_sigmas(count, train, factor)
