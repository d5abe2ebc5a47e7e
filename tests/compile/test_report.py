"""The page of kernels: its numbers by hand for a small one, and what they must be for all."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.registry import Variant, fused, variants
from gpu.report import Row, page, ptx_hash, ran_right, rows

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "kernels.md", ROOT / "benchmarks" / "results" / "gpu.json"
READ_ONCE = {"w", "words", "k", "v"}
"""Weights, keys and values: what an operation's time goes to."""


def made(stride: int) -> Kernel:
    @numba_kernel("float32[::1]", "float32[::1]", name=f"turn[{stride}]")
    def turn(out, x):
        tile = cuda.shared.array(1024, float32)
        thread = cuda.threadIdx.x
        tile[thread * stride] = x[cuda.blockIdx.x * 32 + thread]
        cuda.syncthreads()
        out[(cuda.blockIdx.x * 32 + thread) * 2] = tile[(31 - thread) * stride]

    return turn


def variant(kernel: Kernel, blocks: int = 3, times: int = 1) -> Variant:
    def call(out: np.ndarray, x: np.ndarray) -> None:
        for _ in range(times):
            device.launch(kernel, blocks, 32, out, x)

    x = np.arange(32 * blocks, dtype=np.float32)
    return Variant("made", "turn", call, lambda **_: True, lambda: {"out": np.zeros(x.size * 2, np.float32), "x": x})


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 1), (2, 2), (32, 32)])
def test_numbers_by_hand(stride: int, wavefronts: int) -> None:
    (row,) = rows([variant(made(stride))])
    assert row.counters.loads == {"x": (12, 12)}
    assert row.counters.stores == {"out": (24, 12)}
    assert (row.counters.shared_wavefronts, row.counters.shared_ideal) == (6 * wavefronts, 6)
    assert (row.counters.barriers, row.resources.shared, row.resources.stack, row.spilled) == (3, 4096, 0, 0)


def test_launches_are_added_up() -> None:
    (once,), (twice,) = rows([variant(made(1))]), rows([variant(made(1), times=2)])
    assert twice.counters == once.counters + once.counters
    assert (len(once.launches), len(twice.launches)) == (1, 2)


def test_page_has_a_line_for_every_kernel() -> None:
    found = rows([variant(made(2)), variant(made(1), times=2)])
    text = page(found, {})
    assert re.search(r"\| `turn\[2\]` \| 32 \| \d+ \| 0 \| 0 \| 4096 \| 50%, blocks \| 0 \| 0 \| 0 \|\n", text)
    assert "| turn (made) | `turn[2]` | 3 | x 12 / 12 | out 24 / 12 | 12 / 6 | 3 | 0 | no |\n" in text
    assert "| turn (made) | `turn[1]` | 2 times 3 | x 24 / 24 | out 48 / 24 | 12 / 12 | 6 | 0 | no |\n" in text


def test_page_knows_what_a_gpu_has_run(tmp_path: Path) -> None:
    found = rows([variant(made(1)), variant(made(2)), variant(made(32))])
    hashes = {row.kernel.name: ptx_hash(row.kernel) for row in found}
    measured: list[dict[str, Any]] = [
        {"what": "A GPU", "unit": "GiB", "note": "", "kernels": {}},
        {"what": "1", "unit": "ulp", "note": "", "kernels": {"turn[1]": hashes["turn[1]"], "turn[2]": "another"}},
        {"what": "32", "unit": "ulp", "note": "WRONG: off", "kernels": {"turn[32]": hashes["turn[32]"]}},
    ]
    (tmp_path / "gpu.json").write_text(json.dumps(measured))
    text = page(found, ran_right(tmp_path / "gpu.json"))
    ends = [line.split(" | ")[-1] for line in text.splitlines() if "| turn (made)" in line]
    assert ends == ["A GPU |", "A GPU, another version |", "no |"]


def test_nothing_has_run_where_nothing_was_measured(tmp_path: Path) -> None:
    assert ran_right(tmp_path / "gpu.json") == {}


def test_hash_is_of_the_instructions() -> None:
    assert ptx_hash(made(1)) == ptx_hash(made(1)) != ptx_hash(made(2))


@pytest.fixture(scope="module")
def all_rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows()


def test_every_variant_launches_a_kernel(all_rows: list[Row]) -> None:
    assert {(v.op, v.name) for v in (*variants(), *fused())} == {(row.variant.op, row.variant.name) for row in all_rows}


def _failing(all_rows: list[Row], holds: Callable[[Row], bool]) -> list[str]:
    return sorted({row.kernel.name for row in all_rows if not holds(row)})


def test_nothing_is_spilled(all_rows: list[Row]) -> None:
    assert _failing(all_rows, lambda row: row.spilled == 0) == []


def test_tensor_core_kernels_have_no_bank_conflict(all_rows: list[Row]) -> None:
    with_mma = [row for row in all_rows if row.counts.mma]
    assert len(with_mma) > 0
    assert _failing(with_mma, lambda row: row.counters.shared_wavefronts == row.counters.shared_ideal) == []
    assert _failing(with_mma, lambda row: row.counts.ldmatrix > 0 and row.counts.spilled == 0) == []


def test_weights_keys_and_values_are_read_in_whole_sectors(all_rows: list[Row]) -> None:
    matrices = [row for row in all_rows if not row.kernel.name.startswith("conv1d")]  # a cache holds its few taps
    read = [(row, name) for row in matrices for name in READ_ONCE & set(row.counters.loads)]
    assert {name for _, name in read} == READ_ONCE
    wasted = {
        (row.kernel.name, name): math.inf if not least else asked / least
        for row, name in read for asked, least in [row.counters.loads[name]]}
    assert {key: ratio for key, ratio in wasted.items() if ratio > 1.1} == {}


def test_page_is_what_is_committed(all_rows: list[Row]) -> None:
    """To the letter where the compilers are those that it names; the kernels that it shows in any case."""
    made_now, committed = page(all_rows, ran_right(RESULTS)), PAGE.read_text()
    with_these = made_now.split("\n## ")[0] == committed.split("\n## ")[0]
    names = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
    assert names.findall(made_now) == names.findall(committed)
    assert made_now == committed or not with_these
