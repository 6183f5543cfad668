"""Renders in torch with the reference's arithmetic, to watch training."""

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import Tensor

from . import audio_codec, dims, dit, text, video_codec
from .geometry import Shape, patchify, unpatchify
from .latents import Statistics, load_codecs, statistics
from .measure import ASPECTS, Pixels, to_bytes, verdict
from .prompts import trials
from .sheets import contact_sheet
from .train_transformer import AUDIO_SHIFT, VIDEO_SHIFT, Demo, load
from .vocabulary import Vocabulary
from .world import Floats, paint


def sigmas(shift: float, steps: int) -> Floats:
    """The steps + 1 noise levels from 1 to 0."""
    grid = np.linspace(1, 0, steps + 1, dtype=np.float32)
    return shift * grid / (1 + (shift - 1) * grid)


class Sampler:
    """The trained parts, ready to render."""

    def __init__(self, work: Path, *, decoder: str = "decoder") -> None:
        """Load averages; `decoder` names the video stage whose decoder is used."""
        self.vocabulary = Vocabulary(work / "tokenizer")
        self.model: Demo = load(work)
        self.vae: AutoencoderKLMiniMaxH3
        self.audio_vae: AutoencoderKLMiniMaxH3Audio
        stage = decoder if (work / decoder / "ema.pt").exists() else "video"
        self.vae, self.audio_vae = load_codecs(work, stage)
        self.video_statistics: Statistics
        self.video_statistics, self.audio_statistics = statistics(work)

    def keyframe_rows(self, picture: Floats, generator: torch.Generator) -> Tensor:
        """Condition rows [1, R, 4C] of a picture [H, W, 3] in [0, 255]."""
        pixels = video_codec.normalise(torch.from_numpy(picture))[None, None]
        mean = video_codec.encode(self.vae, pixels)
        spread = torch.randn(mean.shape, generator=torch.Generator().manual_seed(42))
        latent = self.video_statistics.normalise(mean + dims.POSTERIOR_STD * spread)
        noise = torch.randn(latent.shape, generator=generator)
        mixed = dit.CONDITION_TIME * latent + (1 - dit.CONDITION_TIME) * noise
        return torch.from_numpy(patchify(mixed.numpy()))

    @torch.no_grad()
    def render(
        self,
        prompt: str,
        shape: Shape,
        *,
        seed: int = 0,
        steps: int = 12,
        keyframes: dict[str, Floats] | None = None,
    ) -> tuple[Pixels, Floats]:
        """Frames [F, H, W, 3], sound [2, samples]; `keyframes`: "first", "last" -> picture."""
        keyframes = keyframes or {}
        generator = torch.Generator().manual_seed(seed)
        ids = self.vocabulary.encode(prompt)
        given = text.Presentation(self.vocabulary, shape, len(keyframes))
        states = text.encode(
            self.model.text,
            torch.tensor([given.ids + ids]),
            given.positions(len(ids)),
            given.shown(len(ids)),
        )
        packing = dit.pack(
            self.model.transformer, shape, given.tags + [1] * len(ids), tuple(keyframes)
        )
        conditions = [self.keyframe_rows(picture, generator) for picture in keyframes.values()]
        channels = dims.LATENT_CHANNELS
        latent = torch.randn((1, channels, *shape.latent), generator=generator)
        video = torch.from_numpy(patchify(latent.numpy()))
        audio = torch.randn((1, packing.audio, dims.AUDIO_LATENT_CHANNELS), generator=generator)
        refined = dit.refine(self.model.transformer, states)
        grids = [sigmas(shift, steps) for shift in (VIDEO_SHIFT, AUDIO_SHIFT)]
        for i in range(steps):
            now = [1 - float(grid[i]) for grid in grids]
            times = torch.tensor([[*now, max(now[0], dit.CONDITION_TIME)]])
            velocity, audio_velocity = dit.forward(
                self.model.transformer,
                packing,
                refined,
                (torch.cat([*conditions, video], 1), audio),
                times,
            )
            video = video + float(grids[0][i] - grids[0][i + 1]) * velocity
            audio = audio + float(grids[1][i] - grids[1][i + 1]) * audio_velocity
        return self._picture(video, shape), self._sound(audio)

    def _picture(self, rows: Tensor, shape: Shape) -> Pixels:
        latent = torch.from_numpy(unpatchify(rows.numpy(), shape))
        decoded = self.vae.decode(self.video_statistics.restore(latent)).sample[0]
        pixels = decoded.permute(1, 2, 3, 0) * torch.tensor(video_codec.PIXEL_STD)
        pixels = (pixels + torch.tensor(video_codec.PIXEL_MEAN)).clamp(0, 1) * 255
        return to_bytes(pixels.numpy())

    def _sound(self, rows: Tensor) -> Floats:
        latent = rows[0].unflatten(0, (2, -1)).transpose(1, 2)
        wave = audio_codec.decode(self.audio_vae, self.audio_statistics.restore(latent))
        return wave[:, 0].numpy()


def psnr(found: Pixels, expected: Floats) -> float:
    """Peak signal-to-noise ratio in dB."""
    error = np.mean(np.square(found.astype(np.float32) - expected))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def evaluate(work: Path, count: int, *, steps: int, first: bool) -> dict[str, float]:
    """Scores of `count` held-out scenes in held-out wordings, and a sheet of the first of them."""
    sampler = Sampler(work)
    verdicts: list[dict[str, bool]] = []
    ratios: list[float] = []
    shown: list[tuple[str, Pixels]] = []
    for trial in trials(count):
        scene, words = trial.scene, trial.words
        keyframes = {"first": paint(scene, frames=slice(0, 1))[0][0]} if first else None
        frames, wave = sampler.render(
            words, trial.shape, seed=trial.seed, steps=steps, keyframes=keyframes
        )
        verdicts.append(verdict(frames, wave, scene))
        if keyframes:
            ratios.append(psnr(frames[0], keyframes["first"]))
        if len(shown) < 16:
            wrong = [name for name, good in verdicts[-1].items() if not good]
            shown.append((f"{words}  [{', '.join(wrong) or 'right'}]", frames))
    contact_sheet(work / f"sheet{'-first' if first else ''}.png", shown)
    scores = {name: float(np.mean([v[name] for v in verdicts])) for name in ASPECTS}
    scores["all"] = float(np.mean([all(v.values()) for v in verdicts]))
    if ratios:
        scores["first_frame_db"] = float(np.mean(ratios))
    return scores


def main() -> None:
    """Command line: scores of the present state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--first", action="store_true", help="give the true first frame")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scores = evaluate(args.work, args.count, steps=args.steps, first=args.first)
    print("  ".join(f"{name} {value:.3f}" for name, value in scores.items()))


if __name__ == "__main__":
    main()
