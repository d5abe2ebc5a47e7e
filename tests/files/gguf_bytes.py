"""GGUF files as bytes, written by hand where the gguf library would not write them, and by it where it would."""

import struct
from pathlib import Path
from tempfile import mkdtemp

import gguf
import numpy as np

from refimpl.blocks import FORMATS

STRING, ARRAY = 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str, axes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


def gguf_bytes(
    pairs: list[bytes], entries: list[bytes], data: bytes = b"", *, version: int = 3, alignment: int = 32,
    tensors: int | None = None, keys: int | None = None, magic: bytes = b"GGUF",
) -> bytes:  # fmt: skip
    """Lay out a file; the counts may lie."""
    counts = (len(entries) if tensors is None else tensors, len(pairs) if keys is None else keys)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % alignment) + data


def library_file(metadata: dict, tensors: dict[str, np.ndarray], blocks: dict[str, tuple[str, np.ndarray]]) -> Path:
    """Let the gguf library write a file; ``blocks`` are bytes of a quantised format."""
    path = Path(mkdtemp(prefix="gguf-")) / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (add, value) in metadata.items():
        getattr(writer, f"add_{add}")(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    for name, (form, data) in blocks.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[form.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def some_blocks(form: str, rows: int, blocks: int) -> np.ndarray:
    """Make bytes for rows of a block format."""
    return np.arange(rows * blocks * FORMATS[form].bytes, dtype=np.uint8).reshape(rows, -1)
