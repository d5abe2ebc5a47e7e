"""The training cycle: a block a row for the loss and its gradient, a thread an output for what goes back."""

from typing import Any

import numpy as np

from gpu import device
from gpu.basics.flat import THREADS, applied, launch_flat
from gpu.basics.training_kernels import (
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
    product_kernel,
    relu_backward_kernel,
    sgd_step_kernel,
    sum_kernel,
)
from gpu.grid import blocks_for, threads_for
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = [
    "VARIANTS", "cross_entropy", "cross_entropy_backward", "cross_entropy_backward_into", "cross_entropy_into",
    "linear_backward", "linear_backward_into", "relu_backward", "relu_backward_into", "sgd_step", "sgd_step_into",
]  # fmt: skip


@op
def cross_entropy(
    logits: Float[Array, "T V"], targets: Int[Array, " T"], *, ignore_index: int = -100
) -> Float[Array, " T"]:
    """One block a row: its maximum and its sum through shared memory. The targets are checked on the host."""
    marked = _marked(logits, targets, ignore_index)
    out = device.empty(len(logits), logits.dtype)
    cross_entropy_into(out, device.array(logits), marked)
    return out


@kernel
def cross_entropy_into(out: Float[Array, " T"], logits: Float[Array, "T V"], targets: Int[Array, " T"]) -> None:
    """Write the losses into ``out``; the targets are int32, within the vocabulary or negative: then they cost 0."""
    made = cross_entropy_kernel(named(logits))
    device.launch(made, len(logits), threads_for(logits.shape[1]), out, logits, targets)


@op
def cross_entropy_backward(
    logits: Float[Array, "T V"], targets: Int[Array, " T"], *, scale: float = 1.0, ignore_index: int = -100
) -> Float[Array, "T V"]:
    """Blocks as cross_entropy, which read the row once more and write its gradient."""
    marked = _marked(logits, targets, ignore_index)
    out = device.empty(logits.shape, logits.dtype)
    cross_entropy_backward_into(out, device.array(logits), marked, scale)
    return out


@kernel
def cross_entropy_backward_into(
    out: Float[Array, "T V"], logits: Float[Array, "T V"], targets: Int[Array, " T"], scale: float = 1.0
) -> None:
    """Write the gradient into ``out``, which may be ``logits``; the targets as in cross_entropy_into."""
    made = cross_entropy_backward_kernel(named(logits))
    device.launch(made, len(logits), threads_for(logits.shape[1]), out, logits, targets, float(scale))


@op
def linear_backward(
    dy: Float[Array, "T O"], x: Float[Array, "T D"], w: Float[Array, "O D"]
) -> tuple[Float[Array, "T D"], Float[Array, "O D"], Float[Array, " O"]]:
    """Three launches, one thread an output each: its sum in a register, neighbours along the rows of w or x."""
    fits = dy.ndim == x.ndim == w.ndim == 2 and (len(x), len(w)) == dy.shape and x.shape[1] == w.shape[1]
    require(fits, "C1", f"dy [T, O], x [T, D] and w [O, D] have shapes {dy.shape}, {x.shape} and {w.shape}")
    dx, dw, db = device.empty(x.shape, x.dtype), device.empty(w.shape, w.dtype), device.empty(len(w), w.dtype)
    linear_backward_into(dx, dw, db, *map(device.array, (dy, x, w)))
    return dx, dw, db


@kernel
def linear_backward_into(
    dx: Float[Array, "T D"], dw: Float[Array, "O D"], db: Float[Array, " O"], dy: Float[Array, "T O"],
    x: Float[Array, "T D"], w: Float[Array, "O D"],
) -> None:
    """Write the gradients of a linear map's input, weights and bias."""
    for out, other, transposed in ((dx, w, False), (dw, x, True)):
        made = product_kernel(named(out), named(dy), named(other), transposed)
        device.launch(made, blocks_for(out.size, THREADS), THREADS, out, dy, other)
    device.launch(sum_kernel(named(db), named(dy)), blocks_for(db.size, THREADS), THREADS, db, dy)


@op
def relu_backward(dy: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    require(dy.shape == x.shape, "C1", f"dy has shape {dy.shape}, x {x.shape}")
    return applied(relu_backward_into, dy, x)


@kernel
def relu_backward_into(out: Float[Array, "..."], dy: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write what passes of ``dy`` into ``out``, which may be ``dy``."""
    launch_flat(relu_backward_kernel(named(dy), named(x)), out, dy, x)


@op
def sgd_step(
    w: Float[Array, "..."], dw: Float[Array, "..."], velocity: Float[Array, "..."], *, learning_rate: float,
    momentum: float = 0.0,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """One thread an element, blocks of 256: both results in one pass."""
    require(w.shape == dw.shape == velocity.shape, "C1", f"shapes {w.shape}, {dw.shape} and {velocity.shape}")
    stepped, moving = device.empty(w.shape, w.dtype), device.empty(w.shape, velocity.dtype)
    rate = {"learning_rate": learning_rate, "momentum": momentum}
    sgd_step_into(stepped, moving, *map(device.array, (w, dw, velocity)), **rate)
    return stepped, moving


@kernel
def sgd_step_into(
    stepped: Float[Array, "..."], moving: Float[Array, "..."], w: Float[Array, "..."], dw: Float[Array, "..."],
    velocity: Float[Array, "..."], *, learning_rate: float, momentum: float = 0.0,
) -> None:
    """Write weights and velocity after a step; they may be the arrays of before."""
    made = sgd_step_kernel(named(w), named(dw), named(velocity))
    launch_flat(made, stepped, moving, w, dw, velocity, float(learning_rate), float(momentum))


def _marked(logits: Array, targets: Array, ignore_index: int) -> Array:
    """Return the targets for a kernel: int32, and -1 where they do not count."""
    fits = logits.ndim == 2 and logits.shape[1] > 0 and targets.shape == logits.shape[:1]
    require(fits and targets.dtype.kind in "iu", "C1", f"logits have shape {logits.shape}, targets {targets.shape}")
    tokens = device.to_host(targets)
    counted = tokens != ignore_index
    inside = (tokens >= 0) & (tokens < logits.shape[1])
    require(bool((inside | ~counted).all()), "C2", f"targets are {ignore_index} or tokens 0..{logits.shape[1] - 1}")
    return device.array(np.where(counted, tokens.astype(np.int64), -1), np.int32)  # unsigned, -1 would wrap around


def _batch() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"logits": draw.standard_normal((4, 8192), np.float32), "targets": draw.integers(0, 8192, 4)}


def _layer() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {"dy": (16, 128), "x": (16, 256), "w": (128, 256)}
    return {name: draw(shape, np.float32) for name, shape in shapes.items()}


def _pair() -> dict[str, Any]:
    dy, x = np.random.default_rng(0).standard_normal((2, 4, 14336), np.float32)
    return {"dy": dy, "x": x}


def _weights() -> dict[str, Any]:
    drawn = np.random.default_rng(0).standard_normal((3, 256, 256), np.float32)
    return dict(zip(("w", "dw", "velocity"), drawn, strict=True)) | {"learning_rate": 0.1, "momentum": 0.9}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in (
        (cross_entropy, _batch),
        (cross_entropy_backward, _batch),
        (linear_backward, _layer),
        (relu_backward, _pair),
        (sgd_step, _weights),
    )
)
