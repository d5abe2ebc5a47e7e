"""How long a sequence may be, whoever asks; and who may step it."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu.executor.cpu import CpuExecutor
from gpu.model import Model
from refimpl.contract import ContractError, UsageError
from refimpl.model import Model as Reference
from refimpl.model import Source
from tests.executor.tiny_models import LLAMA, SPECS, random_tensors

LEARNED = replace(SPECS["gpt2"], max_positions=20)  # 20 is no whole number of pages
ROTARY = replace(LLAMA, max_positions=20)
LONG = [1] * 40
REFUSALS = (UsageError, ContractError)


def build(spec, **settings):
    """Return an executor, and the model around it."""
    tensors = random_tensors(spec)
    executor = CpuExecutor(spec, tensors, **{"threads": 2, **settings})
    return executor, Model(Source(spec, tensors, None, Path()), executor, "cpu")


def in_pieces(executor, count):
    """Step a sequence of the whole context token by token."""
    sequence = executor.new_sequence()
    for token in LONG[:count]:
        executor.step([(sequence, [token])])


@pytest.mark.parametrize(
    ("spec", "context"), [(LEARNED, None), (LEARNED, 20), (LEARNED, 7), (ROTARY, 20), (ROTARY, 17), (ROTARY, 33)]
)
def test_no_face_passes_a_hard_limit(spec, context):
    executor, model = build(spec, context=context)
    most = context or 20
    faces = [
        lambda count: executor.step([(executor.new_sequence(), LONG[:count])]),
        lambda count: in_pieces(executor, count),
        lambda count: executor.step([(executor.new_sequence(count), LONG[:count])]),
        lambda count: executor.logits(LONG[:count]),
        lambda count: executor.hidden_states(LONG[:count]),
        lambda count: model.logits(LONG[:count]),
        lambda count: model.hidden_states(LONG[:count]),
        lambda count: model.greedy(LONG[: count - 3], 4),  # the fourth is answered, not stepped
        lambda count: list(model.generate(LONG[: count - 1], max_tokens=1)),  # the answer counts, too
    ]
    for face in faces:
        face(most)
        for count in (most + 1, 40):
            with pytest.raises(REFUSALS, match=f"{most}|20 learned"):
                face(count)
    executor.close()


def test_generation_ends_with_the_context():
    for spec in (LEARNED, ROTARY):
        executor, model = build(spec)
        tokens = list(model.generate(LONG[:15], ignore_eos=True))
        assert len(tokens) == 5 and tokens[-1].stop == "context"
        executor.close()


def test_a_rotary_model_goes_beyond_its_context_as_the_reference_does():
    executor, model = build(ROTARY)
    reference = Reference(ROTARY, {name: tensor.read() for name, tensor in random_tensors(ROTARY).items()})
    assert np.allclose(model.logits(LONG), reference.logits(LONG), atol=1e-3)
    assert model.greedy(LONG[:18], 9) == reference.greedy(LONG[:18], 9)
    most = executor.cache.tokens
    for face in (lambda: model.logits([1] * (most + 1)), lambda: model.greedy([1] * most, 2)):
        with pytest.raises(UsageError, match=str(most)):
            face()
    executor.close()


@pytest.mark.parametrize("longest", [0, -1])
def test_a_sequence_has_room_for_a_token(longest):
    executor, _ = build(ROTARY)
    with pytest.raises(UsageError, match=str(longest)):
        executor.new_sequence(longest)
    executor.close()


def test_a_closed_executor_refuses():
    executor, model = build(ROTARY)
    sequence = executor.new_sequence()
    executor.step([(sequence, [1])])
    for _ in range(2):
        executor.close()
    faces = [
        lambda: executor.step([(sequence, [1])]), lambda: executor.logits([1]), lambda: executor.hidden_states([1]),
        lambda: model.greedy([1], 1), lambda: next(model.generate([1])),
    ]  # fmt: skip
    for face in faces:
        with pytest.raises(UsageError, match="closed"):
            face()
    executor.free(sequence)
    assert executor.cache.free_pages == executor.cache.count


def test_a_sequence_belongs_to_its_executor():
    (one, _), (other, _) = build(ROTARY), build(ROTARY)
    sequence = one.new_sequence()
    one.step([(sequence, [1, 2])])
    for face in (lambda: other.step([(sequence, [3])]), lambda: other.free(sequence)):
        with pytest.raises(UsageError, match="another executor"):
            face()
    assert sequence.length == 2 and other.cache.free_pages == other.cache.count
    one.step([(sequence, [3])])
    for executor in (one, other):
        executor.close()


def test_threads_that_step_one_sequence_lose_no_token():
    executor, _ = build(LLAMA, context=1024)
    sequence = executor.new_sequence()

    def append():
        for _ in range(50):
            executor.step([(sequence, [7])])

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = executor.step([(sequence, [7])])[0]
    assert sequence.length == 201 and np.array_equal(last, executor.logits([7] * 201)[-1])
    executor.close()


def test_an_error_before_the_step_leaves_the_executor_ready(monkeypatch):
    executor, _ = build(ROTARY)
    sequence = executor.new_sequence()

    def fail(_):
        raise MemoryError("while it compiles")

    with monkeypatch.context() as patch:
        patch.setattr("gpu.executor.cpu.compile_now", fail)
        with pytest.raises(MemoryError, match="compiles"):
            executor.step([(sequence, [1, 2])])
    assert sequence.length == 0
    assert np.array_equal(executor.step([(sequence, [1, 2])])[0], executor.logits([1, 2])[-1])
    executor.close()
