"""Which operations an encoder or an encoder-decoder runs on: those of the device that was asked for."""

from types import SimpleNamespace
from typing import Any

from refimpl.contract import Array, host

__all__ = ["namespace"]


@host
def namespace(name: str) -> Any:
    """Return the operations of a device: kernels on ``cuda`` and ``emulated``.

    On the ``cpu`` they are the specification's, whose matrices BLAS multiplies, with the executor's kernels in place of
    the norms and activations, where these are faster: up to 60 times, for the exact GELU.

    >>> namespace("cpu").attention.__module__, namespace("emulated").attention.__module__
    ('refimpl.llm.attention', 'gpu.llm.attention')
    """
    if name != "cpu":
        from gpu import operations as kernels

        return kernels
    from gpu.executor.elementary import ACTIVATIONS
    from gpu.executor.operations import OPERATIONS
    from refimpl import operations as plain

    faster = {known: OPERATIONS[known].call for known in ("layer_norm", "rms_norm", *ACTIVATIONS)}
    linear = plain.linear

    def mlp(x: Array, up: Array, down: Array, b_up: Any = None, b_down: Any = None, *, activation: str) -> Array:
        return linear(faster[activation](linear(x, up, b_up)), down, b_down)

    def gated_mlp(
        x: Array, gate: Array, up: Array, down: Array, b_gate: Any = None, b_up: Any = None, b_down: Any = None, *,
        activation: str,
    ) -> Array:  # fmt: skip
        return linear(faster[activation](linear(x, gate, b_gate)) * linear(x, up, b_up), down, b_down)

    return SimpleNamespace(**{**vars(plain), **faster, "mlp": mlp, "gated_mlp": gated_mlp})
