"""Decode with and without drafts, interleaved in one run: tokens a second, and how many tokens were drafted.

``python benchmarks/speculation.py [ROUNDS]`` takes SmolLM2 on the CPU, prompts that repeat themselves and one that does
not; every answer must be the same text. Medians of the rounds, and of each round's ratio to the plain answer.
"""

import statistics
import sys
import time
from dataclasses import replace

import gpu

TOKENS = 200
PROMPTS = {
    "a list that repeats": ("1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4", True),
    "code": ("".join(f"def get_{x}(self):\n    return self.{x}\n\n" for x in "abc") + "def get_d(self):", True),
    "a story": ("Tell me a story about a lighthouse keeper.", False),
}
DRAFTS = {"no draft": (None, 8), "ngram, 8": ("ngram", 8), "ngram, 16": ("ngram", 16)}


def main(rounds: int) -> None:
    """Measure, and print a table."""
    model = gpu.load("smollm2", device="cpu")
    seconds, drafted, texts = {}, {}, {}
    for _ in range(rounds):
        for prompt, (text, raw) in PROMPTS.items():
            for name, (draft, most) in DRAFTS.items():
                drafting = replace(model, draft=draft, num_draft_tokens=most)
                start = time.perf_counter()
                tokens = list(drafting.generate(text, raw=raw, max_tokens=TOKENS, ignore_eos=True))
                seconds.setdefault((prompt, name), []).append(time.perf_counter() - start)
                drafted[prompt, name] = sum(token.drafted for token in tokens)
                assert texts.setdefault(prompt, [token.id for token in tokens]) == [token.id for token in tokens]
    print(f"{'prompt':20} {'draft':10} {'tok/s':>7} {'ratio':>6} {'drafted':>8}")
    for (prompt, name), taken in seconds.items():
        ratio = statistics.median(plain / own for plain, own in zip(seconds[prompt, "no draft"], taken, strict=True))
        speed = TOKENS / statistics.median(taken)
        print(f"{prompt:20} {name:10} {speed:7.1f} {ratio:6.2f} {drafted[prompt, name]:4} of {TOKENS}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
