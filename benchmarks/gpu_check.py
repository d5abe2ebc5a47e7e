"""Check and measure the kernels on a GPU: one command, a table, and a JSON file of the same.

    pip install -e ".[cuda12]"        # torch as well for the comparison with its attention
    python benchmarks/gpu_check.py --out benchmarks/results/gpu.json
    python benchmarks/gpu_check.py --dry      # without a GPU: the same way, on the interpreter, with no clock

The file is written anew after every section: what a time limit ends is not lost. Ends with 1 when something is wrong.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from gpu_bench import Bench, Dry, Gpu, Row
from gpu_judge import equivalence, golden_cases
from gpu_models import random_model

from gpu import device
from gpu.compile import Kernel, cuda_kernel
from gpu.executor.cuda import CudaExecutor
from gpu.registry import variants
from gpu.toolkit import toolkit_versions
from refimpl.contract import UsageError

L2 = 256 << 20  # more than the caches hold: weights are read in turn from so many bytes


def machine(bench: Bench) -> Iterator[Row]:
    """What is measured on."""
    yield Row("machine", "compilers", np.nan, "", toolkit_versions())
    if isinstance(bench, Gpu):
        runtime = bench.xp.cuda.runtime
        facts = runtime.getDeviceProperties(0)
        yield Row("machine", facts["name"].decode(), facts["totalGlobalMem"] / 2**30, "GiB")
        yield Row("machine", "multiprocessors", facts["multiProcessorCount"], "")
        yield Row("machine", "driver", runtime.driverGetVersion(), "", f"CuPy {bench.xp.__version__}")


def _bandwidth_kernel(entry: str, *parameters: tuple[str, str]) -> Kernel:
    return cuda_kernel(Path(__file__).with_name("bandwidth.cu"), entry, parameters)


def bandwidths(bench: Bench) -> Iterator[Row]:
    """What the memory gives at best."""
    count, blocks, threads = bench.size(1 << 28, 1 << 10), bench.size(132 * 8, 2), 256
    data, out = bench.normal((count, 4)), bench.normal((count, 4))
    sums = device.empty(blocks * threads, "uint32")
    read = _bandwidth_kernel("read_all", ("sums", "uint32*"), ("data", "float32*"), ("count", "int64"))
    copy = _bandwidth_kernel("copy_all", ("out", "float32*"), ("data", "float32*"), ("count", "int64"))
    seconds = bench.seconds(lambda _: device.launch(read, blocks, threads, sums, data, count), 5)
    yield Row("bandwidth", "read", count * 16 / seconds / 1e9, "GB/s")
    seconds = bench.seconds(lambda _: device.launch(copy, blocks, threads, out, data, count), 5)
    note = "" if bool((out == data).all()) else "WRONG: the copy differs"
    yield Row("bandwidth", "copy", 2 * count * 16 / seconds / 1e9, "GB/s, both ways", note)


def launches(bench: Bench) -> Iterator[Row]:
    """What it costs to begin a kernel that does nothing."""
    nothing = _bandwidth_kernel("nothing")
    yield Row("launch", "from Python", bench.eager_seconds(lambda: device.launch(nothing, 1, 32)) * 1e6, "us")
    yield Row("launch", "node of a graph", bench.seconds(lambda _: device.launch(nothing, 1, 32), 1000) * 1e6, "us")


def gemv(bench: Bench) -> Iterator[Row]:
    """One row times the matrices of an 8B model, of which every byte is read once."""
    width = bench.size(4096, 256)
    for rows in (1024, 4096, 14336, 128256) if isinstance(bench, Gpu) else (64,):
        for dtype in ("float32", "bfloat16"):
            yield from _gemv_of_floats(bench, rows, width, dtype)
        for format in ("q8_0", "q4_1"):
            yield _gemv_of_blocks(bench, rows, width, format)


def _gemv_of_floats(bench: Bench, rows: int, width: int, dtype: str) -> Iterator[Row]:
    x, weights = bench.normal((1, width), dtype), _copies(bench.normal((rows, width), dtype))
    for variant in variants("linear"):
        if variant.takes(x=x, w=weights[0]):
            seconds = bench.seconds(lambda i, call=variant.call: call(x=x, w=weights[i % len(weights)]))
            yield _gigabytes(f"{rows} x {width} {dtype} [{variant.name}]", weights, seconds)


def _gemv_of_blocks(bench: Bench, rows: int, width: int, format: str) -> Row:
    from gpu.llm.quantize import linear_blocks_into

    weights, x, y = _copies(bench.blocks(rows, width, format)), bench.normal((1, width)), device.empty((1, rows), "f4")
    seconds = bench.seconds(lambda i: linear_blocks_into(y, x, weights[i % len(weights)], format))
    return _gigabytes(f"{rows} x {width} {format}", weights, seconds)


def _copies(first: Any) -> list[Any]:
    """Return so many equal matrices that a cache does not hold them."""
    return [first] + [first.copy() for _ in range(min(64, L2 // first.nbytes) if device.current() == "cuda" else 0)]


def _gigabytes(what: str, copies: list[Any], seconds: float) -> Row:
    return Row("gemv", what, copies[0].nbytes / seconds / 1e9, "GB/s", f"{seconds * 1e6:.1f} us")


def attention(bench: Bench) -> Iterator[Row]:
    """Causal attention of a prompt against itself."""
    slow: set[str] = set()
    for width in (64, 128):
        for length in (1024, 4096, 16384) if isinstance(bench, Gpu) else (64,):
            shape, size = (length, bench.size(16, 2), width), f"d {width} T {length}"
            arguments = {name: bench.normal(shape, "bfloat16") for name in "qkv"}
            flops = 4 * length * length * shape[1] * width / 2
            for variant in [*variants("attention"), *variants("flash_attention")]:
                name = f"{variant.op} [{variant.name}]"
                if name not in slow and variant.takes(**arguments):
                    seconds = bench.seconds(lambda _, call=variant.call, a=arguments: call(**a), 3)
                    yield Row("attention", f"{size} {name}", flops / seconds / 1e12, "TFLOP/s")
                    slow |= {name} if seconds > 0.2 else set()
            yield from _torch_attention(shape, size, flops) if isinstance(bench, Gpu) else ()


def _torch_attention(shape: tuple[int, ...], size: str, flops: float) -> Iterator[Row]:
    try:
        import torch
    except ModuleNotFoundError:
        yield Row("attention", f"{size} torch", np.nan, "TFLOP/s", "torch is not installed")
        return
    q, k, v = (torch.randn(1, shape[1], shape[0], shape[2], device="cuda", dtype=torch.bfloat16) for _ in range(3))
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    yield Row("attention", f"{size} torch", flops / min(times) / 1e12, "TFLOP/s", f"torch {torch.__version__}")


def paged(bench: Bench) -> Iterator[Row]:
    """A token of each sequence against its pages, which lie anywhere."""
    heads, kv_heads, width, page = 32, 8, 128, 16
    for sequences in (1, 32) if isinstance(bench, Gpu) else (2,):
        length = bench.size(4096, 40)
        pages = -(-length // page)
        tables = np.random.default_rng(0).permutation(sequences * pages).reshape(sequences, pages)
        arguments = {"q": bench.normal((sequences, heads, width), "bfloat16")}
        for name in ("k_cache", "v_cache"):
            arguments[name] = bench.normal((sequences * pages, page, kv_heads, width), "bfloat16")
        arguments["block_tables"] = tables.astype(np.int32)
        arguments["context_lens"] = np.full(sequences, length, np.int32)
        arguments["cu_seqlens"] = np.arange(sequences + 1, dtype=np.int32)
        for variant in variants("paged_attention"):
            if variant.takes(**arguments):
                seconds = bench.eager_seconds(lambda call=variant.call, a=arguments: call(**a), 50)
                what = f"{sequences} sequences of {length} [{variant.name}]"
                yield Row("paged", what, seconds * 1e6, "us", "eager")


def decode(bench: Bench) -> Iterator[Row]:
    """Tokens a second of the executor with random weights, one sequence."""
    for name in ("1B", "8B", "30B-A3B, 6 of 48 layers") if isinstance(bench, Gpu) else ("tiny", "tiny mixture"):
        for format in ("bfloat16", "q8_0", "q4_1"):
            spec, weights = random_model(name, format)
            executor = CudaExecutor(spec, weights, device.current(), context=256)
            sequence, count = executor.new_sequence(), bench.size(64, 1)
            executor.step([(sequence, list(range(8)))])
            seconds = bench.eager_seconds(lambda e=executor, s=sequence: e.step([(s, [7])]), count)
            yield Row("decode", f"{name} {format}", 1 / seconds, "tok/s", "eager")


SECTIONS = (machine, bandwidths, launches, golden_cases, equivalence, gemv, attention, paged, decode)


def run(bench: Bench, out: Path | None) -> list[Row]:
    """Run every section; one that fails is a row, and the next begins."""
    rows: list[Row] = []
    for section in SECTIONS:
        start = time.perf_counter()
        try:
            for row in section(bench):
                rows.append(row)
                value = "-" if np.isnan(row.value) else f"{row.value:.5g}"
                print(f"{row.section:12} {row.what:48} {value:>12} {row.unit:16} {row.note}", flush=True)
        except Exception as error:  # whatever a driver or a library raises: the other sections still tell something
            rows.append(Row(section.__name__, "failed", np.nan, "", f"WRONG: {type(error).__name__}: {error}"))
            print(f"{rows[-1].section:12} {rows[-1].note}", flush=True)
        print(f"{section.__name__:12} took {time.perf_counter() - start:.1f} s", file=sys.stderr)
        if out:
            plain = [asdict(row) | {"value": None if np.isnan(row.value) else float(row.value)} for row in rows]
            out.write_text(json.dumps(plain, indent=1) + "\n")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--dry", action="store_true", help="run on the interpreter, without a GPU and without a clock")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    try:
        name = device.pick("emulated" if options.dry else "cuda")
    except UsageError as error:
        parser.error(str(error))
    bench = Dry() if options.dry else Gpu()
    with device.use(name), device.checks(orders=1), bench.stream:
        rows = run(bench, options.out)
    return int(any(row.note.startswith("WRONG") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
