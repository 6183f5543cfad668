"""Trains the audio VAE on short pieces of the world's sounds."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import audio_codec
from .geometry import Shape
from .scenes import lane_scene, lone_scene
from .training import Plan, Stage, batch_rng
from .world import HOP, Floats, sound

PLAN = Plan(steps=3200, lr=1.5e-3, muon_lr=0.0, decay=0.995)
PIECE = 10  # latents
KL_FROM, KL = 0.3, 3e-4  # the penalty starts after this part of the steps
WINDOWS = (256, 1024, 2048)


def draw_sound(rng: np.random.Generator) -> Floats:
    """One channel of one scene's sound, now and then two or three voices, whole length."""
    if rng.random() < 0.7:
        scene = lone_scene(rng, Shape(width=128, height=128, frames=int(rng.choice((22, 39)))))
    else:
        scene = lane_scene(rng, Shape(width=192, height=128, frames=22), int(rng.integers(2, 4)))
    return sound(scene)[int(rng.integers(2))]


def draw(rng: np.random.Generator, count: int) -> Tensor:
    """Pieces [B, 1, samples] cut on the latent grid."""
    pieces = []
    for _ in range(count):
        wave = draw_sound(rng)
        start = HOP * int(rng.integers(len(wave) // HOP - PIECE + 1))
        pieces.append(wave[start : start + PIECE * HOP])
    return torch.from_numpy(np.stack(pieces))[:, None]


def spectral_loss(made: Tensor, true: Tensor) -> Tensor:
    """Distance of magnitudes and of their logarithms over three window lengths."""
    total = torch.zeros(())
    for size in WINDOWS:
        window = torch.hann_window(size)
        a, b = (
            torch.stft(x[:, 0], size, size // 4, window=window, return_complex=True).abs()
            / size**0.5
            for x in (made, true)
        )
        total = (
            total + (a - b).abs().mean() + 0.1 * ((a + 1e-3).log() - (b + 1e-3).log()).abs().mean()
        )
    return total / len(WINDOWS)


def train(folder: Path, plan: Plan = PLAN) -> None:
    """The whole stage; takes up where it was cut."""
    torch.manual_seed(0)
    vae = audio_codec.build()
    stage = Stage(folder, vae, plan, lambda name: False)
    while not stage.done:
        rng = batch_rng("audio", stage.step)
        wave = draw(rng, 8)
        mean, logs = audio_codec.encode(vae, wave)
        noise = torch.from_numpy(rng.standard_normal(mean.shape).astype(np.float32))
        made = audio_codec.decode(vae, mean + logs.exp() * noise, clamp=False)
        error = (made - wave).abs().mean()
        spectral = spectral_loss(made, wave)
        kl = (0.5 * (mean.square() + (2 * logs).exp() - 1) - logs).mean()
        weight = KL if stage.step > KL_FROM * plan.steps else 0.0
        ratio = 10 * torch.log10(wave.square().mean() / (made - wave).square().mean())
        stage.update(
            10 * error + spectral + weight * kl,
            error=error.item(),
            spectral=spectral.item(),
            kl=kl.item(),
            snr_db=ratio.item(),
            std=logs.exp().mean().item(),
        )


def main() -> None:
    """Command line: this stage by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args.work / "audio")


if __name__ == "__main__":
    main()
