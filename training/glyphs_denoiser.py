"""Train the denoiser of the glyphs: a diffusion transformer over latents, told a digit and a time.

    python training/glyphs_denoiser.py FOLDER [--steps 16000]

Flow matching: x = (1 - sigma) x0 + sigma noise, and the model gives the velocity noise - x0 at timestep 1000 sigma.
One picture in ten has no digit (class 10), so that guidance has something to lead away from.
Reads FOLDER/vae, writes FOLDER/transformer: the running mean of the weights, as float16.
"""

import argparse
import copy
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DiTTransformer2DModel
from glyphs_data import pictures

__all__ = ["encode", "load_autoencoder", "new_denoiser", "save", "velocity"]

CLASSES = 10


def new_denoiser() -> DiTTransformer2DModel:
    """Return an untrained denoiser."""
    return DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=5, sample_size=8,
        patch_size=2, num_embeds_ada_norm=CLASSES, dropout=0.0,
    )  # fmt: skip


def load_autoencoder(folder: Path) -> AutoencoderKL:
    """Return the trained autoencoder of a folder."""
    return AutoencoderKL.from_pretrained(folder / "vae").eval()


@torch.no_grad()
def encode(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Return the latents of pictures, scaled to a spread of 1."""
    parts = [vae.encode(part).latent_dist.mean for part in images.split(500)]
    return torch.cat(parts) * vae.config.scaling_factor


def velocity(model: DiTTransformer2DModel, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return what the model says at noise level sigma, one for each picture."""
    return model(x, timestep=1000 * sigma, class_labels=label).sample


def train(
    model: DiTTransformer2DModel, latents: torch.Tensor, labels: torch.Tensor, steps: int, batch: int = 128
) -> DiTTransformer2DModel:
    """Train; return a model with the running mean of the weights."""
    mean, start = copy.deepcopy(model), time.time()
    optimizer = torch.optim.AdamW(model.parameters(), 1.5e-3, weight_decay=0.01, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps, pct_start=0.05)
    model.eval()  # in training mode diffusers drops labels itself, in every block another
    for step in range(steps):
        chosen = torch.randint(len(latents), (batch,))
        x0, noise, sigma = latents[chosen], torch.randn(batch, *latents.shape[1:]), torch.sigmoid(torch.randn(batch))
        label = torch.where(torch.rand(batch) < 0.1, CLASSES, labels[chosen])
        at = sigma[:, None, None, None]
        loss = (velocity(model, (1 - at) * x0 + at * noise, sigma, label) - (noise - x0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            keep = min(0.999, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1 - keep)
        if step % 200 == 0:
            print(f"step {step:5} loss {loss.item():.4f} {time.time() - start:5.0f} s", flush=True)
    return mean


def save(model: DiTTransformer2DModel, folder: Path) -> None:
    """Store the weights as float16."""
    model.to(torch.float16).save_pretrained(folder / "transformer")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=16000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    images, digits = pictures(60_000, 2)
    data = encode(load_autoencoder(options.folder), torch.from_numpy(images))
    save(train(new_denoiser(), data, torch.from_numpy(digits), options.steps), options.folder)
