"""Measure the CPU executor against llama.cpp and transformers, interleaved in one run.

    pip install -e . llama-cpp-python transformers accelerate torch    # peers: for this script alone
    python benchmarks/cpu.py [--threads 2] [--rounds 7] [--quick] > table.md

Every round asks each side once, in turn, so that a drifting machine hits all alike. A sample counts only when
everybody else on the machine used less than 0.08 core while it ran (/proc/stat busy time minus the side's own).
The table holds medians of the quiet samples and ratios to the peers; the versions and the CPU are printed above it.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
QUIET = 0.08
PEERS = {  # what is imported: what is installed
    "llama_cpp": "llama-cpp-python", "transformers": "transformers", "accelerate": "accelerate", "torch": "torch",
}

WORK = {
    "decode, tok/s": ({"do": "decode", "context": 128, "tokens": 32, "batch": 1}, 32),
    "prefill 512, tok/s": ({"do": "prefill", "tokens": 512}, 512),
    "decode, batch 8, tok/s in all": ({"do": "decode", "context": 32, "tokens": 16, "batch": 8}, 128),
}
TARGETS = [
    ("decode, tok/s", "ours", "llama.cpp", 1.0),
    ("decode, tok/s", "ours-int8", "llama.cpp", 1.4),
    ("prefill 512, tok/s", "ours", "llama.cpp", 2.0),
    ("prefill 512, tok/s", "ours", "transformers", 1.2),
    ("decode, batch 8, tok/s in all", "ours", "llama.cpp", 1.0),
]


def busy() -> float:
    """Seconds of CPU time that the whole machine has used."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def own(pid: int) -> float:
    """Seconds of CPU time that one process has used, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Side:
    """One peer in its own process."""

    def __init__(self, name: str, gguf: str, threads: int) -> None:
        self.name, self.samples, self.noisy = name, {}, 0
        command = [sys.executable, str(HERE / "peers.py"), name, gguf, str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )
        self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early: is it installed? Try: {' '.join(self.process.args)}")
        return json.loads(line)

    def ask(self, work: dict) -> tuple[dict, bool]:
        """One measurement, and whether the machine was quiet while it ran."""
        before, mine, start = busy(), own(self.process.pid), time.perf_counter()
        print(json.dumps(work), file=self.process.stdin, flush=True)
        answer = self._answer()
        wall = time.perf_counter() - start
        others = (busy() - before) - (own(self.process.pid) - mine)
        return answer, others / wall < QUIET

    def sample(self, name: str, work: dict) -> None:
        """Keep one quiet sample, in at most 5 tries."""
        for _ in range(5):
            answer, quiet = self.ask(work)
            if quiet:
                self.samples.setdefault(name, []).append(answer["result"])
                return
            self.noisy += 1

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name]) if self.samples.get(name) else float("nan")


def first_token(gguf: str, threads: int, rounds: int) -> tuple[float, float]:
    """Median seconds from process start to its first token, and the largest resident set in MB."""
    walls, peak = [], 0
    for _ in range(rounds):
        start = time.perf_counter()
        command = [sys.executable, "-m", "gpu.run", "-m", gguf, "--threads", str(threads), "-n", "64",
                   "--ignore-eos", "--no-stats", "What is the capital of France?"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=HERE.parent)
        process.stdout.read(1)
        walls.append(time.perf_counter() - start)
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak = max(peak, usage.ru_maxrss * 1024)
    return statistics.median(walls), peak / 1e6


def versions() -> str:
    names = ["numpy", "numba", "llama-cpp-python", "transformers", "torch"]
    cpu = next(x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().split("\n") if "model name" in x)
    flags = Path("/proc/cpuinfo").read_text()
    best = "AVX-512 VNNI" if "avx512_vnni" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    parts = [f"{n} {importlib.metadata.version(n)}" for n in names]
    return f"{cpu} ({best}), {os.cpu_count()} cores; Python {sys.version.split()[0]}, " + ", ".join(parts)


def table(sides: dict[str, Side], threads: int) -> list[str]:
    rows = [f"| {threads} threads, medians | " + " | ".join(sides) + " |", "|---|" + "---|" * len(sides)]
    for name, (_, tokens) in WORK.items():
        cells = [f"{tokens / s.median(name):.0f} ({len(s.samples.get(name, []))})" for s in sides.values()]
        rows.append(f"| {name} (samples) | " + " | ".join(cells) + " |")
    rows.append("")
    for name, ours, peer, wanted in TARGETS:
        ratio = sides[peer].median(name) / sides[ours].median(name)
        missed = "" if ratio >= wanted else ", MISSED"
        rows.append(f"* {name}: {ours} is {ratio:.2f} x {peer} (wanted: {wanted}{missed})")
    return rows


def contexts(sides: dict[str, Side], lengths: list[int], rounds: int) -> list[str]:
    """Decode time against context."""
    for n in lengths * rounds:
        for name in ("ours", "llama.cpp"):
            sides[name].sample(f"context {n}", {"do": "decode", "context": n, "tokens": 16, "batch": 1})
    head = ["| context | " + " | ".join(map(str, lengths)) + " |", "|---|" + "---|" * len(lengths)]
    for name in ("ours", "llama.cpp"):
        cells = [f"{sides[name].median(f'context {n}') / 16 * 1e3:.2f}" for n in lengths]
        head.append(f"| {name}, ms a token | " + " | ".join(cells) + " |")
    return head


def memory(side: Side, lengths: list[int]) -> list[str]:
    """The peak of a fresh process at ascending contexts, and what the formula of --explain makes of the first one."""
    peaks = [side.ask({"do": "decode", "context": n, "tokens": 16, "batch": 1})[0]["rss"] / 1e6 for n in lengths]
    cache = [x / 1e6 for x in side.ask({"do": "cache_bytes", "contexts": [n + 16 for n in lengths]})[0]["result"]]
    predicted = [peaks[0] + x - cache[0] for x in cache]
    rows = {"ours, peak MB": peaks, "by the formula of --explain, from the first": predicted}
    return [f"| {name} | " + " | ".join(f"{x:.0f}" for x in row) + " |" for name, row in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="skip the long contexts")
    a = parser.parse_args()
    if absent := [package for module, package in PEERS.items() if importlib.util.find_spec(module) is None]:
        sys.exit(f"benchmarks/cpu.py: the peers are not all installed; pip install {' '.join(absent)}")
    sys.path.insert(0, str(HERE.parent))
    from refimpl.files.hub import resolve

    gguf = str(resolve(a.model))
    print(time.strftime("%Y-%m-%d"), versions(), sep=", ", end="\n\n")
    sides = {n: Side(n, gguf, a.threads) for n in ("ours", "ours-int8", "llama.cpp", "transformers")}
    for side in sides.values():  # warm up: pages, caches, compiled code
        for work, _ in WORK.values():
            side.ask(work)
    for _ in range(a.rounds):
        for name, (work, _) in WORK.items():
            for side in sides.values():
                side.sample(name, work)
    print("\n".join(table(sides, a.threads)))
    if not a.quick:
        lengths = [128, 1024, 4096, 8000]
        print("\n" + "\n".join(contexts(sides, lengths, 2) + memory(Side("ours", gguf, a.threads), lengths)))
    wall, peak = first_token(gguf, a.threads, 5)
    print(f"\n* start to first token, all cached: {wall:.2f} s (wanted: under 3)")
    print(f"* peak memory of gpu.run: {peak:.0f} MB (wanted: under 500)")
    print(f"* samples thrown away as noisy: { {n: s.noisy for n, s in sides.items()} }")


if __name__ == "__main__":
    main()
