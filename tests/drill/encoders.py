"""The faults of encoders and encoder-decoders."""

from tests.drill.faults import Fault

__all__ = ["ENCODERS"]

ANSWERS = "test_the_answers_are_those_of_transformers"


def _fault(name: str, what: str, file: str, old: str, new: str, *tests: str) -> Fault:
    return Fault(name, what, file, old, new, tuple(f"tests/models/test_encoders.py::{test}" for test in tests))


def _wrong(name: str, what: str, file: str, old: str, new: str, folder: str) -> Fault:
    return _fault(name, what, f"refimpl/models/{file}.py", old, new, f"{ANSWERS}[{folder}-float64]")


ENCODERS = (
    _fault(
        "padding counted", "RoBERTa's positions count padding too", "refimpl/models/encoder.py",
        "np.cumsum(real) - 1", "np.arange(len(ids))", "test_roberta_s_padding_may_stand_anywhere",
    ),
    _wrong(
        "padding seen", "a bias by distance lets padding be seen", "stack",
        "bias[:, :, np.flatnonzero(~seen)] = -np.inf", "pass", "t5_encoder",
    ),
    _wrong(
        "memory's padding seen", "a decoder reads the padding of its text", "stack",
        'causal=False, mask=across, scale=spec.scale', "causal=False, mask=None, scale=spec.scale", "bart",
    ),
    _wrong(
        "both directions", "a decoder's distances have the buckets of an encoder", "stack",
        '"bidirectional": not spec.causal', '"bidirectional": True', "t5",
    ),
    _wrong(
        "first table", "every layer of UMT5 reads the first layer's table", "stack",
        "if i == 0 or spec.own_buckets:", "if i == 0:", "umt5",
    ),
    _wrong(
        "scores scaled", "T5's scores are divided by the root of the head's width", "families/t5",
        "scale=1.0, own_buckets", "scale=None, own_buckets", "t5_v1_1",
    ),
    _wrong(
        "states unscaled", "a tied head reads states that are not divided", "encoder_decoder",
        "x = x if spec.logit_scale == 1 else x * x.dtype.type(spec.logit_scale)", "x = x", "t5",
    ),
    _wrong(
        "logits without their bias", "BART's final_logits_bias is left out", "encoder_decoder",
        'return logits + weights["lm_head.bias"] if "lm_head.bias" in weights else logits', "return logits", "bart",
    ),
    _wrong(
        "last end pooled", "CLIP's text is the last token, whatever it is", "encoder",
        'np.argmax(ids if spec.pools == "largest" else ids == spec.end_id)', "len(ids) - 1", "clip_text",
    ),
    _wrong(
        "tied for good", "an untied head is replaced by the embedding", "encoder",
        'weights["embedding"] if spec.tied_embeddings else weights["mask.lm_head"]', 'weights["embedding"]',
        "bert_untied",
    ),
    _fault(
        "row lost", "an answer's cache begins anew at every step", "refimpl/seq2seq_model.py",
        "states, caches = decode_answer(new", "states, _ = decode_answer(new", "test_steps_of_any_length_are_one_pass",
    ),
    _fault(
        "last token unwritten", "a packed matrix leaves out the last row", "gpu/packed.py",
        "inputs.strides[0], len(x), y.ctypes.data", "inputs.strides[0], len(x) - 1, y.ctypes.data",
        f"{ANSWERS}[bert_tokens-gpu-cpu]",
    ),
)  # fmt: skip
