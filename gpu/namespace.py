"""Which operations an encoder or an encoder-decoder runs on: those of the device that was asked for."""

from types import SimpleNamespace
from typing import Any

from refimpl.contract import Array, host

__all__ = ["namespace"]

_SHORT = 1 << 12  # scores of a head, up to which NumPy is as fast


@host
def namespace(name: str) -> Any:
    """Return the operations of a device: kernels on ``cuda`` and ``emulated``.

    On the ``cpu`` they are the specification's, with the executor's kernels in place of linear maps by packed matrices,
    attention, norms and activations.

    >>> namespace("cpu").t5_bias.__module__, namespace("emulated").t5_bias.__module__
    ('refimpl.llm.position_bias', 'gpu.llm.position_bias')
    """
    if name != "cpu":
        from gpu import operations as kernels

        return kernels
    from gpu import packed
    from gpu.executor.elementary import ACTIVATIONS
    from gpu.executor.operations import OPERATIONS
    from refimpl import operations as plain

    faster: dict[str, Any] = {known: OPERATIONS[known].call for known in ("layer_norm", "rms_norm", *ACTIVATIONS)}

    linear = packed.linear

    def attention(q: Array, k: Array, v: Array, **rules: Any) -> Array:
        run = plain.attention if len(q) * len(k) <= _SHORT else packed.attention
        return run(q, k, v, **rules)

    def mlp(x: Array, up: Array, down: Array, b_up: Any = None, b_down: Any = None, *, activation: str) -> Array:
        return linear(faster[activation](linear(x, up, b_up)), down, b_down)

    def gated_mlp(
        x: Array, gate: Array, up: Array, down: Array, b_gate: Any = None, b_up: Any = None, b_down: Any = None, *,
        activation: str,
    ) -> Array:  # fmt: skip
        return linear(faster[activation](linear(x, gate, b_gate)) * linear(x, up, b_up), down, b_down)

    faster |= {"linear": linear, "embedding": packed.embedding, "attention": attention, "mlp": mlp}
    faster |= {"gated_mlp": gated_mlp}
    return SimpleNamespace(**{**vars(plain), **faster})
