"""Laws of shared prefixes: who writes never changes a sibling, and what is found holds exactly these tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError, UsageError
from refimpl.efficient.allocator import allocate, blocks_for, fork, free, new_allocator
from refimpl.efficient.paged import paged_append, paged_attention, slot_mapping
from refimpl.efficient.prefix_sharing import (
    PrefixIndex,
    block_hashes,
    copy_blocks,
    copy_on_write,
    evict,
    find_prefix,
    remember,
)
from refimpl.llm.attention import attention
from tests.laws.strategies import normal, seeds

tokens = st.lists(st.integers(0, 1), max_size=9)  # few, so that prompts begin alike
block_sizes = st.integers(1, 4)


def keys_of(ids):
    """Return a key for each token that tells all tokens before it too, as a model's keys do."""
    folded, rows = 1.0, []
    for token in ids:
        folded = (3 * folded + token + 1) % 65521
        rows.append([[folded, -folded]])
    return np.array(rows).reshape(-1, 1, 2)


class Engine:
    """A paged cache with sequences of (tokens, blocks), prefixes found, and blocks copied before they are written."""

    def __init__(self, block_size, num_blocks=40, writes=paged_append, copies=copy_blocks):
        self.size, self.writes, self.copies = block_size, writes, copies
        self.allocator, self.index = new_allocator(num_blocks), PrefixIndex(block_size)
        self.caches = [np.full((num_blocks, block_size, 1, 2), np.nan, np.float32) for _ in "kv"]
        self.sequences: list[tuple[list[int], tuple[int, ...]]] = []

    def start(self, ids):
        shared = find_prefix(self.index, ids)
        assert len(shared) * self.size <= max(0, len(ids) - 1)
        self.allocator = fork(self.allocator, shared)
        self.sequences.append((list(ids[: len(shared) * self.size]), shared))
        self.extend(len(self.sequences) - 1, ids[len(shared) * self.size :])

    def extend(self, which, ids):
        held, blocks = self.sequences[which]
        start, stop = len(held), len(held) + len(ids)
        self.allocator, new = allocate(self.allocator, max(0, blocks_for(stop, self.size) - len(blocks)))
        self.allocator, blocks, *copied = copy_on_write(self.allocator, (*blocks, *new), start, stop, self.size)
        self.caches = self.copies(*self.caches, *np.array(copied, np.int32).reshape(2, -1))
        slots = slot_mapping(np.array(blocks, np.int32), np.arange(start, stop), self.size)
        new_keys = keys_of([*held, *ids])[start:].astype(np.float32)
        self.caches = self.writes(*self.caches, new_keys, new_keys, slots)
        self.sequences[which] = ([*held, *ids], blocks)

    def branch(self, which):
        self.allocator = fork(self.allocator, self.sequences[which][1])
        self.sequences.append(self.sequences[which])

    def stop(self, which):
        ids, blocks = self.sequences.pop(which)
        self.index, self.allocator = remember(self.index, self.allocator, blocks, ids)
        self.allocator = free(self.allocator, blocks)

    def check(self):
        """Every sequence reads its own tokens, and the allocator knows who holds what."""
        for ids, blocks in self.sequences:
            for cache in self.caches:
                read = cache[list(blocks)].reshape(-1, 1, 2)[: len(ids)]
                assert np.array_equal(read, keys_of(ids))
        held = [block for _, blocks in self.sequences for block in blocks] + list(self.index.blocks.values())
        number = len(self.allocator.holders)
        assert list(self.allocator.holders) == [held.count(block) for block in range(number)]
        assert sorted({*self.allocator.unused} | {*held}) == list(range(number))
        assert len(set(self.allocator.unused)) == len(self.allocator.unused) == number - len({*held})


def check_steps(engine, seed):
    """Start, extend, branch and stop sequences at random, and let prefixes go where there is no room."""
    draws = np.random.default_rng(seed)

    def ids():
        return draws.integers(0, 2, draws.integers(0, 7)).tolist()

    for _ in range(15):
        room, count = len(engine.allocator.unused), len(engine.sequences)
        engine.index, engine.allocator = evict(engine.index, engine.allocator, max(0, 20 - room))
        what = draws.choice(["start", "extend", "branch", "branch", "stop", "evict"])
        which = int(draws.integers(0, max(1, count)))
        if what == "start" or not count:
            engine.start(ids())
        elif what == "stop" or count > 5 or len(engine.allocator.unused) < 20:
            engine.stop(which)
        elif what == "extend":
            engine.extend(which, ids())
        elif what == "branch":  # into a block that both hold, as far as it is not full
            engine.branch(which)
            engine.extend(which, ids())
            engine.extend(count, ids())
        else:
            engine.index, engine.allocator = evict(engine.index, engine.allocator, int(draws.integers(0, 4)))
        engine.check()


@given(seeds, block_sizes)
def test_who_writes_never_changes_a_sibling_and_no_block_is_lost(seed, block_size):
    check_steps(Engine(block_size), seed)


@given(tokens, tokens, block_sizes)
def test_a_prefix_is_found_as_far_as_its_full_blocks_are_the_same(known, ids, block_size):
    engine = Engine(block_size)
    engine.start(known)
    engine.stop(0)
    alike = next((i for i, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), min(len(known), len(ids)))
    most = min(alike, len(ids) - 1) if ids else 0
    assert len(find_prefix(engine.index, ids)) == most // block_size


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), block_sizes)
def test_a_hit_on_the_whole_prompt_leaves_a_token_to_run(ids, block_size):
    engine = Engine(block_size)
    engine.start(ids)
    engine.stop(0)
    assert len(find_prefix(engine.index, ids)) == (len(ids) - 1) // block_size
    assert len(find_prefix(engine.index, [*ids, 0])) == len(ids) // block_size


@given(tokens, tokens, block_sizes)
def test_hashes_are_the_same_where_all_before_is(one, other, block_size):
    for m, (a, b) in enumerate(zip(block_hashes(one, block_size), block_hashes(other, block_size), strict=False), 1):
        assert (a == b) == (one[: m * block_size] == other[: m * block_size])
    assert len(block_hashes(one, block_size)) == len(one) // block_size


def test_the_end_of_the_oldest_prefix_is_let_go_first():
    engine = Engine(1, 4)
    for ids in ([1, 2], [1, 3]):
        engine.start(ids)
        engine.stop(0)
    first, second, third = (engine.index.blocks[key] for key in (*block_hashes([1, 2], 1), block_hashes([1, 3], 1)[1]))
    gone = []
    for _ in range(3):
        before = set(engine.index.blocks.values())
        engine.index, engine.allocator = evict(engine.index, engine.allocator, 1)
        gone += before - set(engine.index.blocks.values())
    assert gone == [second, third, first] and len(engine.allocator.unused) == 4


def test_what_a_sequence_holds_is_not_let_go():
    engine = Engine(1, 4)
    engine.start([1, 2])
    engine.stop(0)
    engine.start([1, 2])  # holds the block of 1, and one of its own
    engine.index, engine.allocator = evict(engine.index, engine.allocator, 9)
    engine.check()
    assert len(engine.index.blocks) == 1 and len(engine.allocator.unused) == 2


@given(seeds, st.integers(1, 11), st.integers(1, 5), block_sizes)
def test_a_branch_attends_as_if_it_were_alone(seed, S, more, block_size):
    """A prompt of S tokens, its branch, and ``more`` tokens of each: attention sees its own."""
    allocator, caches, kv = new_allocator(40), [np.full((40, block_size, 1, 4), np.nan) for _ in "kv"], []
    allocator, blocks = allocate(allocator, blocks_for(S, block_size))
    prompt = normal(seed, 2, S, 1, 4)
    paged_append(*caches, *prompt, slot_mapping(np.array(blocks), np.arange(S), block_size))
    allocator, tables = fork(allocator, blocks), []
    for branch in range(2):
        allocator, new = allocate(allocator, blocks_for(S + more, block_size) - len(blocks))
        allocator, own, *copied = copy_on_write(allocator, (*blocks, *new), S, S + more, block_size)
        copy_blocks(*caches, *np.array(copied, np.int32).reshape(2, -1))
        rest = normal(seed + branch + 1, 2, more, 1, 4)
        paged_append(*caches, *rest, slot_mapping(np.array(own), np.arange(S, S + more), block_size))
        tables.append(own)
        kv.append(np.concatenate((prompt, rest), axis=1))
    q, lengths = normal(seed + 9, 2 * more, 2, 4), np.array([S + more] * 2)
    found = paged_attention(q, *caches, np.array(tables), lengths, np.array([0, more, 2 * more]))
    wanted = [attention(q[r * more : (r + 1) * more], *kv[r]) for r in range(2)]
    assert np.array_equal(found, np.concatenate(wanted))
    assert not set(tables[0][S // block_size :]) & set(tables[1][S // block_size :])


@given(seeds, st.integers(0, 3), st.sampled_from((np.float16, np.float32, np.float64)))
def test_copied_blocks_are_the_same_and_no_other_changes(seed, count, dtype):
    order = np.random.default_rng(seed).permutation(7)
    sources, targets = order[:1].repeat(count), order[1 : 1 + count]
    caches = [normal(seed + i, 7, 3, 2, width).astype(dtype) for i, width in enumerate((3, 5))]
    caches[0][order[0], 2:] = np.nan  # unused slots
    before = [x.copy() for x in caches]
    found = copy_blocks(*caches, sources, targets)
    assert all(x is y for x, y in zip(found, caches, strict=True))
    for x, old in zip(caches, before, strict=True):
        old[targets] = old[sources]
        assert np.array_equal(x, old, equal_nan=True)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: copy_on_write(new_allocator(4), (0, 1), 3, 9, 4),
         "9 tokens lie in 3 blocks of 4, the sequence has 2"),
        (lambda: copy_on_write(fork(*allocate(new_allocator(1), 1)), (0,), 0, 1, 4),
         "1 blocks are needed, 0 of 1 are left"),
        (lambda: block_hashes([1], 0), "blocks of 0 tokens"),
        (lambda: remember(PrefixIndex(1), new_allocator(2), (0,), [5]), "block 0 of 2: 1 holders expected, 0 found"),
    ],
    ids=["beyond the table", "no block left", "no tokens a block", "not held"],
)  # fmt: skip
def test_refused_in_a_sentence(act, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        act()


def test_nothing_is_copied_that_nobody_else_holds():
    allocator, blocks = allocate(new_allocator(4), 2)
    assert copy_on_write(allocator, blocks, 1, 4, 2) == (allocator, blocks, (), ())


def ids_of(*numbers, dtype=np.int32):
    return np.array(numbers, dtype)


CACHES = (np.ones((3, 2, 1, 4)), np.ones((3, 2, 1, 5)))
BROKEN = [
    *((copy_blocks, "C1", (CACHES[0], np.ones(shape), ids_of(0), ids_of(1)), {})
      for shape in ((2, 2, 1, 4), (3, 1, 1, 4), (3, 2, 2, 4))),
    *((copy_blocks, "C2", (*CACHES, *pair), {}) for pair in (
        (ids_of(0), ids_of(3)), (ids_of(-1), ids_of(1)), (ids_of(0, 1), ids_of(2)), (ids_of(0, dtype=float), ids_of(1)),
        (np.array([[0]]), np.array([[1]])))),
    *((copy_blocks, "C3", (*CACHES, *pair), {}) for pair in (
        (ids_of(0, 1), ids_of(2, 2)), (ids_of(0, 1), ids_of(1, 2)), (ids_of(1), ids_of(1)))),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
    assert all((cache == 1).all() for cache in CACHES)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (new_allocator, (-1,)), (new_allocator, (2.5,)), (blocks_for, (-1, 16)), (blocks_for, (5, 0)),
        (blocks_for, (5, -2)), (allocate, (new_allocator(3), 1.5)), (block_hashes, ([1.5, 2.5], 1)),
        (block_hashes, ([[1, 2]], 1)), (block_hashes, ([1, 2], 1.5)), (evict, (PrefixIndex(1), new_allocator(1), -1)),
        (copy_on_write, (new_allocator(3), (0, 1), 0, 1, 0)), (copy_on_write, (new_allocator(3), (0, 1), -1, 1, 2)),
        (copy_on_write, (new_allocator(3), (9,), 0, 1, 2)), (copy_on_write, (new_allocator(3), (0, 1), 3, 1, 2)),
    ],
)  # fmt: skip
def test_what_is_no_number_of_blocks_is_refused(function, arguments):
    with pytest.raises(UsageError):
        function(*arguments)
