"""Checkpoints of few bits on executors: MXFP4 stays in blocks, float8 becomes float32; answers are the reference's."""

import json
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn
from safetensors.numpy import load_file, save_file

from gpu.model import load
from refimpl.llm.narrow_floats import quantize_absmax
from refimpl.model import load as load_reference
from tests.files.test_scales import folders
from tests.models.tiny import LLAMA, write_checkpoint

IDS = [1, 5, 7, 3, 11, 2]


def float8_folder(folder: Path) -> Path:
    """Write a small Llama, its matrices in float8 with a scale for 8 x 4 of their numbers."""
    write_checkpoint(folder, LLAMA)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        codes, scale = quantize_absmax(tensors[name], format="e4m3", block=(8, 4))
        tensors |= {name: codes.view(float8_e4m3fn), f"{name}_scale_inv": scale}
    save_file(tensors, folder / "model.safetensors")
    method = {"quant_method": "fp8", "weight_block_size": [8, 4], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": method}))
    return folder


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_gpt_oss_in_mxfp4(tmp_path, device):
    packed, _ = folders(tmp_path)
    model, reference = load(packed, device), load_reference(packed)
    np.testing.assert_allclose(model.logits(IDS), reference.logits(IDS), rtol=1e-4, atol=1e-4)
    assert model.greedy(IDS[:3], 4) == reference.greedy(IDS[:3], 4)


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_llama_in_float8(tmp_path, device):
    folder = float8_folder(tmp_path)
    model, reference = load(folder, device), load_reference(folder)
    np.testing.assert_allclose(model.logits(IDS), reference.logits(IDS), rtol=1e-4, atol=1e-4)
    assert model.greedy(IDS[:3], 4) == reference.greedy(IDS[:3], 4)
