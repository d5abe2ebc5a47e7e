"""The roofline: how fast a device can be at work that does so many operations for each byte it moves.

Below the ridge of a device, its operations a second over its bytes a second, memory bounds; above it arithmetic does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from refimpl.contract import UsageError, host

__all__ = ["DEVICES", "Cost", "Device", "attainable", "bound", "peak", "ridge", "seconds"]


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
        """Operations for each byte moved; where none is moved, infinite, and 0 if nothing is done either."""
        return self.flops / self.bytes if self.bytes else float("inf") if self.flops else 0.0

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


_RATES = ("float32", "float16", "bfloat16", "float8", "int8", "float4")
_DATA_SHEETS = {  # tera-operations a second by dtype, matrix products without sparsity; terabytes a second; gigabytes
    "A100": ((19.5, 312, 312, 0, 624), 2.039, 80, "NVIDIA A100 data sheet, SXM"),
    "H100": ((67, 989, 989, 1979, 1979), 3.35, 80, "NVIDIA H100 data sheet, SXM"),
    "H100 PCIe": ((51, 756, 756, 1513, 1513), 2.0, 80, "NVIDIA H100 data sheet, PCIe"),
    "H200": ((67, 989, 989, 1979, 1979), 4.8, 141, "NVIDIA H200 data sheet, SXM"),
    "B200": ((75, 2250, 2250, 4500, 4500, 9000), 8.0, 180, "NVIDIA DGX B200 data sheet, an eighth"),
    "L4": ((30.3, 121, 121, 242.5, 242.5), 0.3, 24, "NVIDIA L4 data sheet"),
    "L40S": ((91.6, 362, 362, 733, 733), 0.864, 48, "NVIDIA L40S data sheet"),
    "RTX 4090": ((82.6, 165.2, 165.2, 330.3, 660.6), 1.008, 24, "NVIDIA Ada whitepaper, sums in float32"),
    "MI300X": ((163.4, 1307.4, 1307.4, 2614.9, 2614.9), 5.3, 192, "AMD Instinct MI300X data sheet"),
    "TPU v5e": ((0, 0, 197, 0, 393), 0.819, 16, "Google Cloud TPU v5e documentation"),
}
DEVICES: Mapping[str, Device] = {
    name: Device(name, {d: 1e12 * r for d, r in zip(_RATES, rates, strict=False) if r}, 1e12 * tb, 1e9 * gb, source)
    for name, (rates, tb, gb, source) in _DATA_SHEETS.items()
}
"""Devices by name."""


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
