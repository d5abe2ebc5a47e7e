"""What runs where."""

from refimpl.contract import UsageError, host

__all__ = ["DEVICES", "pick"]

DEVICES = ("cpu",)


@host
def pick(name: str = "auto") -> str:
    """Return the device to run on: ``auto`` is the fastest there is.

    >>> pick("auto")
    'cpu'
    """
    if name == "auto":
        return DEVICES[0]
    if name not in DEVICES:
        raise UsageError(f"device {name} is not there: this version runs on {', '.join(DEVICES)}")
    return name
