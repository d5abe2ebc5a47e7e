"""The sides of benchmarks/cpu.py, each a process that answers measurements over a pipe.

    python benchmarks/peers.py SIDE GGUF THREADS

reads lines of JSON ({"do": "decode", "context": 128, "tokens": 32, "batch": 1}) and answers each with
{"result": seconds, "rss": bytes at the peak so far}. A side that is not asked anything sleeps on its pipe, so the sides
can be interleaved in one run.
"""

import json
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

IDS = [1 + (7919 * i) % 40000 for i in range(16384)]


class Ours:
    """This project's CPU executor."""

    def __init__(self, gguf: str, threads: int, activations: str) -> None:
        import gpu

        self.model = gpu.load(gguf, device="cpu", threads=threads, activations=activations, context=8192)
        self.executor = self.model.executor

    def prefill(self, tokens: int) -> float:
        sequence = self.executor.new_sequence()
        start = time.perf_counter()
        self.executor.step([(sequence, IDS[:tokens])])
        seconds = time.perf_counter() - start
        self.executor.free(sequence)
        return seconds

    def decode(self, context: int, tokens: int, batch: int) -> float:
        sequences = [self.executor.new_sequence() for _ in range(batch)]
        for i, sequence in enumerate(sequences):
            self.executor.step([(sequence, IDS[i : i + context])])
        start = time.perf_counter()
        for i in range(tokens):
            self.executor.step([(sequence, [IDS[i]]) for sequence in sequences])
        seconds = time.perf_counter() - start
        for sequence in sequences:
            self.executor.free(sequence)
        return seconds

    def cache_bytes(self, contexts: list[int]) -> list[int]:
        """What --explain says the executor's memory is at each context, beside the weights."""
        from gpu.executor.cpu import memory_bytes

        return [memory_bytes(self.model.spec, {}, context) for context in contexts]


class LlamaCpp:
    """llama.cpp through the low-level interface of llama-cpp-python."""

    def __init__(self, gguf: str, threads: int) -> None:
        import llama_cpp as lc

        self.lc = lc
        self.silent = lc.llama_log_callback(lambda level, text, data: None)  # kept: C calls it
        lc.llama_log_set(self.silent, None)
        lc.llama_backend_init()
        params = lc.llama_model_default_params()
        params.use_mmap = True
        self.model = lc.llama_model_load_from_file(gguf.encode(), params)
        context = lc.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max = 8192 + 1024, 512, 512, 8
        context.n_threads = context.n_threads_batch = threads
        context.kv_unified = True
        self.context = lc.llama_init_from_model(self.model, context)
        self.batch = lc.llama_batch_init(512, 0, 1)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, logits
            b.seq_id[i][0] = sequence
        if self.lc.llama_decode(self.context, b):
            raise RuntimeError("llama_decode failed")
        self.lc.llama_get_logits_ith(self.context, -1)

    def _clear(self) -> None:
        self.lc.llama_memory_clear(self.lc.llama_get_memory(self.context), False)

    def _fill(self, sequence: int, tokens: int, first: int = 0) -> None:
        for at in range(0, tokens, 512):
            end = min(at + 512, tokens)
            self._run([(IDS[first + i], i, sequence, i == tokens - 1) for i in range(at, end)])

    def prefill(self, tokens: int) -> float:
        self._clear()
        start = time.perf_counter()
        self._fill(0, tokens)
        return time.perf_counter() - start

    def decode(self, context: int, tokens: int, batch: int) -> float:
        self._clear()
        for sequence in range(batch):
            self._fill(sequence, context, sequence)
        start = time.perf_counter()
        for i in range(tokens):
            self._run([(IDS[i], context + i, sequence, True) for sequence in range(batch)])
        return time.perf_counter() - start


class Transformers:
    """transformers on torch, float32, the file dequantised."""

    def __init__(self, gguf: str, threads: int) -> None:
        import os

        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        folder, name = os.path.split(gguf)
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)

    def prefill(self, tokens: int) -> float:
        ids = self.torch.tensor([IDS[:tokens]])
        with self.torch.inference_mode():
            start = time.perf_counter()
            self.model(ids, use_cache=True, logits_to_keep=1)
            return time.perf_counter() - start

    def decode(self, context: int, tokens: int, batch: int) -> float:
        ids = self.torch.tensor([IDS[i : i + context] for i in range(batch)])
        with self.torch.inference_mode():
            cache = self.model(ids, use_cache=True, logits_to_keep=1).past_key_values
            start = time.perf_counter()
            for i in range(tokens):
                step = self.torch.full((batch, 1), IDS[i])
                self.model(step, past_key_values=cache, use_cache=True)
            return time.perf_counter() - start


SIDES: dict[str, Callable[[str, int], object]] = {
    "ours": lambda gguf, threads: Ours(gguf, threads, "float32"),
    "ours-int8": lambda gguf, threads: Ours(gguf, threads, "int8"),
    "llama.cpp": LlamaCpp,
    "transformers": Transformers,
}


def main() -> None:
    """Serve one side until the pipe closes."""
    name, gguf, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    out = sys.stdout
    sys.stdout = sys.stderr
    side = SIDES[name](gguf, threads)
    print(json.dumps({"ready": True, "numpy": np.__version__}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        result = getattr(side, asked.pop("do"))(**asked)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"result": result, "rss": peak}), file=out, flush=True)


if __name__ == "__main__":
    main()
