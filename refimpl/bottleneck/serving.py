"""What a model asks of a device: parameters, memory, and the least time of prefill and of a decode step.

A phase runs ``queries`` tokens of each sequence after ``start`` earlier ones: prefill is (T, 0), a decode step (1, S).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from refimpl.blocks import FORMATS
from refimpl.bottleneck.cost import cost
from refimpl.bottleneck.roofline import Cost, Device, seconds
from refimpl.contract import UsageError, host
from refimpl.models.spec import ModelSpec, MoeSpec, weight_shapes

__all__ = [
    "Serving", "attention_pairs", "denoiser_passes", "experts_reached", "kv_bytes_per_token", "kv_bytes_read",
    "mixture_of", "parameters", "phase_costs", "phase_seconds", "serve", "weight_bytes",
]

_ITEMSIZE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float8": 1.0, "int8": 1.0, "float4": 0.5}
_ITEMSIZE |= {name: form.bytes / form.elements for name, form in FORMATS.items()}


def _itemsize(dtype: str) -> float:
    if dtype not in _ITEMSIZE:
        raise UsageError(f"weights and caches are held in {', '.join(_ITEMSIZE)}, not {dtype}")
    return _ITEMSIZE[dtype]


@host
def parameters(spec: ModelSpec) -> tuple[int, int]:
    """Count the parameters: all, and those active, which a token meets; of the experts, it meets those of its router.

    >>> from refimpl.models.spec import AttentionSpec, LayerSpec
    >>> layer = LayerSpec(AttentionSpec(4, 2, 2), MoeSpec(num_experts=4, num_active=1, size=16))
    >>> parameters(ModelSpec("mixtral", 11, 8, (layer,), 32, tied_embeddings=True))
    (1872, 720)
    """
    counts = {name: prod(shape) for name, shape in weight_shapes(spec).items()}
    active = (n * (moe := mixture_of(spec, name)).num_active // moe.num_experts for name, n in counts.items())
    return sum(counts.values()), sum(active)


@host
def mixture_of(spec: ModelSpec, name: str) -> MoeSpec:
    """Return the mixture that a weight is an expert of; what every token meets is the only expert of its own."""
    network = spec.layers[int(name.split(".")[1])].network if ".experts." in name else None
    return network if isinstance(network, MoeSpec) else MoeSpec(num_experts=1, num_active=1, size=0)


@host
def weight_bytes(spec: ModelSpec, dtype: str = "float16") -> dict[str, int]:
    """Return the bytes of every weight in a dtype or a block format."""
    return {name: round(prod(shape) * _itemsize(dtype)) for name, shape in weight_shapes(spec).items()}


@host
def kv_bytes_per_token(spec: ModelSpec, dtype: str = "float16") -> int:
    """Return 2 L K H elements: a key and a value in every layer."""
    return round(2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * _itemsize(dtype))


@host
def kv_bytes_read(spec: ModelSpec, queries: int, start: int, dtype: str = "float16") -> int:
    """Return the bytes of keys and values that a phase reads once, those inside each layer's window: all it needs."""
    keys = sum(_keys_seen(queries, start, window) for window in _windows(spec))
    return keys * kv_bytes_per_token(spec, dtype) // spec.num_layers


def _windows(spec: ModelSpec) -> list[int | None]:
    """Return the most keys that a token sees in each layer: a chunk is counted as a window, as at its end."""
    return [mixer.window or mixer.chunk for mixer in spec.mixers]


def _keys_seen(queries: int, start: int, window: int | None) -> int:
    return start + queries if window is None else min(start, window - 1) + queries


@host
def attention_pairs(queries: int, start: int, window: int | None) -> int:
    """Return the query-key pairs of a causal layer: the query at position p sees min(p + 1, window) keys.

    >>> attention_pairs(4, 0, None), attention_pairs(4, 0, 2), attention_pairs(1, 99, None)
    (10, 7, 100)
    """
    full = start + queries if window is None else window
    rising = min(max(full - start, 0), queries)  # queries that see all that came before
    return rising * start + rising * (rising + 1) // 2 + (queries - rising) * full


@host
def experts_reached(moe: MoeSpec, tokens: int) -> float:
    """Return how many experts of a layer so many tokens go to, if each expert is as likely as the others.

    Math: E (1 - (1 - A / E)^tokens).

    >>> experts_reached(MoeSpec(8, 2, 64), 1), experts_reached(MoeSpec(8, 2, 64), 2)
    (2.0, 3.5)
    """
    return moe.num_experts * (1 - (1 - moe.num_active / moe.num_experts) ** tokens)


@host
def phase_costs(
    spec: ModelSpec, queries: int, start: int = 0, *, batch: int = 1, weights: Mapping[str, int] | None = None,
    activations: str = "float16", cache: str = "float16", chunk: int | None = None,
) -> dict[str, Cost]:  # fmt: skip
    """Return what the parts of a phase cost: matrices by kind, attention by window, the head for the last tokens alone.

    ``weights`` are the bytes of each, by default those of float16. They are read once for every ``chunk`` of tokens,
    and those of an expert if a token goes to it. Norms, biases and activation functions are left out: below 1 %.
    """
    if not (all(n >= 1 for n in (queries, batch, 1 if chunk is None else chunk)) and start >= 0):
        raise UsageError(f"a phase needs tokens: {queries} after {start}, in batches of {batch} and chunks of {chunk}")
    held, shapes, costs = weights or weight_bytes(spec), weight_shapes(spec), dict[str, Cost]()
    tokens, b, N, H = batch * queries, _itemsize(activations), spec.num_heads, spec.head_dim
    together = min(chunk or tokens, tokens)
    for name, shape in shapes.items():
        if name.startswith("layers.") and len(shape) > 1 and ".b_" not in name:
            kind, moe = name.split(".", 2)[2], mixture_of(spec, name)
            read = ceil(tokens / together) * experts_reached(moe, together) / moe.num_experts * held[name]
            costs[kind] = costs.get(kind, Cost(0, 0)) + _matrix(tokens * moe.num_active, shape, read, b)
    pair = cost("attention", T=1, S=1, N=N, K=spec.num_kv_heads, H=H, H2=H).flops
    token = kv_bytes_per_token(spec, cache) / spec.num_layers
    for window in _windows(spec):
        name = "attention" if window is None else f"attention {window}"
        moved = 2 * queries * N * H * b + (queries + _keys_seen(queries, start, window)) * token
        layer = Cost(batch * attention_pairs(queries, start, window) * pair, batch * moved)
        costs[name] = costs.get(name, Cost(0, 0)) + layer
    head = "embedding" if spec.tied_embeddings else "lm_head"
    return costs | {"head": _matrix(batch, shapes[head], held[head], b)}


def _matrix(T: int, shape: tuple[int, ...], read: float, b: float) -> Cost:
    """Count linear, with the bytes that are read of its matrix: packed, in part, or more than once."""
    plain = cost("linear", b=b, T=T, O=shape[-2], D=shape[-1])
    return Cost(plain.flops, plain.bytes - b * shape[-2] * shape[-1] + read)


@host
def phase_seconds(costs: Mapping[str, Cost], device: Device, dtype: str = "float16") -> float:
    """Return the least time of a phase, whose parts run one after the other."""
    return sum(seconds(part, device, dtype) for part in costs.values())


@dataclass(frozen=True)
class Serving:
    """What users get at best: seconds to the first token and for each further one, tokens a second of all, memory."""

    ttft: float
    tpot: float
    tps: float
    memory: float


@host
def serve(
    spec: ModelSpec, device: Device, *, context: int, batch: int = 1, weights: str = "float16", cache: str = "float16",
    dtype: str = "float16",
) -> Serving:
    """Estimate how a device serves ``batch`` prompts of ``context`` tokens together, computing in ``dtype``.

    >>> from refimpl.bottleneck.roofline import DEVICES
    >>> from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec
    >>> layers = (LayerSpec(AttentionSpec(32, 8, 128), MlpSpec(14336, "silu")),) * 32
    >>> llama = ModelSpec("llama", 128256, 4096, layers, 8192)
    >>> alone, many = (serve(llama, DEVICES["H100"], context=2048, batch=batch) for batch in (1, 64))
    >>> round(alone.tps), round(many.tps), round(many.tps / 64)
    (219, 6578, 103)
    """
    held = weight_bytes(spec, weights)
    ttft, tpot = (
        phase_seconds(phase_costs(spec, queries, start, batch=batch, weights=held, cache=cache), device, dtype)
        for queries, start in ((context, 0), (1, context))
    )
    return Serving(ttft, tpot, batch / tpot, sum(held.values()) + batch * kv_bytes_read(spec, 1, context - 1, cache))


@host
def denoiser_passes(steps: int, guided: bool = True) -> int:
    """Return how often an image model runs for a picture: guidance needs a pass with the prompt and one without.

    >>> denoiser_passes(50)
    100
    """
    return steps * (1 + guided)
