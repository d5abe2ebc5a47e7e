"""A request's logits are its own: no batch, no cut, no place in the cache, no number of threads moves a bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.executor.cpu import CpuExecutor
from tests.executor.tiny_models import BLOCK_EXPERTS, BLOCKS, SPECS, random_tensors

NAMES = [
    "llama", "windows", "gpt2", "many queries", "biases, normed heads", "chunks", "gemma", "olmo", "gpt_oss",
    "qwen moe", "glm moe", "parallel moe", "dynamic",
]  # fmt: skip


class Machines:
    """Executors of one model by their number of threads, made once."""

    def __init__(self):
        self.made = {}

    def get(self, name, threads):
        if (name, threads) not in self.made:
            blocks = {"q4_1": BLOCKS, "int8": BLOCKS, "experts of int8": BLOCK_EXPERTS}
            spec = blocks.get(name) or SPECS[name]
            tensors = random_tensors(spec, name="q4_1" if name in blocks else "float32")
            settings = {"activations": "int8" if "int8" in name else "float32"}
            self.made[name, threads] = CpuExecutor(spec, tensors, threads=threads, context=1024, **settings)
        return self.made[name, threads]


@pytest.fixture(scope="module")
def machines():
    machines = Machines()
    yield machines
    for executor in machines.made.values():
        executor.close()


def alone(executor, ids):
    """Return the last logits of a text that runs by itself, in one step."""
    sequence = executor.new_sequence()
    logits = executor.step([(sequence, ids)])[0]
    executor.free(sequence)
    return logits


@given(data=st.data())
@pytest.mark.parametrize("name", [*NAMES, "q4_1", "int8", "experts of int8"])
def test_batch_cut_pages_poison_threads(machines, name, data):
    threads = data.draw(st.sampled_from([1, 2, 3]))
    executor, lengths = machines.get(name, threads), data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=4))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    texts = [random.integers(0, 70, length) for length in lengths]
    expected = [alone(machines.get(name, 1), text) for text in texts]

    random.shuffle(executor.cache._free)
    executor.cache.memory[:] = np.nan
    sequences = [executor.new_sequence(prompt_length=length) for length in lengths]
    seen = {}
    while len(seen) < len(texts):
        chosen = [i for i in range(len(texts)) if i not in seen and (random.random() < 0.7 or len(texts) == 1)]
        items = []
        for i in random.permutation(chosen).astype(int):
            start = sequences[i].length
            stop = len(texts[i]) if random.random() < 0.4 else random.integers(start + 1, len(texts[i]) + 1)
            items.append((sequences[i], texts[i][start:stop]))
        if items:
            logits = executor.step(items)
            for (sequence, _), row in zip(items, logits, strict=True):
                i = sequences.index(sequence)
                if sequence.length == len(texts[i]):
                    seen[i] = row
    for i, row in enumerate(expected):
        assert np.array_equal(seen[i].view(np.int32), row.view(np.int32))
    for sequence in sequences:
        executor.free(sequence)
    assert executor.cache.free_pages == executor.cache.count


@pytest.mark.parametrize("name", [*NAMES[:-1], "q4_1", "int8", "experts of int8"])
def test_one_by_one_is_all_at_once(machines, name):
    executor, ids = machines.get(name, 2), np.random.default_rng(3).integers(0, 70, 290)
    sequence = executor.new_sequence()
    rows = np.concatenate([executor.step([(sequence, [token])]) for token in ids])
    executor.free(sequence)
    assert np.array_equal(rows, executor.logits(ids))


def test_scalings_by_length_see_the_whole_prompt(machines):
    executor, ids = machines.get("dynamic", 1), np.arange(60)
    told, untold = executor.new_sequence(prompt_length=60), executor.new_sequence()
    for sequence in (told, untold):
        executor.step([(sequence, ids[:30])])
    parts, others = (executor.step([(sequence, ids[30:])])[0] for sequence in (told, untold))
    assert np.array_equal(parts, alone(executor, ids)) and not np.array_equal(others, parts)
    for sequence in (told, untold):
        executor.free(sequence)
