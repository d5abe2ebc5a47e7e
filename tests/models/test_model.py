"""A model from its folder: logits, states, ids and tokens, and what is refused in one line."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import refimpl
from refimpl.contract import CheckpointError, ContractError, UsageError
from refimpl.model import open_model
from tests.models.tiny import CONFIGS, GPT2, LLAMA, write_checkpoint

IDS = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: write_checkpoint(root / name, config) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_the_chain_of_likeliest_tokens(name: str, folders: dict[str, Path]):
    model = refimpl.load(str(folders[name]), dtype="float64")
    output = model.greedy(IDS, 6)
    if name not in ("llama_dynamic", "phi3_longrope"):  # their cache remembers older rotations
        expected = list(IDS)
        for _ in range(6):
            expected.append(int(model.logits(expected)[-1].argmax()))
        assert output == expected[len(IDS) :]
    assert [token.id for token in model.generate(IDS, max_tokens=6, ignore_eos=True)] == output
    assert model.greedy(IDS, 0) == []


@pytest.mark.parametrize(("dtype", "relative"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)])
@pytest.mark.parametrize("name", ["gpt2", "llama_bias", "qwen3"])
def test_narrow_dtypes_stay_near(name: str, dtype: str, relative: float, folders: dict[str, Path]):
    exact = refimpl.load(str(folders[name]), dtype="float64").logits(IDS)
    logits = refimpl.load(str(folders[name]), dtype=dtype).logits(IDS)
    assert logits.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert exact.dtype == np.float64 and exact.shape == (5, 23)
    assert np.linalg.norm(logits.astype(np.float64) - exact) < relative * np.linalg.norm(exact)


def test_weights_stay_in_the_file(folders: dict[str, Path]):
    source = open_model(folders["llama"])
    assert source.path == folders["llama"]
    assert source.weights["layers.0.w_q"].shape == (16, 12)
    assert source.tokenizer is None
    assert source.spec.family == "llama"


def test_end_of_a_sequence(folders: dict[str, Path]):
    model = refimpl.load(str(folders["llama"]))
    first = model.greedy(IDS, 1)[0]
    ended = replace(model, spec=replace(model.spec, eos_ids=(first,)))
    assert [(token.id, token.stop) for token in ended.generate(IDS, max_tokens=4)] == [(first, "eos")]
    reasons = [token.stop for token in ended.generate(IDS, max_tokens=4, ignore_eos=True)]
    assert reasons == [None, None, None, "length"]


def test_drawn_tokens_follow_the_seed(folders: dict[str, Path]):
    model = refimpl.load(str(folders["llama"]))

    def draw(seed: int) -> list[int]:
        return [token.id for token in model.generate(IDS, max_tokens=12, temperature=2.0, seed=seed, ignore_eos=True)]

    assert draw(1) == draw(1) != draw(2)
    chain = (("temperature", 2.0), ("top_k", 1))
    chosen = [token.id for token in model.generate(IDS, max_tokens=5, chain=chain, ignore_eos=True)]
    assert chosen == model.greedy(IDS, 5)


def test_generation_ends_with_the_context(folders: dict[str, Path]):
    model = refimpl.load(str(folders["gpt2"]))
    tokens = list(model.generate([1] * 30, ignore_eos=True))
    assert [token.stop for token in tokens] == [None, "context"]
    with pytest.raises(UsageError, match="context of 32"):
        model.generate([1] * 32)


@pytest.mark.parametrize("ids", [[], [23], [-1], [0.5], [[1, 2]], ["a"]])
def test_ids_that_are_refused(ids: list, folders: dict[str, Path]):
    model = refimpl.load(str(folders["llama"]))
    for call in (model.logits, model.hidden_states, lambda x: model.greedy(x, 1)):
        with pytest.raises(ContractError):
            call(ids)


def test_learned_positions_end(folders: dict[str, Path]):
    model = refimpl.load(str(folders["gpt2"]))
    assert model.logits([1] * 32).shape == (32, 23)
    with pytest.raises(ContractError, match="33 ids exceed the 32 learned positions"):
        model.logits([1] * 33)
    with pytest.raises(ContractError):
        model.greedy([1] * 30, 5)


def test_rotary_positions_go_on(folders: dict[str, Path]):
    assert refimpl.load(str(folders["llama"])).logits([1] * 70).shape == (70, 23)


def test_text_needs_a_tokenizer(folders: dict[str, Path]):
    model = refimpl.load(str(folders["llama"]))
    for prompt in ("Hello", [{"role": "user", "content": "Hello"}]):
        with pytest.raises(UsageError, match="no tokenizer"):
            model.generate(prompt)
    with pytest.raises(UsageError, match="system message"):
        model.generate(IDS, system="Be brief.")


def test_a_setting_that_there_is_not(folders: dict[str, Path]):
    model = refimpl.load(folders["llama"])
    with pytest.raises(UsageError, match="no setting 'temprature'; those of sampling are temperature, top_k"):
        model.generate(IDS, temprature=1.0)
    with pytest.raises(UsageError, match="a chain and top_k"):
        model.generate(IDS, chain=(("greedy", None),), top_k=3)


def test_what_cannot_be_loaded(tmp_path: Path):
    with pytest.raises(UsageError, match="dtype is one of float32"):
        refimpl.load(str(write_checkpoint(tmp_path / "a", LLAMA)), dtype="int8")
    (tmp_path / "b").mkdir()
    with pytest.raises((UsageError, CheckpointError)):
        refimpl.load(str(tmp_path / "b"))
    write_checkpoint(tmp_path / "c", GPT2)
    (tmp_path / "c" / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(CheckpointError, match="'unheard_of' is not supported; supported: bart, bert, "):
        refimpl.load(str(tmp_path / "c"))


def test_reader_of_one_operation_waits_for_nothing_else():
    program = "import refimpl, refimpl.basics.norm, sys; print([n for n in ('tiktoken', 'jinja2') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
