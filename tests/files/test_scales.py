"""Float8 and MXFP4 with their scales: the numbers of ml_dtypes times what a loop says, made when they are asked for."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_folder
from refimpl.files.scales import join_scales, mxfp4_blocks
from refimpl.model import load
from refimpl.models.families import read_spec, read_weights
from refimpl.models.quantization import check_quantization
from refimpl.models.tensor import Tensor

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": GROUP}}
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu


def tensor(array: np.ndarray) -> Tensor:
    return Tensor(array.dtype.name, array.shape, array)


def drawn(*shape: int, dtype=np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def joined(config: dict | None = None, **arrays: np.ndarray) -> dict[str, Tensor]:
    return join_scales({name: tensor(array) for name, array in arrays.items()}, {"quantization_config": config})


@pytest.mark.parametrize("code", [E4M3, E5M2])
@pytest.mark.parametrize("size", [(128, 128), (16, 32)])
@pytest.mark.parametrize("shape", [(256, 384), (200, 130), (3, 5)])
def test_blocks_of_float8_share_a_scale(code, size, shape):
    counts = tuple(-(-length // side) for length, side in zip(shape, size, strict=True))
    w, scale = drawn(*shape, dtype=code), np.abs(drawn(*counts, seed=1))
    got = joined(FP8 | {"weight_block_size": list(size)}, w=w, w_scale_inv=scale)
    spread = np.kron(scale, np.ones(size, np.float32))[: shape[0], : shape[1]]
    assert got.keys() == {"w"} and got["w"].is_made and got["w"].format == "float32"
    np.testing.assert_array_equal(got["w"].read(), w.astype(np.float32) * spread)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, E8M0])
@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1), (1, 1)])
def test_rows_or_all_of_a_tensor_share_a_scale(dtype, shape):
    w, scale = drawn(6, 10, dtype=E4M3), np.abs(drawn(*shape, seed=1)).astype(dtype)
    wide = scale.astype(np.float32).reshape(-1, 1) if scale.size > 1 else scale.astype(np.float32).reshape(1, 1)
    for name in ("weight_scale_inv", "weight_scale", "scale"):
        got = joined(None, **{"q.weight": w, f"q.{name}": scale, "q.input_scale": np.float32([3])})
        assert got.keys() == {"q.weight"}
        np.testing.assert_array_equal(got["q.weight"].read(), w.astype(np.float32) * wide)


@pytest.mark.parametrize("shape", [(), (3, 1, 1), (3, 2, 1), (1, 1, 1), (3, 130, 1)])
def test_matrices_of_experts_have_scales_of_their_own(shape):
    w, scale = drawn(3, 130, 40, dtype=E4M3), np.abs(drawn(*shape, seed=1))
    spread = scale
    if shape == (3, 2, 1):
        spread = np.repeat(scale, 128, axis=1)[:, :130]
    got = joined(FP8, gate=w, gate_scale_inv=scale)["gate"]
    truth = w.astype(np.float32) * spread
    np.testing.assert_array_equal(got.read(), truth)
    for e in range(3):
        np.testing.assert_array_equal(got.part(e).read(), truth[e])
        np.testing.assert_array_equal(got.take(slice(0, None, 2), 1).part(e).read(), truth[e, ::2])


@pytest.mark.parametrize(
    ("message", "arrays"),
    [
        ("float8_e4m3fn, and none of w_scale_inv", {"w": drawn(4, 4, dtype=E4M3)}),
        ("which do not fit", {"w": drawn(4, 4, dtype=E4M3), "w_scale": drawn(3)}),
        ("which do not fit", {"w": drawn(4, 4, dtype=E4M3), "w_scale": drawn(4, 2)}),
        ("which do not fit", {"w": drawn(4, 4, dtype=E4M3), "w_scale_inv": drawn(0, 1)}),
        ("which do not fit", {"w": drawn(4, 4, dtype=E4M3), "w_scale_inv": drawn(4, 1, 1)}),
        ("which do not fit", {"w": drawn(4, dtype=E4M3), "w_scale": drawn(4)}),
        ("expected are floats", {"w": drawn(4, 4, dtype=E4M3), "w_scale": np.ones(1, np.int32)}),
        ("needs uint8 blocks", {"a_blocks": np.zeros((2, 3, 1, 15), np.uint8), "a_scales": np.zeros((2, 3, 1), "u1")}),
        ("needs uint8 blocks", {"a_blocks": np.zeros((2, 3, 1, 16), np.int8), "a_scales": np.zeros((2, 3, 1), "u1")}),
        ("needs uint8 blocks", {"a_blocks": np.zeros((2, 3, 1, 16), "u1"), "a_scales": np.zeros((2, 1, 1), "u1")}),
        ("needs uint8 blocks", {"a_blocks": np.zeros(16, "u1"), "a_scales": np.zeros((), "u1")}),
    ],
)  # fmt: skip
def test_scales_that_do_not_fit_are_refused(message, arrays):
    with pytest.raises(CheckpointError, match=message):
        joined(FP8, **arrays)


@pytest.mark.parametrize(
    "method",
    [
        FP8, {"quant_method": "fp8"}, FP8 | {"ignored_layers": ["lm_head"], "scale_fmt": "ue8m0"}, MXFP4, COMPRESSED,
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        FP8 | {"expert_dtype": "fp8"},
    ],
)  # fmt: skip
def test_methods_that_are_read(method):
    check_quantization(method)


@pytest.mark.parametrize(
    ("message", "method"),
    [
        ("'gptq' are not supported; read are fp8, fbgemm_fp8, mxfp4", {"quant_method": "gptq", "bits": 4}),
        ("'awq' are not supported", {"quant_method": "awq"}),
        ("'bitsandbytes' are not supported", {"quant_method": "bitsandbytes"}),
        (r"quantised by \['fp8'\] are", ["fp8"]),
        (r"quantised by \['fp8'\] are", {"quant_method": ["fp8"]}),
        ("quantised by None", {"bits": 4}),
        ("quantization_config.'expert_dtype' = 'fp4' is", FP8 | {"expert_dtype": "fp4"}),
        ("quantization_config.'rotation' = 'hadamard'", MXFP4 | {"rotation": "hadamard"}),
        ("weight_block_size must be two numbers", FP8 | {"weight_block_size": [128]}),
        ("weight_block_size must be two numbers", FP8 | {"weight_block_size": [0, 128]}),
        ("weight_block_size must be two numbers", FP8 | {"weight_block_size": [2**62, 128]}),
        ("weight_block_size must be two numbers", FP8 | {"weight_block_size": "128"}),
        ("floats of 8 bits", COMPRESSED | {"config_groups": {}}),
        ("floats of 8 bits", COMPRESSED | {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}),
        ("floats of 8 bits", COMPRESSED | {"config_groups": {"group_0": {"weights": None}}}),
    ],
)  # fmt: skip
def test_methods_that_are_not_read_are_named(message, method):
    for refuse in (check_quantization, lambda method: join_scales({}, {"quantization_config": method})):
        with pytest.raises(CheckpointError, match=message):
            refuse(method)


def mxfp4(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw what gpt-oss stores, and what it means: neighbours in the low and the high half of a byte."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // 32, 16), np.uint8)
    scales = random.integers(118, 132, blocks.shape[:-1], np.uint8)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    powers = np.exp2(scales[..., None].astype(np.float32) - 127)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * powers
    return blocks, scales, numbers.reshape(shape)


def test_mxfp4_of_gpt_oss_becomes_blocks():
    blocks, scales, truth = mxfp4(3, 10, 64)
    got = joined(MXFP4, **{"x_blocks": blocks, "x_scales": scales, "y": drawn(2)})
    assert got.keys() == {"x", "y"}
    x = got["x"]
    assert (x.format, x.shape, x.nbytes, x.is_made) == ("mxfp4", (3, 10, 64), 3 * 10 * 34, True)
    np.testing.assert_array_equal(x.read(), truth)
    np.testing.assert_array_equal(x.part(2).read(), truth[2])
    np.testing.assert_array_equal(x.take(slice(1, None, 2), 1).read(), truth[:, 1::2])
    np.testing.assert_array_equal(x.take(slice(1, None, 2), 1).part(1).read(), truth[1, 1::2])
    np.testing.assert_array_equal(x.data, mxfp4_blocks(blocks, scales))


GPT_OSS = {
    "model_type": "gpt_oss", "vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4, "eos_token_id": 2,
    "layer_types": ["sliding_attention"], "rope_theta": 150000.0, "rope_scaling": {"rope_type": "default"},
}  # fmt: skip


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Write a small gpt-oss twice: its experts in MXFP4, and as the floats that they stand for."""
    D, F, E, V, layer = 32, 64, 3, 23, "model.layers.0."
    shapes = {"input_layernorm": (D,), "post_attention_layernorm": (D,), "mlp.router": (E, D)}
    shapes |= {f"self_attn.{name}_proj": (rows, D) for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", D))}
    held = {f"{layer}{name}.weight": 0.4 * drawn(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    held |= {f"{layer}self_attn.{name}_proj.bias": drawn(16 if name in "kv" else 32, seed=20) for name in "qkvo"}
    held |= {layer + "self_attn.sinks": drawn(4, seed=21), layer + "mlp.router.bias": drawn(E, seed=22)}
    held |= {"model.embed_tokens.weight": drawn(V, D, seed=23), "lm_head.weight": drawn(V, D, seed=24)}
    held |= {"model.norm.weight": drawn(D, seed=25), layer + "mlp.experts.gate_up_proj_bias": drawn(E, 2 * F, seed=26)}
    held |= {layer + "mlp.experts.down_proj_bias": drawn(E, D, seed=27)}
    packed, plain = dict(held), dict(held)
    for name, shape in (("gate_up_proj", (E, 2 * F, D)), ("down_proj", (E, D, F))):
        name = f"{layer}mlp.experts.{name}"
        packed[name + "_blocks"], packed[name + "_scales"], numbers = mxfp4(*shape, seed=28)
        plain[name] = np.ascontiguousarray(numbers.swapaxes(1, 2))
    for name, tensors, config in (("packed", packed, {"quantization_config": MXFP4}), ("plain", plain, {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(GPT_OSS | config))
        save_file(tensors, tmp_path / name / "model.safetensors")
    return tmp_path / "packed", tmp_path / "plain"


def test_gpt_oss_in_mxfp4_is_the_model_of_its_numbers(tmp_path):
    packed, plain = folders(tmp_path)
    config, tensors = read_folder(packed)
    weights = read_weights(tensors, read_spec(config))
    assert {weights[f"layers.0.experts.w_{name}"].format for name in ("gate", "up", "down")} == {"mxfp4"}
    same = read_weights(read_folder(plain)[1], read_spec(config))
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight.read(), same[name].read(), err_msg=name)
    ids = [1, 5, 7, 3, 11, 2]
    np.testing.assert_allclose(load(packed).logits(ids), load(plain).logits(ids), rtol=1e-5, atol=1e-5)
    assert len(set(np.argmax(load(plain).logits(ids), axis=-1).tolist())) > 1
