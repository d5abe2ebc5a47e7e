"""What the keys of a config.json mean, in the classic spelling and in that of transformers 5."""

from collections.abc import Iterable, Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.quantization import check_quantization
from refimpl.models.spec import RopeSpec

__all__ = [
    "activation", "check_keys", "flag", "integer", "layer_count", "number", "rope_spec",
    "shown", "token_ids", "word",
]

_HARMLESS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels", "activation_dropout",
    "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "auto_map", "bad_words_ids",
    "begin_suppress_tokens", "cache_implementation", "chunk_size_feed_forward", "classif_dropout",
    "classifier_dropout", "decoder_layerdrop", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dropout", "dropout_rate", "dtype", "early_stopping", "embd_pdrop", "encoder_layerdrop",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout_prob", "id2label", "init_std",
    "initializer_factor", "initializer_range", "is_llama_config", "keys_to_ignore_at_inference", "label2id",
    "length_penalty", "max_length", "max_sequence_length", "min_length", "n_ctx", "name_or_path",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "qa_dropout", "remove_invalid_values",
    "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate", "router_aux_loss_coef",
    "router_jitter_noise", "router_z_loss_coef", "sep_token_id", "seq_classif_dropout", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
))  # fmt: skip
"""Keys that change nothing about the logits: training, generation defaults, bookkeeping."""

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "quick_gelu": "gelu_quick",
    "gelu": "gelu_erf", "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip

_YARN = ("factor", "original_max_position_embeddings", "attention_factor")
_ROPE_PARAMS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (*_YARN, "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": (*_YARN, "short_factor", "long_factor"),
}
_ROPE_ALIASES = {"default": "none", "su": "longrope"}
_LEAST, _MOST = 1e-6, 1e6  # of the parameters of a scaling
_ROPE_OPTIONAL = {"attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"}


@host
def check_keys(config: Mapping[str, Any], known: Iterable[str], where: str = "config.json") -> None:
    """Refuse a key that is set, is not among those read, and might change the model.

    >>> from refimpl.models.config import check_keys
    >>> check_keys({"hidden_size": 8, "torch_dtype": "float16", "logit_scale": None}, ["hidden_size"])
    >>> check_keys({"hidden_size": 8, "logit_scale": 0.5}, ["hidden_size"])
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: key 'logit_scale' = 0.5 is not supported and might change the model
    """
    if quantised := config.get("quantization_config"):
        check_quantization(quantised, where)
    for key in sorted(set(config) - set(known) - _HARMLESS - {"quantization_config"}):
        value = config[key]
        if value is not None and value is not False and value not in ("", [], {}):
            raise CheckpointError(f"{where}: key {key!r} = {shown(value)} is not supported and might change the model")


@host
def number(
    config: Mapping[str, Any], key: str, default: int | float | None = None, *, least: float, most: float
) -> int | float:
    """Read a number of a range; an absent or null key takes the default, which a required key does not have."""
    value: int | float = _within(key, _given(config, key, default), least, most)
    return value


@host
def integer(
    config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
) -> int:
    """Read a whole number of a range."""
    return int(_within(key, _given(config, key, default), least, most, whole=True))


@host
def word(config: Mapping[str, Any], key: str, words: Iterable[str], default: str | None = None) -> str:
    """Read a word, one of those known.

    >>> from refimpl.models.config import word
    >>> word({"hidden_act": "mish"}, "hidden_act", ["relu", "silu"])
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: hidden_act must be one of relu, silu, not 'mish'
    """
    known, value = tuple(words), _given(config, key, default)
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(f"config.json: {key} must be one of {', '.join(known)}, not {shown(value)}")
    return value


def _given(config: Mapping[str, Any], key: str, default: Any) -> Any:
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise CheckpointError(f"config.json: key {key!r} is missing")
    return value


def _within(key: str, value: Any, least: float, most: float, *, whole: bool = False) -> Any:
    known = isinstance(value, int) or (isinstance(value, float) and not whole)
    if not known or isinstance(value, bool) or not least <= value <= most:  # NaN is in no range
        kind = "an integer" if whole else "a number"
        raise CheckpointError(f"config.json: {key} must be {kind} from {least} to {most}, not {shown(value)}")
    return value


@host
def shown(value: Any) -> str:
    """Spell a value so that it fits into a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


@host
def layer_count(config: Mapping[str, Any], key: str = "num_hidden_layers") -> int:
    """Read the number of layers; thousands are a damaged file, not a model."""
    return integer(config, key, most=4096)


@host
def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Read a true or false."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} must be true or false, not {shown(value)}")
    return value


@host
def activation(config: Mapping[str, Any], key: str, default: str) -> str:
    """Read an activation's name as ours: gelu_new is the tanh form, gelu the exact one."""
    return _ACTIVATIONS[word(config, key, _ACTIVATIONS, default)]


@host
def token_ids(value: Any) -> tuple[int, ...]:
    """Read one id, a list of ids or null as a tuple in rising order."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and abs(i) < 2**31 for i in ids):
        raise CheckpointError(f"config.json: a token id must be an integer below 2^31, not {shown(value)}")
    return tuple(sorted({i for i in ids if i >= 0}))  # -1 says in some files that there is none


@host
def rope_spec(
    config: Mapping[str, Any], head_dim: int, theta: float = 10000.0, partial: float | None = None
) -> RopeSpec:
    """Read the rotary embedding from rope_theta and rope_scaling, or from rope_parameters, which holds both.

    ``theta`` is that of the family, where the config states none; so is ``partial``, the part of a head that turns.
    Models of families without one turn whole heads, whatever partial_rotary_factor says: one that is not 1 is refused.

    >>> from refimpl.models.config import rope_spec
    >>> classic = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    >>> version_5 = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
    >>> rope_spec(classic, 8) == rope_spec(version_5, 8)
    True
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"config.json: rope_scaling must be an object, not {shown(given)}")
    merged = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config} | given
    kind = word(merged, "rope_type" if merged.get("rope_type") else "type", (*_ROPE_PARAMS, *_ROPE_ALIASES), "default")
    kind = _ROPE_ALIASES.get(kind, kind)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}
    check_keys(given, known | set(_ROPE_PARAMS[kind]), "config.json: rope_scaling")
    part = number(merged, "partial_rotary_factor", partial or 1.0, least=0, most=1)
    if partial is None and part != 1:
        raise CheckpointError(f"config.json: partial_rotary_factor {part}, but models of this kind turn whole heads")
    dim = int(head_dim * part)
    theta = float(number(merged, "rope_theta", theta, least=2, most=1e30))
    smallest = 4 if kind == "dynamic" else 2
    if dim < smallest or dim % 2:
        raise CheckpointError(f"config.json: cannot rotate {dim} of {head_dim} dimensions of a head, rope type {kind}")
    return RopeSpec(dim, theta, False, kind, tuple(sorted(_rope_params(config, given, kind, dim).items())))


def _rope_params(config: Mapping[str, Any], given: Mapping[str, Any], kind: str, dim: int) -> dict[str, Any]:
    params: dict[str, Any] = {}
    length, original = "max_position_embeddings", "original_max_position_embeddings"
    stated = {key: value for key, value in given.items() if value is not None}
    if kind in ("yarn", "longrope"):  # Phi-3 keeps the original length outside of rope_scaling
        trained = integer(config, original, integer(config, length))
        stated[original] = integer(stated, original, trained, least=2)
        stated.setdefault("factor", integer(config, length) / stated[original])
    if kind == "dynamic":
        params[length] = integer(config, length)
    for key in _ROPE_PARAMS[kind]:
        if key in ("short_factor", "long_factor"):
            params[key] = _factors(given, key, dim // 2)
        elif key == "truncate":
            params |= {key: flag(given, key)} if key in given else {}
        elif key == original:
            params[key] = integer(stated, key)
        elif key in stated or key not in _ROPE_OPTIONAL:
            params[key] = number(stated, key, least=_LEAST, most=_MOST)
    if kind == "llama3" and params["low_freq_factor"] > params["high_freq_factor"]:
        low, high = params["low_freq_factor"], params["high_freq_factor"]
        raise CheckpointError(f"config.json: low_freq_factor must be at most high_freq_factor, not {low} and {high}")
    return params


def _factors(given: Mapping[str, Any], key: str, count: int) -> tuple[float, ...]:
    values = given.get(key)
    if not isinstance(values, list) or len(values) != count:
        found = len(values) if isinstance(values, list) else shown(values)
        raise CheckpointError(f"config.json: {key} must list {count} factors, one per rotated pair, not {found}")
    return tuple(float(_within(f"each of {key}", value, _LEAST, _MOST)) for value in values)
