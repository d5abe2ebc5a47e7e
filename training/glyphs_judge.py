"""Judge pictures of digits by a classifier that learned from real ones alone.

    python training/glyphs_judge.py train FOLDER         # writes FOLDER/judge.safetensors
    python training/glyphs_judge.py judge FOLDER IMAGES.npy  # [count, 1, 32, 32] in [-1, 1], the digits in turn

It learns from pictures that no model was trained on (another seed), and is itself judged by others, and by two fonts
that nobody has seen.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from glyphs_data import UNSEEN, pictures
from safetensors.torch import load_file, save_file
from torch import nn

__all__ = ["load_judge", "new_judge", "recognised"]


def new_judge() -> nn.Sequential:
    """Return an untrained classifier: three convolutions and a linear map."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10),
    )  # fmt: skip


def load_judge(folder: Path) -> nn.Sequential:
    """Return the trained classifier of a folder."""
    judge = new_judge()
    judge.load_state_dict(load_file(folder / "judge.safetensors"))
    return judge.eval()


@torch.no_grad()
def recognised(judge: nn.Sequential, images: np.ndarray, digits: np.ndarray) -> float:
    """Return the share of pictures that are taken for their digit."""
    found = judge(torch.from_numpy(np.asarray(images, np.float32))).argmax(1).numpy()
    return float((found == digits).mean())


def train(folder: Path, steps: int = 3000) -> None:
    """Train, report, store."""
    torch.manual_seed(7)
    judge, start = new_judge(), time.time()
    images, digits = (torch.from_numpy(each) for each in pictures(20_000, 1001))
    optimizer = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(images), (128,))
        shown = images[chosen] + 0.1 * torch.randn(128, 1, 32, 32)  # it should not look for dust
        loss = nn.functional.cross_entropy(judge(shown), digits[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    judge.eval()
    print(f"{steps} steps in {time.time() - start:.0f} s")
    print(f"real pictures recognised: {recognised(judge, *pictures(2_000, 1002)):.2%}")
    print(f"of fonts that nobody has seen: {recognised(judge, *pictures(2_000, 1003, UNSEEN)):.2%}")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(judge.state_dict(), folder / "judge.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("images", type=Path, nargs="?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "train":
        train(options.folder)
    else:
        given = np.load(options.images)
        print(f"recognised: {recognised(load_judge(options.folder), given, np.arange(len(given)) % 10):.2%}")
