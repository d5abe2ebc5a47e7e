"""Real kernels with one thing wrong in their PTX: each check of the interpreter sees its fault, and only that."""

import re
from pathlib import Path

import numpy as np
import pytest

from gpu import interpreter
from gpu.compile import cuda_kernel
from gpu.interpreter import KernelError

THREADS = 64
FLOATS = np.random.default_rng(5).integers(-8, 8, 1024).astype(np.float32)
ORDERING = re.compile(
    r"^.*\b(bar\.sync|barrier\.sync|bar\.warp\.sync|membar\.gl|fence\.\S+|cp\.async\.wait_group)\b.*;", re.M
)


def text_of(entry, swizzle=31):
    """Return the PTX of one kernel alone."""
    ptx = cuda_kernel(Path(__file__).with_name("planted.cu"), entry, (), options=(f"-DSWIZZLE={swizzle}",)).ptx()
    head, *kernels = re.split(r"(?=^\.visible \.entry)", ptx, flags=re.M)
    return head + next(kernel for kernel in kernels if re.search(rf"\.entry {entry}\b", kernel))


def run(ptx, entry, *arguments, grid=1, races=True, threads=THREADS):
    """Run a kernel on arrays and numbers."""
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    memory = interpreter.Memory(arrays)
    params = [np.uint64(memory.address(a)) if isinstance(a, np.ndarray) else np.int32(a) for a in arguments]
    names = ("out", "x", "parts", "count")[: len(arrays)]
    return interpreter.launch(ptx, entry, (grid, 1, 1), (threads, 1, 1), params, arrays, names=names, races=races)


def block_sum(ptx):
    out = np.zeros(THREADS, np.float32)
    run(ptx, "block_sum", out, FLOATS)
    return out, np.full(THREADS, 2 * FLOATS[:128].sum())


def swapped(ptx):
    out = np.zeros(THREADS, np.float32)
    run(ptx, "swapped", out, FLOATS)
    return out, 2 * FLOATS[np.arange(THREADS) ^ 2]


def copied(ptx):
    out = np.zeros(THREADS, np.float32)
    run(ptx, "copied", out, FLOATS)
    columns = FLOATS[:768].reshape(3, 4, 64).sum((0, 1))
    return out, columns[(np.arange(THREADS) + 17) % 64]


def last_block(ptx):
    out, parts, count = np.zeros(THREADS, np.float32), np.zeros(256, np.float32), np.zeros(1, np.uint32)
    run(ptx, "last_block", out, FLOATS, parts, count, grid=4)
    return out, 2 * FLOATS[:256].reshape(4, 64).sum(0)[::-1]


KERNELS = {function.__name__: function for function in (block_sum, swapped, copied, last_block)}


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes(name):
    out, expected = KERNELS[name](text_of(name))
    assert (out == expected).all()


@pytest.mark.parametrize("name", KERNELS)
def test_each_synchronisation_that_is_taken_away_is_missed(name):
    ptx = text_of(name)
    places = [match.span() for match in ORDERING.finditer(ptx)]
    silent = []
    for start, end in places:
        try:
            KERNELS[name](ptx[:start] + ptx[end:])
        except KernelError:
            continue
        silent.append(" ".join(ptx[start:end].split()))
    # Twice no copy follows the barrier that protects the buffer, and the wait at the end is for empty groups.
    needless = ["bar.sync 0;", "bar.sync 0;", "cp.async.wait_group 0;"] if name == "copied" else []
    assert len(places) - len(needless) >= 3 and silent == needless


@pytest.mark.parametrize(
    "name, pattern, said",
    [
        ("block_sum", "bar.sync", r"shared memory \+ \d+, which thread \d+ (read|wrote) .*: no barrier between them"),
        ("swapped", "bar.warp.sync", r"which thread \d+ of its warp .*: no bar.warp.sync between them"),
        ("copied", "cp.async.wait_group", "where the cp.async of thread|before the wait for its own cp.async"),
        ("last_block", r"membar.gl|fence.\S+", r"parts \+ \d+, which thread \d+ of block \d .*: no fence and atomic"),
    ],
)
def test_the_sentence(name, pattern, said):
    with pytest.raises(KernelError, match=rf"{name}, PTX line \d+ \(.*\), block \d+, thread \d+: .*{said}"):
        KERNELS[name](re.sub(rf"\b({pattern})\b.*?;", "", text_of(name), count=1))


def test_a_copy_in_flight_at_the_end_is_an_error():
    ptx = text_of("fetched")
    run(ptx, "fetched", FLOATS)
    with pytest.raises(KernelError, match=r"a cp\.async that it has not waited for"):
        run(ptx.replace("cp.async.wait_all;", ""), "fetched", FLOATS)


@pytest.mark.parametrize("swizzle, conflicts", [(31, 1), (0, 32)])
def test_conflicts_without_the_swizzle(swizzle, conflicts):
    out = np.zeros(1024, np.float32)
    counters = run(text_of("transposed", swizzle), "transposed", out, FLOATS)
    assert (out.reshape(32, 32) == FLOATS.reshape(32, 32).T).all()
    assert counters.shared == {"loads": (32 * conflicts, 32), "stores": (32, 32)}
    assert counters.loads == {"x": (128, 128)} and counters.stores == {"out": (128, 128)}


def test_bytes_of_one_word_by_many_threads_are_no_race():
    out = np.zeros(128, np.uint8)
    run(text_of("bytes"), "bytes", out, grid=2)
    assert (out.reshape(THREADS, 2) == np.arange(THREADS)[:, None]).all()


@pytest.mark.parametrize(
    "grid, threads, value, said",
    [
        (1, 32, 7, None),
        (1, 32, -1, "lanes of the warp store different values to the same bytes"),
        (1, 64, 7, r"writes out \+ 0, which thread \d+ wrote .*: no barrier between them"),
        (2, 1, 7, r"writes out \+ 0, which thread 0 of block 0 wrote .*: no fence and atomic"),
    ],
)
def test_one_word_written_by_many(grid, threads, value, said):
    out, ptx = np.zeros(1, np.int32), text_of("one_word")
    if said is None:
        run(ptx, "one_word", out, value, grid=grid, threads=threads)
        assert out[0] == value
    else:
        with pytest.raises(KernelError, match=said):
            run(ptx, "one_word", out, value, grid=grid, threads=threads)


@pytest.mark.parametrize(
    "length, offset, said",
    [(256, 0, None), (255, 0, "out of bounds"), (256, 1, "misaligned"), (256, -4, "not an address|out of bounds")],
)
def test_bounds_and_alignment(length, offset, said):
    out, ptx, x = np.zeros(THREADS, np.float32), text_of("shifted"), FLOATS[:length].copy()
    memory = interpreter.Memory([out, x])
    params = [np.uint64(memory.address(out)), np.uint64(memory.address(x) + 4 * offset)]
    args = ptx, "shifted", (1, 1, 1), (THREADS, 1, 1), params, [out, x]
    if said is None:
        interpreter.launch(*args)
        assert (out == FLOATS[:256].reshape(64, 4).sum(1)).all()
    else:
        with pytest.raises(KernelError, match=said):
            interpreter.launch(*args)


def test_what_is_read_before_it_is_written_is_poison():
    out = np.zeros(THREADS, np.float32)
    run(text_of("unset"), "unset", out)
    assert np.isnan(out[0]) and (out[1:] == 1).all()
