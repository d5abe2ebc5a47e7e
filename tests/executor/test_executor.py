"""The CPU executor computes what the reference says, for every shape of model and every format of weights."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from gpu.executor.cpu import CpuExecutor
from gpu.executor.weights import DTYPES
from refimpl.contract import ContractError, UsageError
from tests.executor.tiny_models import BLOCKS, LLAMA, SPECS, distance, random_tensors, reference, rounding_reference

EPS = float(np.finfo(np.float32).eps)


@pytest.fixture
def build():
    """Return a maker of executors that are closed at the end."""
    made = []

    def make(spec, tensors, **settings):
        made.append(CpuExecutor(spec, tensors, **{"threads": 2, "context": 1024, **settings}))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [1, 17, 300])
def test_states_and_logits_are_the_references(build, name, length):
    spec = SPECS[name]
    tensors, ids = random_tensors(spec), np.random.default_rng(1).integers(0, spec.vocab_size, length)
    executor = build(spec, tensors)
    ours = [*executor.hidden_states(ids), executor.logits(ids)]
    plain, truth = reference(spec, tensors, ids, np.float32), reference(spec, tensors, ids)
    assert len(ours) == spec.num_layers + 2
    for x, same, exact in zip(ours, plain, truth, strict=True):
        assert distance(x, exact) <= 3 * distance(same, exact) + 16 * EPS


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_plain_formats(build, name):
    tensors, ids = random_tensors(LLAMA), np.arange(40)
    stored = {key: tensor.read() for key, tensor in tensors.items()}
    executor = build(LLAMA, tensors, dtype=name)
    rounded = {
        key: replace(tensors[key], source=value.astype(DTYPES[name]).astype(np.float32))
        if value.ndim == 2 else tensors[key]
        for key, value in stored.items()
    }  # fmt: skip
    assert distance(executor.logits(ids), reference(LLAMA, rounded, ids)[-1]) < 64 * EPS


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_quantised_blocks_stay_as_they_are(build, name):
    tensors, ids = random_tensors(BLOCKS, name=name), np.arange(40)
    exact = reference(BLOCKS, tensors, ids)[-1]
    whole = build(BLOCKS, tensors)
    assert distance(whole.logits(ids), exact) < 64 * EPS
    assert whole.weights.bytes < build(BLOCKS, tensors, dtype="float32").weights.bytes / 3


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_int8_activations_are_the_references(build, name):
    tensors, ids = random_tensors(BLOCKS, name=name), np.arange(40)
    ours, rounded = build(BLOCKS, tensors, activations="int8").logits(ids), rounding_reference(BLOCKS, tensors, ids)
    assert distance(ours, rounded) < distance(ours, reference(BLOCKS, tensors, ids)[-1]) / 5


def test_a_later_token_reaches_no_earlier_one(build):
    tensors = random_tensors(LLAMA)
    ids = [5, 6, 7, 8, 9, 10]
    before = build(LLAMA, tensors).logits(ids)
    tensors["embedding"].data[9] = np.inf
    after = build(LLAMA, tensors).logits(ids)
    assert np.array_equal(before[:4], after[:4]) and np.isnan(after[4:]).all()


def test_generation_continues_as_the_whole_text(build):
    executor, ids = build(SPECS["windows"], random_tensors(SPECS["windows"])), list(range(50))
    sequence = executor.new_sequence()
    for _ in range(20):
        ids.append(int(executor.step([(sequence, ids[sequence.length :])])[0].argmax()))
    assert np.array_equal(executor.logits(ids)[49:69].argmax(-1), ids[50:])


def test_two_threads_at_once(build):
    executor, answers = build(LLAMA, random_tensors(LLAMA), threads=3), {}

    def answer(number):
        sequence, ids = executor.new_sequence(), [number + 1] * (number + 3)
        for _ in range(30):
            ids.append(int(executor.step([(sequence, ids[sequence.length :])])[0].argmax()))
        executor.free(sequence)
        answers[number] = ids

    for number in range(4):
        answer(number)
    alone = dict(answers)
    threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == alone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"activations": "int4"}, "float32 or int8"), ({"threads": 0}, "at least 1"), ({"dtype": "int8"}, "dtype"),
        ({"context": 0}, "context"), ({"context": 2000}, "1024 positions"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(build, settings, words):
    with pytest.raises(UsageError, match=words):
        build(SPECS["gpt2"], random_tensors(SPECS["gpt2"]), **settings)


def test_step_C1_C2(build):
    executor = build(LLAMA, random_tensors(LLAMA))
    sequence, gone = executor.new_sequence(), executor.new_sequence()
    executor.free(gone)
    for items in ([], [(sequence, [])], [(sequence, [1]), (sequence, [2])], [(gone, [1])], [(sequence, [[1]])]):
        with pytest.raises(ContractError, match="C1"):
            executor.step(items)
    for ids in ([-1], [70], [0.5]):
        with pytest.raises(ContractError, match="C2"):
            executor.step([(sequence, ids)])
    assert sequence.length == 0
