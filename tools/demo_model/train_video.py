"""Trains the video VAE: pictures first, then clips, then (encoder frozen) the decoder alone."""

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor

from . import dims, video_codec
from .geometry import Shape
from .scenes import crowded_scene
from .training import Plan, Stage, batch_rng, load_average
from .world import paint

IMAGE_STEPS = 500  # of JOINT's steps; pictures are a tenth of the price and teach edges and colours
JOINT = Plan(steps=2400, lr=1.5e-3, muon_lr=2e-3, decay=0.995)
DECODER = Plan(steps=3000, lr=1e-3, muon_lr=1.5e-3, decay=0.998, flat=0.4)
LENGTH_PENALTY = 1e-3  # on the squared latents: with noise of fixed width this bounds their scale
LATENT_NOISE = (
    0.05  # added in the decoder stage, in latent standard deviations: what a transformer leaves
)


def draw(
    rng: np.random.Generator, count: int, canvas: tuple[int, int], frames: int
) -> tuple[Tensor, Tensor]:
    """Normalised clips [B, F, H, W, 3] and the weight [B, F, H, W] of each pixel in the loss."""
    shape = Shape(width=canvas[0], height=canvas[1], frames=22)
    clips, weights = [], []
    for _ in range(count):
        scene = crowded_scene(rng, shape)
        first = 0 if frames == 22 else int(rng.integers(22))
        pixels, distance = paint(scene, frames=slice(first, first + frames))
        clips.append(pixels)
        weights.append(1 + 4 * (np.abs(distance) < 4) + 2 * (distance < 0))
    return video_codec.normalise(torch.from_numpy(np.stack(clips))), torch.from_numpy(
        np.stack(weights).astype(np.float32)
    )


def reconstruction_loss(decoded: Tensor, clips: Tensor, weights: Tensor) -> Tensor:
    """Weighted L1 + 0.3 MSE: edges and insides of things count more than the background."""
    kept = decoded[:, :, 3:4] if clips.shape[1] == 1 else video_codec.kept_frames(decoded)
    error = (kept.permute(0, 2, 3, 4, 1) - clips).abs()
    return ((error + 0.3 * error.square()).mean(-1) * weights).sum() / weights.sum()


def batch_of(step: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The clips of a step: pictures at first, then a mix of canvases."""
    canvas = ((128, 128), (128, 128), (192, 128), (128, 192))[int(rng.integers(4))]
    if step < IMAGE_STEPS:
        return draw(rng, 24, (128, 128), 1)
    return draw(rng, 3 if canvas == (128, 128) else 2, canvas, 22)


def is_block_matrix(name: str) -> bool:
    """Matrices of the ViT's blocks, for Muon."""
    return name.startswith("decoder.transformer_blocks.")


def train_joint(folder: Path, plan: Plan = JOINT) -> None:
    """Encoder and decoder together."""
    torch.manual_seed(0)
    vae = video_codec.build()
    vae.quant_conv.requires_grad_(False)
    stage = Stage(folder, vae, plan, is_block_matrix)
    while not stage.done:
        rng = batch_rng("video", stage.step)
        clips, weights = batch_of(stage.step, rng)
        with torch.autocast("cpu", torch.bfloat16):
            means = video_codec.encode(vae, clips)
            noise = torch.from_numpy(rng.standard_normal(means.shape).astype(np.float32))
            decoded = video_codec.decode(vae, means + dims.POSTERIOR_STD * noise)
        loss = reconstruction_loss(decoded, clips, weights)
        size = means.square().mean()
        penalty = LENGTH_PENALTY if stage.step > IMAGE_STEPS else 0.0
        stage.update(loss + penalty * size, loss=loss.item(), size=size.item())


def train_decoder(folder: Path, joint: Path, plan: Plan = DECODER) -> None:
    """The decoder alone on the frozen encoder's latents, with noise as a transformer leaves it."""
    vae: AutoencoderKLMiniMaxH3 = video_codec.build()
    vae.load_state_dict(load_average(joint))
    vae.encoder.requires_grad_(False)
    vae.quant_conv.requires_grad_(False)
    stage = Stage(folder, vae, plan, is_block_matrix)
    while not stage.done:
        rng = batch_rng("decoder", stage.step)
        clips, weights = batch_of(IMAGE_STEPS, rng)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                means = video_codec.encode(vae, clips)
            spread = means.std(dim=(0, 2, 3, 4), keepdim=True) * LATENT_NOISE + dims.POSTERIOR_STD
            noise = torch.from_numpy(rng.standard_normal(means.shape).astype(np.float32))
            decoded = video_codec.decode(vae, means + spread * noise)
        loss = reconstruction_loss(decoded, clips, weights)
        stage.update(loss, loss=loss.item())


def main() -> None:
    """Command line: one stage by itself, for work on the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("joint", "decoder"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.stage == "joint":
        train_joint(args.work / "video")
    else:
        train_decoder(args.work / "decoder", args.work / "video")


if __name__ == "__main__":
    main()
