"""Train the video model: a digit that moves, 17 frames of 32 x 32, as one latent of 4 x 5 x 8 x 8.

    python training/moving_glyphs.py autoencoder FOLDER [--steps 1500]
    python training/moving_glyphs.py denoiser FOLDER [--steps 8000]
    python training/moving_glyphs.py decoder FOLDER [--steps 4500]  # may run beside it: the latents stay as they are

The autoencoder is causal in time: a latent frame knows the frames before it alone, the first frame stands for itself,
and each later latent frame for four. The denoiser is the transformer of the glyphs over all 80 patches of a video, with
positions in three directions. Written are FOLDER/vae and FOLDER/transformer, the weights as float16.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import DiTTransformer2DModel
from glyphs_data import FINE, SEEN, SIDE, _mask
from glyphs_denoiser import CLASSES, new_denoiser
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

FRAMES, LATENT_FRAMES = 17, 5
WEIGHTS = "diffusion_pytorch_model.safetensors"


def video(digit: int, rng: np.random.Generator) -> np.ndarray:
    """Return frames of one digit that drifts, turns a little and bounces off the sides: uint8 [FRAMES SIDE SIDE]."""
    mask = _mask(SEEN[rng.integers(len(SEEN))], digit, int(rng.integers(1, 4)))
    place, speed = rng.uniform(-26, 26, 2), rng.uniform(-6, 6, 2)
    turn, spin, size = rng.uniform(-8, 8), rng.uniform(-1, 1), rng.uniform(0.7, 0.9)
    middle = np.full(2, SIDE * FINE / 2)
    frames = []
    for _ in range(FRAMES):
        angle = np.radians(turn)
        back = np.linalg.inv(size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]))
        shift = middle - back @ (middle + place)
        places = (*back[0], shift[0], *back[1], shift[1])
        frames.append(mask.transform((SIDE * FINE,) * 2, Image.Transform.AFFINE, places, Image.BILINEAR).reduce(FINE))
        speed = np.where(np.abs(place + speed) > 30, -speed, speed)
        place, turn = place + speed, turn + spin
    return np.stack([np.asarray(frame) for frame in frames])


def videos(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return videos [count, 1, FRAMES, SIDE, SIDE] in [-1, 1] and their digits."""
    rng, digits = np.random.default_rng(seed), np.arange(count) % CLASSES
    drawn = np.stack([video(int(digit), rng) for digit in digits])
    return drawn[:, None].astype(np.float32) / 127.5 - 1, digits


class CausalConv(nn.Conv3d):
    """A convolution that sees no later frame: before the first one stand zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t, y, w = self.kernel_size
        return super().forward(F.pad(x, (w // 2, w // 2, y // 2, y // 2, t - 1, 0)))


class Norm(nn.Module):
    """Each place of each frame divided by its root mean square over the channels: so no frame sees another."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * self.weight.view(1, -1, 1, 1, 1)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = Norm(channels), CausalConv(channels, channels, 3)
        self.norm2, self.conv2 = Norm(channels), CausalConv(channels, channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


def fold(x: torch.Tensor) -> torch.Tensor:
    """Put 2 x 2 pixels into channels."""
    b, c, f, y, w = x.shape
    return x.reshape(b, c, f, y // 2, 2, w // 2, 2).permute(0, 1, 4, 6, 2, 3, 5).reshape(b, 4 * c, f, y // 2, w // 2)


def unfold(x: torch.Tensor) -> torch.Tensor:
    """Put channels back into 2 x 2 pixels."""
    b, c, f, y, w = x.shape
    return x.reshape(b, c // 4, 2, 2, f, y, w).permute(0, 1, 4, 5, 2, 6, 3).reshape(b, c // 4, f, 2 * y, 2 * w)


def twice_in_time(x: torch.Tensor) -> torch.Tensor:
    """Repeat every frame but the first."""
    return x.repeat_interleave(2, 2)[:, :, 1:]


class Encoder(nn.Module):
    def __init__(self, wide: int, deep: int, latent: int) -> None:
        super().__init__()
        self.conv_in, self.block1 = CausalConv(4, wide, 3), Block(wide)
        self.down1, self.block2 = CausalConv(wide, deep, 3, (2, 2, 2)), Block(deep)
        self.down2, self.block3 = CausalConv(deep, deep, 3, (2, 1, 1)), Block(deep)
        self.norm_out, self.conv_out = Norm(deep), CausalConv(deep, 2 * latent, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(self.conv_in(fold(x)))
        x = self.block3(self.down2(self.block2(self.down1(x))))
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    def __init__(self, wide: int, deep: int, latent: int) -> None:
        super().__init__()
        self.conv_in, self.block1 = CausalConv(latent, deep, 3), Block(deep)
        self.up1, self.block2 = CausalConv(deep, deep, 3), Block(deep)
        self.up2, self.block3 = CausalConv(deep, wide, 3), Block(wide)
        self.norm_out, self.conv_out = Norm(wide), CausalConv(wide, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(self.conv_in(x))
        x = self.block2(self.up1(twice_in_time(x)))
        x = twice_in_time(x).repeat_interleave(2, 3).repeat_interleave(2, 4)
        x = self.block3(self.up2(x))
        return unfold(self.conv_out(F.silu(self.norm_out(x))))


class Autoencoder(nn.Module):
    def __init__(self, wide: int = 16, deep: int = 32, latent: int = 4) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(wide, deep, latent), Decoder(wide, deep, latent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x).chunk(2, 1)[0])


def train_autoencoder(folder: Path, steps: int, batch: int = 16) -> None:
    """Minimise absolute and squared error and a little KL divergence; store weights and scale."""
    torch.manual_seed(0)
    model, start = Autoencoder(), time.time()
    if (folder / "vae" / WEIGHTS).exists():
        print("going on with the weights that are there")
        model = load_autoencoder(folder)[0].train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    data = torch.from_numpy(videos(3000, 0)[0])
    print(f"{len(data)} videos {time.time() - start:.0f} s", flush=True)
    for step in range(steps):
        shown = data[torch.randint(len(data), (batch,))]
        mean, logvar = model.encoder(shown).chunk(2, 1)
        logvar = logvar.clamp(-30, 20)
        decoded = model.decoder(mean + torch.exp(logvar / 2) * torch.randn_like(mean))
        away = decoded - shown
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        loss = away.abs().mean() + away.square().mean() + 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            said = f"error {away.square().mean().item():.4f} kl {kl.item():.2f}"
            print(f"step {step:5} {said} {time.time() - start:5.0f} s", flush=True)
    with torch.no_grad():
        fresh = torch.from_numpy(videos(100, 1)[0])
        mean = model.encoder(fresh)[:, :4]
        print(f"mean squared error of new videos {(model(fresh) - fresh).square().mean():.5f}")
    config = {
        "_class_name": "CausalAutoencoder", "in_channels": 1, "latent_channels": 4, "channels": [16, 32],
        "scaling_factor": round(1 / mean.std().item(), 5),
    }  # fmt: skip
    store(model, folder / "vae", config)


def train_decoder(folder: Path, steps: int, batch: int = 8) -> None:
    """Go on with the decoder alone, on latents that stay as they are, with a little noise as a denoiser leaves it."""
    torch.manual_seed(3)
    (model, _), start = load_autoencoder(folder), time.time()
    drawn = torch.from_numpy(videos(4000, 4)[0])
    with torch.no_grad():
        means = torch.cat([model.encoder(part)[:, :4] for part in drawn.split(50)])
    decoder = model.decoder.train()
    optimizer = torch.optim.AdamW(decoder.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        chosen = torch.randint(len(drawn), (batch,))
        with torch.autocast("cpu", torch.bfloat16):
            decoded = decoder(means[chosen] + 0.05 * torch.randn(batch, *means.shape[1:]))
        away = decoded.float() - drawn[chosen]
        optimizer.zero_grad()
        (away.abs().mean() + away.square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:5} error {away.square().mean().item():.4f} {time.time() - start:5.0f} s", flush=True)
    with torch.no_grad():
        fresh = torch.from_numpy(videos(100, 1)[0])
        print(f"mean squared error of new videos {(model(fresh) - fresh).square().mean():.5f}")
    store(model, folder / "vae", json.loads((folder / "vae" / "config.json").read_text()))


def store(model: nn.Module, folder: Path, config: dict[str, object]) -> None:
    """Write config.json and the weights as float16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    halved = {name: w.detach().to(torch.float16).contiguous() for name, w in model.state_dict().items()}
    save_file(halved, folder / WEIGHTS)


def load_autoencoder(folder: Path) -> tuple[Autoencoder, float]:
    """Return the autoencoder of a folder, and the scale of its latents."""
    model = Autoencoder()
    model.load_state_dict({name: w.float() for name, w in load_file(folder / "vae" / WEIGHTS).items()})
    return model.eval(), json.loads((folder / "vae" / "config.json").read_text())["scaling_factor"]


def positions(width: int) -> torch.Tensor:
    """Return sines and cosines of frame, column and row of every patch [1, 80, width]: a quarter of the width for the
    frame, the rest for the two others; each half sines, half cosines."""
    axes = np.meshgrid(range(LATENT_FRAMES), range(4), range(4), indexing="ij")
    frame, row, column = (axis.reshape(-1) for axis in axes)
    parts = []
    for places, dims in ((frame, width // 4), (column, width * 3 // 8), (row, width * 3 // 8)):
        angles = places[:, None] / 10000 ** (np.arange(dims // 2) / (dims / 2))
        parts += [np.sin(angles), np.cos(angles)]
    return torch.from_numpy(np.concatenate(parts, 1)).float()[None]


def new_video_denoiser() -> DiTTransformer2DModel:
    """Return an untrained denoiser that takes a video as a tall picture, its frames one below the other."""
    model = new_denoiser()
    model.pos_embed.height, model.pos_embed.width = 4 * LATENT_FRAMES, 4
    model.pos_embed.pos_embed = positions(64)
    return model


def video_velocity(
    model: DiTTransformer2DModel, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor
) -> torch.Tensor:
    """Return what the model says of videos as tall pictures [B, 4, frames 8, 8]; diffusers' forward wants squares."""
    told = {"timestep": 1000 * sigma, "class_labels": label}
    h = model.pos_embed(x)
    for block in model.transformer_blocks:
        h = block(h, **told)
    last = model.transformer_blocks[0].norm1.emb(*told.values(), hidden_dtype=h.dtype)
    shift, scale = model.proj_out_1(F.silu(last)).chunk(2, 1)
    h = model.proj_out_2(model.norm_out(h) * (1 + scale[:, None]) + shift[:, None])
    return h.reshape(len(x), -1, 4, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


def train_denoiser(folder: Path, steps: int, batch: int = 32) -> None:
    """Flow matching, as in glyphs_denoiser.py, over whole videos."""
    torch.manual_seed(1)
    (autoencoder, scale), start = load_autoencoder(folder), time.time()
    shown, digits = videos(6000, 2)
    with torch.no_grad():
        latents = torch.cat([autoencoder.encoder(part)[:, :4] for part in torch.from_numpy(shown).split(50)]) * scale
    latents, labels = latents.flatten(2, 3), torch.from_numpy(digits)
    print(f"{len(latents)} latents {list(latents.shape[1:])} {time.time() - start:.0f} s", flush=True)
    model = new_video_denoiser().eval()
    mean, start = copy.deepcopy(model), time.time()
    optimizer = torch.optim.AdamW(model.parameters(), 1.5e-3, weight_decay=0.01, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        chosen = torch.randint(len(latents), (batch,))
        x0, sigma = latents[chosen], torch.sigmoid(torch.randn(batch))
        noise, at = torch.randn_like(x0), sigma[:, None, None, None]
        label = torch.where(torch.rand(batch) < 0.1, CLASSES, labels[chosen])
        loss = (video_velocity(model, (1 - at) * x0 + at * noise, sigma, label) - (noise - x0)).square().mean()
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
    names = ("num_attention_heads", "attention_head_dim", "in_channels", "out_channels", "num_layers", "patch_size")
    config = {"_class_name": "VideoDiT", **{name: mean.config[name] for name in names}}
    config |= {"num_embeds_ada_norm": CLASSES, "sample_size": 8, "sample_frames": LATENT_FRAMES}
    config |= {"activation_fn": "gelu-approximate"}
    store(mean, folder / "transformer", config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("autoencoder", "denoiser", "decoder"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, usual = {
        "autoencoder": (train_autoencoder, 1500), "denoiser": (train_denoiser, 8000), "decoder": (train_decoder, 4500),
    }[options.what]  # fmt: skip
    train(options.folder, options.steps or usual)
