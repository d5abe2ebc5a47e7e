"""Damaged model folders of every family are run, or refused in one line: quickly, and without a large allocation.

DAMAGED_FOLDERS=2000 python -m pytest tests/fuzz/test_damaged_folders.py tries so many; by default a few hundred.
"""

import math
import os
import shutil
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl.contract import CheckpointError, ContractError, UsageError
from refimpl.model import Model, load
from refimpl.models.gguf_names import gguf_spec, gguf_weights
from refimpl.models.held import HeldWeights
from refimpl.models.tensor import Tensor
from refimpl.seq2seq_model import Seq2SeqModel
from tests.fuzz.folders import GGUF_NAMES, NAMES, damaged_gguf, held, write_damaged

EACH = math.ceil(int(os.environ.get("DAMAGED_FOLDERS", "240")) / len(NAMES))
LARGE, SECONDS = 2**25, 20.0
IDS = [1, 3, 2, 4]


def run(model: Any) -> None:
    """Run a model a little."""
    if isinstance(model, Model):
        model.logits(IDS)
        model.greedy(IDS[:2], 2)
    elif isinstance(model, Seq2SeqModel):
        model.forward([IDS], [[1, 2]])
    else:
        model.forward([IDS])


def survives(what: str, load_model: Callable[[], Any]) -> bool:
    """Return whether a model could be run; demand that it was, or that one line says what is wrong."""
    started = time.perf_counter()
    tracemalloc.start()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            run(load_model())
    except (CheckpointError, ContractError, UsageError) as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 1000, f"{what}: {error}"
        return False
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < LARGE, f"{what}: {peak} bytes"
    assert time.perf_counter() - started < SECONDS, what
    return True


@pytest.mark.parametrize("name", NAMES)
def test_damaged_folders(name: str, tmp_path: Path):
    ran = 0
    for seed in range(EACH):
        folder = tmp_path / "folder"
        folder.mkdir()
        write_damaged(folder, name, seed)
        ran += survives(f"{name}, seed {seed}", partial(load, folder, offline=True))
        shutil.rmtree(folder)
    assert ran < EACH - EACH // 4


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_damaged_gguf_metadata(name: str):
    def load_gguf(metadata: dict, tensors: dict[str, Tensor]) -> Model:
        spec = gguf_spec(metadata, tensors)
        return Model(spec, HeldWeights(gguf_weights(metadata, tensors, spec), np.float32))

    ran = 0
    for seed in range(EACH):
        metadata, tensors = damaged_gguf(name, seed)
        ran += survives(f"{name}, seed {seed}", partial(load_gguf, metadata, held(tensors)))
    assert ran < EACH  # some of the damage is seen
