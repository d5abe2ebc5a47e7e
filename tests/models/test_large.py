"""Models larger than the memory: opened at once, and read a layer at a time with the same results."""

import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from refimpl.model import Model, load, open_model
from refimpl.models.families import read_spec
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.qwen_moe import EXPERTS
from refimpl.models.held import HeldWeights, free_memory
from refimpl.models.published import published_config
from refimpl.models.spec import weight_shapes
from refimpl.models.tensor import Tensor
from tests.files.gguf_bytes import STRING, entry, gguf_bytes, pair, text
from tests.models.tiny import LLAMA, write_checkpoint

GIGABYTE = 2**30
Listed = tuple[str, tuple[int, ...]]


def listed(config: dict) -> Iterator[Listed]:
    """List the tensors of a checkpoint: their names, and their shapes."""
    spec = read_spec(config)
    shapes = weight_shapes(spec)
    for name, target in (TENSORS | EXPERTS).items():
        for i in range(spec.num_layers if "{i}" in name else 1):
            shape = shapes.get(target.replace("{i}", str(i)))
            for e in range(shape[0]) if shape and "{e}" in name else (0,) if shape else ():
                yield name.replace("{i}", str(i)).replace("{e}", str(e)), shape[1:] if "{e}" in name else shape


def write_shard(path: Path, tensors: list[Listed]) -> None:
    """Write a safetensors file of bfloat16 zeros, whose data is a hole that takes no room on the disk."""
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)


def write_folder(folder: Path, config: dict, shards: int) -> int:
    """Write a sharded checkpoint of zeros; return its bytes."""
    tensors, names = list(listed(config)), {}
    for number in range(shards):
        own, file = tensors[number::shards], f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_shard(folder / file, own)
        names |= dict.fromkeys([name for name, _ in own], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "config.json").write_text(json.dumps(config))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


OPENING = """
import resource, sys, time
from refimpl.model import open_model
open_model(sys.argv[1])  # what a process imports once
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
source = open_model(sys.argv[2])
seconds, grown = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(seconds, grown // 1024 if sys.platform == "linux" else grown // 2**20)
"""


def opened(path: Path, small: Path) -> tuple[float, int]:
    """Return the seconds that opening takes in a process of its own, and by how many megabytes that grows."""
    command = [sys.executable, "-c", OPENING, str(write_checkpoint(small, LLAMA)), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), int(megabytes)


@pytest.mark.parametrize(
    ("name", "shards", "size", "limit"), [("llama-3.1-8b", 4, 14, 1), ("qwen3-30b-a3b", 16, 56, 4)]
)
def test_a_large_folder_is_opened_at_once(tmp_path, name, shards, size, limit):
    (tmp_path / name).mkdir()
    written = write_folder(tmp_path / name, published_config(f"random:{name}"), shards)
    assert written > size * GIGABYTE
    seconds, megabytes = opened(tmp_path / name, tmp_path / "small")
    assert seconds < limit and megabytes < 60


def test_a_large_file_of_experts_is_opened_at_once(tmp_path):
    """Mixtral in MXFP4 as GGUF: stacks of experts, 25 GB."""
    config = published_config("random:mixtral-8x7b")
    V, D, F, L, E, kv = 32000, 4096, 14336, 32, 8, 1024
    keys = {"block_count": L, "context_length": 32768, "embedding_length": D, "feed_forward_length": F}
    keys |= {"attention.head_count": 32, "attention.head_count_kv": 8, "expert_count": E, "expert_used_count": 2}
    pairs = [pair("general.architecture", STRING, text("llama"))]
    pairs += [pair(f"llama.{key}", 4, struct.pack("<I", value)) for key, value in keys.items()]
    pairs += [pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))]
    pairs += [pair("llama.rope.freq_base", 6, struct.pack("<f", config["rope_theta"]))]
    shapes = {"token_embd.weight": (D, V), "output.weight": (D, V), "output_norm.weight": (D,)}
    for i in range(L):
        own = {"attn_q": (D, D), "attn_k": (D, kv), "attn_v": (D, kv), "attn_output": (D, D), "ffn_gate_inp": (D, E)}
        own |= {"ffn_gate_exps": (D, F, E), "ffn_up_exps": (D, F, E), "ffn_down_exps": (F, D, E)}
        own |= {"attn_norm": (D,), "ffn_norm": (D,)}
        shapes |= {f"blk.{i}.{part}.weight": shape for part, shape in own.items()}
    entries, end = [], 0
    for key, shape in shapes.items():
        in_blocks = "_exps" in key
        entries.append(entry(key, shape, 39 if in_blocks else 1, end))
        size = int(np.prod(shape, dtype=np.int64))
        end += -(-(size // 32 * 17 if in_blocks else 2 * size) // 32) * 32
    head = gguf_bytes(pairs, entries)
    with (tmp_path / "x.gguf").open("wb") as file:
        file.write(head)
        file.truncate(len(head) + end)
    assert end > 20 * GIGABYTE
    weights = open_model(tmp_path / "x.gguf").weights
    assert weights["layers.3.experts.w_up"].format == "mxfp4" and weights["layers.3.experts.w_up"].shape == (E, F, D)
    assert weights["layers.3.experts.w_up"].part(5).nbytes == F * D // 32 * 17
    seconds, megabytes = opened(tmp_path / "x.gguf", tmp_path / "small")
    assert seconds < 1 and megabytes < 20


WIDE = LLAMA | {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "head_dim": 32}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_results_do_not_depend_on_what_is_kept(tmp_path, dtype):
    source = open_model(write_checkpoint(tmp_path, WIDE))
    ids, whole = [1, 5, 7, 3], load(tmp_path, dtype=dtype)
    for room in (0, 2**19, 2**21, None):
        weights = HeldWeights(source.weights, whole.weights["embedding"].dtype, room)
        model = Model(source.spec, weights)
        np.testing.assert_array_equal(model.logits(ids), whole.logits(ids))
        assert model.greedy(ids, 2) == whole.greedy(ids, 2)
        if room is not None and dtype != "float32":  # where nothing is a view of the file
            assert sum(weights[name].nbytes for name in weights if weights[name] is weights[name]) <= room


def test_a_layer_is_read_at_a_time(tmp_path):
    source = open_model(write_checkpoint(tmp_path, WIDE))
    sizes = {name: 8 * int(np.prod(tensor.shape)) for name, tensor in source.weights.items()}
    layer = sum(size for name, size in sizes.items() if name.startswith("layers.0."))
    model = Model(source.spec, HeldWeights(source.weights, np.float64, room=0))
    model.logits([1, 5, 7])
    tracemalloc.start()
    try:
        model.logits([1, 5, 7])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert layer / 2 < peak < layer and 5 * layer < sum(sizes.values())  # the network's matrices, never a whole layer


def test_what_every_step_reads_is_kept_first():
    made = list[str]()

    def tensor(name: str) -> Tensor:
        def numbers() -> np.ndarray:
            made.append(name)
            return np.zeros(2, np.float32)

        return Tensor("float32", (2,), numbers)

    names = ["layers.0.w_q", "layers.1.w_q", "embedding", "lm_head"]
    weights = HeldWeights({name: tensor(name) for name in names}, np.float32, room=24)
    assert list(weights) == names and len(weights) == 4 and "lm_head" in weights and "w_q" not in weights and made == []
    for name in names * 2:
        assert weights[name].nbytes == 8
    assert made == [*names, "layers.1.w_q"]
    with pytest.raises(KeyError):
        weights["w_q"]


def test_the_system_says_how_much_memory_is_free():
    assert 2**20 < free_memory() < 2**50
