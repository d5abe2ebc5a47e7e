"""The roofline: how fast a device can be at work that does so many operations for each byte it moves.

Below the ridge of a device, its operations a second over its bytes a second, memory bounds; above it arithmetic does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from refimpl.contract import UsageError, host

__all__ = ["DEVICES", "Cost", "Device", "attainable", "bound", "find_device", "peak", "ridge", "seconds"]


@dataclass(frozen=True)
class Cost:
    """The operations that work does, and the bytes that it moves between memory and the chip.

    >>> Cost(8, 2) + Cost(0, 2), Cost(8, 2).intensity
    (Cost(flops=8, bytes=4), 4.0)
    """

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / self.bytes

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True)
class Device:
    """What a device can do at most: operations a second in each dtype, bytes a second, and bytes of memory."""

    name: str
    flops: Mapping[str, float]
    bytes_per_s: float
    memory: float
    source: str = ""


def _device(name: str, rates: Mapping[str, float], terabytes_per_s: float, gigabytes: float, source: str) -> Device:
    """Make a device from the tera-operations a second of data sheets; halves of either kind run alike."""
    dtypes = ("float16", "bfloat16")
    given = {dtype: rates["half"] for dtype in dtypes if "half" in rates} | dict(rates)
    flops = {dtype: rate * 1e12 for dtype, rate in given.items() if dtype != "half"}
    return Device(name, flops, terabytes_per_s * 1e12, gigabytes * 1e9, source)


_HOPPER = {"float32": 67, "half": 989, "float8": 1979, "int8": 1979}
_DATA_SHEETS = (
    ("A100", {"float32": 19.5, "half": 312, "int8": 624}, 2.039, 80, "NVIDIA A100 data sheet, 80 GB SXM"),
    ("H100", _HOPPER, 3.35, 80, "NVIDIA H100 data sheet, SXM"),
    ("H100 PCIe", {"float32": 51, "half": 756, "float8": 1513, "int8": 1513}, 2.0, 80, "NVIDIA H100 data sheet, PCIe"),
    ("H200", _HOPPER, 4.8, 141, "NVIDIA H200 data sheet, SXM"),
    ("B200", {"float32": 75, "half": 2250, "float8": 4500, "float4": 9000}, 8.0, 180, "NVIDIA DGX B200 data sheet"),
    ("L4", {"float32": 30.3, "half": 121, "float8": 242.5, "int8": 242.5}, 0.3, 24, "NVIDIA L4 data sheet"),
    ("L40S", {"float32": 91.6, "half": 362, "float8": 733, "int8": 733}, 0.864, 48, "NVIDIA L40S data sheet"),
    ("RTX 4090", {"float32": 82.6, "half": 165.2, "float8": 330.3, "int8": 660.6}, 1.008, 24, "NVIDIA Ada whitepaper"),
    ("MI300X", {"float32": 163.4, "half": 1307.4, "float8": 2614.9, "int8": 2614.9}, 5.3, 192, "AMD MI300X data sheet"),
    ("TPU v5e", {"bfloat16": 197, "int8": 393}, 0.819, 16, "Google Cloud TPU v5e documentation"),
)
"""Data sheets state matrix products without sparsity, sums in float32; float32 itself is outside the tensor cores."""

DEVICES: Mapping[str, Device] = {row[0]: _device(*row) for row in _DATA_SHEETS}


@host
def find_device(name: str) -> Device:
    """Return a device of the table by its name.

    >>> find_device("H100").memory
    80000000000.0
    """
    if name not in DEVICES:
        raise UsageError(f"there is no device {name!r}; the devices are {', '.join(DEVICES)}")
    return DEVICES[name]


@host
def peak(device: Device, dtype: str = "float16") -> float:
    """Return the operations a second of a device in a dtype.

    >>> peak(DEVICES["TPU v5e"])
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: TPU v5e: no speed is known for float16, only for bfloat16, int8
    """
    if dtype not in device.flops:
        raise UsageError(f"{device.name}: no speed is known for {dtype}, only for {', '.join(device.flops)}")
    return device.flops[dtype]


@host
def ridge(device: Device, dtype: str = "float16") -> float:
    """Return the operations for each byte at which both limits bind: the ops:byte ratio.

    >>> round(ridge(DEVICES["H100"]))
    295
    """
    return peak(device, dtype) / device.bytes_per_s


@host
def attainable(intensity: float, device: Device, dtype: str = "float16") -> float:
    """Return the operations a second that work of an intensity can reach: the roofline.

    Math: min(peak, intensity bytes_per_s).
    Source: Williams, Waterman, Patterson, Roofline: an insightful visual performance model, 2009.

    >>> attainable(1, DEVICES["H100"]) / 1e12, attainable(1000, DEVICES["H100"]) / 1e12
    (3.35, 989.0)
    """
    return min(peak(device, dtype), intensity * device.bytes_per_s)


@host
def bound(cost: Cost, device: Device, dtype: str = "float16") -> str:
    """Return what bounds the work: ``memory`` or ``compute``.

    >>> bound(Cost(flops=1e9, bytes=1e9), DEVICES["H100"])
    'memory'
    """
    return "compute" if cost.flops > cost.bytes * ridge(device, dtype) else "memory"


@host
def seconds(cost: Cost, device: Device, dtype: str = "float16") -> float:
    """Return the least time that the work takes, memory and arithmetic at once: the slower one decides.

    >>> seconds(Cost(flops=1e9, bytes=3.35e9), DEVICES["H100"])
    0.001
    """
    return max(cost.flops / peak(device, dtype), cost.bytes / device.bytes_per_s)
