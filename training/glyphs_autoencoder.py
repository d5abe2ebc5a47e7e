"""Train the autoencoder of the glyphs: 32 x 32 pictures to 4 x 8 x 8 latents and back.

    python training/glyphs_autoencoder.py FOLDER [--steps 5000]

Writes FOLDER/vae as diffusers stores it, with ``scaling_factor`` set so that latents have a spread of 1.
"""

import argparse
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from glyphs_data import pictures

KL_WEIGHT = 1e-3  # enough to keep latents bounded, too little to blur


def new_autoencoder() -> AutoencoderKL:
    """Return an untrained autoencoder."""
    return AutoencoderKL(
        in_channels=1, out_channels=1, latent_channels=4, block_out_channels=(16, 24, 32), layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3, norm_num_groups=8,
        sample_size=32,
    )  # fmt: skip


def train(vae: AutoencoderKL, steps: int, seed: int = 0, batch: int = 32) -> None:
    """Minimise absolute error and KL divergence over fresh pictures."""
    torch.manual_seed(seed)
    vae.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(vae.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.05)
    data, start = torch.from_numpy(pictures(40_000, seed)[0]), time.time()
    for step in range(steps):
        image = data[torch.randint(len(data), (batch,))].contiguous(memory_format=torch.channels_last)
        posterior = vae.encode(image).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        error = (decoded - image).abs().mean() + (decoded - image).square().mean()
        loss = error + KL_WEIGHT * posterior.kl().mean() / 256
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            said = f"error {error.item():.4f} kl {posterior.kl().mean().item():7.1f}"
            print(f"step {step:5} {said} {time.time() - start:5.0f} s", flush=True)


@torch.no_grad()
def finish(vae: AutoencoderKL, folder: Path, seed: int = 1) -> None:
    """Set the scale of the latents, in which the denoiser works; store the weights."""
    image = torch.from_numpy(pictures(2_000, seed)[0])
    latent = vae.encode(image).latent_dist.mean
    vae.register_to_config(scaling_factor=round(1 / latent.std().item(), 5))
    error = (vae.decode(latent).sample - image).square().mean().item()
    print(f"mean squared error of new pictures {error:.5f}, scaling factor {vae.config.scaling_factor}")
    vae.save_pretrained(folder / "vae")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = new_autoencoder()
    train(model, options.steps)
    finish(model, options.folder)
