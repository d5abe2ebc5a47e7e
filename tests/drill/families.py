"""The faults of layers, families and GGUF files."""

from tests.drill.faults import Fault

__all__ = ["FAMILIES"]


def _layer(name: str, what: str, old: str, new: str, folder: str) -> Fault:
    check = f"tests/models/test_families.py::test_logits_are_those_of_transformers[{folder}-refimpl]"
    return Fault(name, what, "refimpl/models/layer.py", old, new, (check,))


def _family(name: str, what: str, file: str, old: str, new: str, folder: str, kind: str = "logits") -> Fault:
    tests = {
        "logits": f"test_logits_are_those_of_transformers[{folder}-refimpl]",
        "spelling": f"test_both_spellings_of_a_config_are_one_model[{folder}]",
        "key": f"test_an_unknown_key_that_is_set_is_refused_by_name[{folder}]",
    }
    return Fault(name, what, f"refimpl/models/{file}.py", old, new, (f"tests/models/test_families.py::{tests[kind]}",))


def _gguf(name: str, what: str, file: str, old: str, new: str, *tests: str) -> Fault:
    checks = tuple(f"tests/models/test_gguf_names.py::{test}" for test in tests)
    return Fault(name, what, f"refimpl/models/{file}.py", old, new, checks)


FAMILIES = (
    _layer(
        "network behind", "the network of a parallel layer reads what attention gave",
        'run_norm(x if layer.norms == "parallel" else h,', "run_norm(h,", "gpt_neox",
    ),
    _layer(
        "residual unscaled", "what a network adds is not multiplied", 'return h + scale * run_norm(fed,',
        "return h + run_norm(fed,", "granite",
    ),
    _layer(
        "gain less 1", "a stored gain is taken as it is, where the file holds gain - 1",
        "gain_offset=spec.gain_offset)", "gain_offset=0.0)", "gemma2",
    ),
    _family(
        "one theta", "layers that slide turn as the others do", "families/gemma",
        'ropes_by_kind(config, mixers, 1e6, 1e4, "rope_local_base_freq")',
        'ropes_by_kind(config, mixers, 1e6, 1e4, "rope_theta")', "gemma3_text",
    ),
    _family(
        "order of q, k, v", "the rows of heads are taken as three stacks", "families/gpt_neox",
        ".swapaxes(0, 1).reshape(-1)", ".reshape(-1)", "gpt_neox",
    ),
    _family(
        "shares renormalised", "shares of experts sum to 1 though the config says no",
        "families/qwen_moe", 'flag(config, "norm_topk_prob")', 'flag(config, "norm_topk", True)', "qwen2_moe",
    ),
    _family(
        "default of a family", "an absent rotary_pct turns whole heads", "families/gpt_neox",
        'config.get("rotary_pct", 0.25)', 'config.get("rotary_percent", 0.25)', "gpt_neox",
    ),
    _family(
        "new spelling", "rope_parameters of one kind of layers are not read", "reading",
        '"rope_parameters": nested.get(kind)', '"rope_parameters": nested.get(FULL)', "gemma3_text", "spelling",
    ),
    _family(
        "key unchecked", "a key that is not understood is passed over", "families/granite",
        '    check_keys(config, MODEL_TYPES["granite"])\n', "", "granite", "key",
    ),
    _gguf(
        "pairs as halves", "rows of q and k stay in pairs", "families/smollm3", "paired=True", "paired=False",
        "test_file_gives_the_logits_of_its_checkpoint[smollm3]",
    ),
    _gguf(
        "gain and 1", "1 is added to gains that hold it", "gguf_names", "gain_offset=0.0)", "norm_eps=0.003)",
        "test_file_gives_the_logits_of_its_checkpoint[gemma3_text]",
    ),
    _gguf(
        "norm of another name", "the norm before experts is taken for one behind attention", "families/gpt_oss",
        "tensors=NETWORK_NORM,\n", "\n", "test_file_gives_the_logits_of_its_checkpoint[gpt_oss]",
    ),
    _gguf(
        "metadata passed over", "a metadata key that is not understood is passed over", "gguf_names",
        "    check_keys(meta,", "    check_keys({},", "test_metadata_that_is_not_understood_is_refused_by_name[llama]",
    ),
    _gguf(
        "further layers run", "layers that guess further tokens are run as the model's", "gguf_names",
        ' - integer(meta, _FURTHER)', "", "test_layers_that_guess_further_tokens_are_left_out",
    ),
)
