"""Check and measure the kernels on a GPU: one command, a table, and a JSON file of the same.

    pip install -e ".[cuda12]"        # torch as well for the comparison with its attention
    python benchmarks/gpu_check.py --out benchmarks/results/gpu.json
    python benchmarks/gpu_check.py --dry      # without a GPU: the same way, on the interpreter, with no clock

The file is written anew after every section: what a time limit ends is not lost. Ends with 1 when something is wrong.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_bench import Bench, Dry, Gpu
from gpu_models import random_model

import refimpl
from gpu import device
from gpu.compile import Kernel, cuda_kernel
from gpu.executor.cuda import CudaExecutor
from gpu.registry import fused, variants
from gpu.report import ptx_hash
from gpu.toolkit import toolkit_versions
from refimpl.basics.linear import linear
from refimpl.llm.quantize import dequantize

L2 = 256 << 20  # more than the caches hold: weights are read in turn from so many bytes


@dataclass(frozen=True)
class Row:
    section: str
    what: str
    value: float
    unit: str
    note: str = ""
    kernels: Mapping[str, str] = field(default_factory=dict)  # those that ran, each with the hash of its PTX


def machine(bench: Bench) -> Iterator[Row]:
    """What is measured on."""
    yield Row("machine", "compilers", np.nan, "", toolkit_versions())
    if isinstance(bench, Gpu):
        runtime = bench.xp.cuda.runtime
        facts = runtime.getDeviceProperties(0)
        yield Row("machine", facts["name"].decode(), facts["totalGlobalMem"] / 2**30, "GiB")
        yield Row("machine", "multiprocessors", facts["multiProcessorCount"], "")
        yield Row("machine", "driver", runtime.driverGetVersion(), "", f"CuPy {bench.xp.__version__}")


def golden_cases(bench: Bench) -> Iterator[Row]:
    """Every kernel by the cases of outside sources, as ``python -m golden verify`` does it."""
    from golden.adapters import implementation
    from golden.case import read_cases
    from golden.verify import verify

    cases = read_cases() if isinstance(bench, Gpu) else read_cases()[::40]
    counts: dict[str, int] = {}
    for outcome in verify(cases, implementation("gpu", device.current())):
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if outcome.status in ("fail", "error"):
            yield Row("golden", outcome.case.id, outcome.ulps, "ulp", f"WRONG: {outcome.kernel} {outcome.reason}")
    for status, count in counts.items():
        yield Row("golden", status, count, "cases")


def equivalence(bench: Bench) -> Iterator[Row]:
    """Every variant by the reference, at sizes that users have: at most twice the reference's own error and 4 ulp."""
    from golden.tolerance import judge

    chosen = (*variants(), *fused())
    for variant in chosen if isinstance(bench, Gpu) else chosen[:: len(chosen) // 3]:
        arguments, op = variant.workload(), _reference(variant.op)
        with device.recording() as launches:
            results = _results(variant.call(**arguments))
        ran = {launch.kernel.name: ptx_hash(launch.kernel) for launch in launches}
        truths, plain = _results(op(**_wide(arguments))), _results(op(**arguments))
        for number, (result, truth, own) in enumerate(zip(results, truths, plain, strict=True)):
            norm = float(np.linalg.norm(truth.astype(np.float64))) or 1.0
            error = float(np.linalg.norm(own.astype(np.float64) - truth.astype(np.float64))) / norm
            verdict = judge(result, truth, str(result.dtype), source_error=error)
            note = f"WRONG: {verdict.reason}" if not verdict.passed else ""
            yield Row("equivalence", f"{variant.op} [{variant.name}] {number}", verdict.ulps, "ulp", note, ran)


def _reference(name: str) -> Callable[..., Any]:
    if name == "linear_blocks":
        return lambda x, blocks, format: linear(x, dequantize(blocks, format))
    rooms = [importlib.import_module(f"refimpl.{room}") for room, _ in refimpl.CONTENTS]
    return next(vars(room)[name] for room in rooms if getattr(vars(room).get(name), "role", None) == "op")


def _results(given: Any) -> list[Any]:
    """Return what an operation gave as NumPy arrays, a data class by its fields."""
    if is_dataclass(given):
        given = tuple(getattr(given, each.name) for each in fields(given))
    return [np.asarray(device.to_host(x)) for x in (given if isinstance(given, tuple) else (given,))]


def _wide(arguments: dict[str, Any]) -> dict[str, Any]:
    floats = ("float32", "float16", "bfloat16")
    is_float = {name: str(getattr(x, "dtype", "")) in floats for name, x in arguments.items()}
    return {name: x.astype(np.float64) if is_float[name] else x for name, x in arguments.items()}


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


def decode(bench: Bench) -> Iterator[Row]:
    """Tokens a second of the executor with random weights, one sequence."""
    for name in ("1B", "8B") if isinstance(bench, Gpu) else ("tiny",):
        for format in ("bfloat16", "q8_0", "q4_1"):
            spec, weights = random_model(name, format)
            executor = CudaExecutor(spec, weights, device.current(), context=256)
            sequence, count = executor.new_sequence(), bench.size(64, 1)
            executor.step([(sequence, list(range(8)))])
            seconds = bench.eager_seconds(lambda e=executor, s=sequence: e.step([(s, [7])]), count)
            yield Row("decode", f"{name} {format}", 1 / seconds, "tok/s", "eager")


SECTIONS = (machine, bandwidths, launches, gemv, attention, decode, golden_cases, equivalence)


def run(bench: Bench, out: Path | None) -> list[Row]:
    """Run every section; one that fails is a row, and the next begins."""
    rows: list[Row] = []
    for section in SECTIONS:
        start = time.perf_counter()
        try:
            for row in section(bench):
                rows.append(row)
                print(f"{row.section:12} {row.what:48} {row.value:12.5g} {row.unit:16} {row.note}", flush=True)
        except Exception as error:  # whatever a driver or a library raises: the other sections still tell something
            rows.append(Row(section.__name__, "failed", np.nan, "", f"WRONG: {type(error).__name__}: {error}"))
            print(f"{rows[-1].section:12} {rows[-1].note}", flush=True)
        print(f"{section.__name__:12} took {time.perf_counter() - start:.1f} s", file=sys.stderr)
        if out:
            out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--dry", action="store_true", help="run on the interpreter, without a GPU and without a clock")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    name = "emulated" if options.dry else device.pick("cuda")
    bench = Dry() if options.dry else Gpu()
    with device.use(name), device.checks(orders=1), bench.stream:
        rows = run(bench, options.out)
    return int(any(row.note.startswith("WRONG") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
