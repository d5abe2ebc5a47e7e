"""Damaged model folders of every family are run, or refused in one line: quickly, and without a large allocation.

DAMAGED_FOLDERS=2000 python -m pytest tests/fuzz/test_damaged_folders.py tries so many; by default a few hundred.
"""

import math
import os
import shutil
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

from refimpl.contract import CheckpointError, ContractError, UsageError
from refimpl.model import Model, load
from refimpl.seq2seq_model import Seq2SeqModel
from tests.fuzz.folders import NAMES, write_damaged

EACH = math.ceil(int(os.environ.get("DAMAGED_FOLDERS", "320")) / len(NAMES))
LARGE, SECONDS = 2**25, 20.0
IDS = [1, 3, 2, 4]


def run(folder: Path) -> None:
    """Open a model, and run it where it opens."""
    model = load(folder, offline=True)
    if isinstance(model, Model):
        model.logits(IDS)
        model.greedy(IDS[:2], 2)
    elif isinstance(model, Seq2SeqModel):
        model.forward([IDS], [[1, 2]])
    else:
        model.forward([IDS])


@pytest.mark.parametrize("name", NAMES)
def test_damaged_folders(name: str, tmp_path: Path):
    refused = 0
    for seed in range(EACH):
        folder = tmp_path / "folder"
        folder.mkdir()
        write_damaged(folder, name, seed)
        started = time.perf_counter()
        tracemalloc.start()
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                run(folder)
        except (CheckpointError, ContractError, UsageError) as error:
            refused += 1
            assert str(error) and "\n" not in str(error) and len(str(error)) < 1000, f"seed {seed}: {error}"
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error!r}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            shutil.rmtree(folder)
        assert peak < LARGE, f"{name}, seed {seed}: {peak} bytes"
        assert time.perf_counter() - started < SECONDS, f"{name}, seed {seed}"
    assert refused > EACH // 4
