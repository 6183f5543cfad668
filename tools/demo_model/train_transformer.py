"""Trains transformer and text encoder together on cached latents, with and without keyframes."""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from . import dims, dit, text
from .geometry import Shape, patchify
from .latents import GROUPS, Statistics, statistics
from .training import Plan, Stage, batch_rng, load_average
from .vocabulary import Vocabulary

PLAN = Plan(steps=13000, lr=1.5e-3, muon_lr=2e-3, decay=0.998, flat=0.6)
ROWS = 4000  # packed rows of a batch
# The first part of the steps sees the smallest canvas and length only: three times as many clips an
# hour, and what words mean is learned there.
BASIC = 0.45
VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
AUDIO_WEIGHT = 0.7
INDEPENDENT = 0.3  # items whose two times are unrelated and uniform
KEYFRAMES = (((), 0.78), (("first",), 0.14), (("last",), 0.03), (("first", "last"), 0.05))


class Demo(nn.Module):
    """What this stage trains: the transformer and the text encoder before it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Both with their start values."""
        super().__init__()
        self.transformer: MiniMaxH3Transformer3DModel = dit.build()
        self.text: Qwen3VLTextModel = text.build(vocabulary)


class Latents:
    """The cached latents of all groups, normalised, and which captions have how many tokens."""

    def __init__(self, work: Path) -> None:
        """Read every shard that is there."""
        self.video_statistics, self.audio_statistics = statistics(work)
        self.items: list[tuple[Shape, dict[str, Tensor]]] = []
        self.captions: list[list[list[int]]] = []
        by_length: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for number, group in enumerate(GROUPS):
            for path in sorted((work / "latents").glob(f"{group.name}-*.pt")):
                shard = torch.load(path, weights_only=True)
                for i, captions in enumerate(shard["captions"]):
                    for j, ids in enumerate(captions):
                        by_length[number, len(ids)].append((len(self.items), j))
                    tensors = {name: shard[name][i] for name in ("video", "last", "audio")}
                    self.items.append((group.shape, tensors))
                    self.captions.append(captions)
        self.buckets = list(by_length.values())
        sizes = np.array([len(bucket) for bucket in self.buckets], float)
        basic = np.array([number == 0 for number, _ in by_length])
        self.weights = sizes / sizes.sum()
        self.basic_weights = sizes * basic / sizes[basic].sum()

    def batch(self, rng: np.random.Generator, extra: int, *, basic: bool) -> "Batch":
        """Items of one canvas, one length and one caption length, as many as ROWS allows.

        basic: of the first group only.
        """
        weights = self.basic_weights if basic else self.weights
        bucket = self.buckets[int(rng.choice(len(self.buckets), p=weights))]
        shape = self.items[bucket[0][0]][0]
        rows = shape.rows_a_frame * shape.latent[0] + 2 * shape.audio + extra
        count = max(2, ROWS // rows)
        chosen = [bucket[int(i)] for i in rng.integers(len(bucket), size=count)]
        tensors = [self.items[item][1] for item, _ in chosen]
        video, last, audio = (
            torch.stack([item[name] for item in tensors]).float()
            for name in ("video", "last", "audio")
        )
        return Batch(
            shape=shape,
            ids=torch.tensor([self.captions[item][j] for item, j in chosen]),
            video=self.video_statistics.normalise(video),
            last=_normalise_frame(self.video_statistics, last),
            audio=self.audio_statistics.normalise(audio),
        )


class Batch:
    """Normalised latents: video [B, C, T, h, w], last [B, C, h, w], audio [B, 2, C, Ta]; ids [B,
    L].
    """

    def __init__(
        self, *, shape: Shape, ids: Tensor, video: Tensor, last: Tensor, audio: Tensor
    ) -> None:
        """Keep the tensors."""
        self.shape, self.ids, self.video, self.last, self.audio = shape, ids, video, last, audio

    def keyframe(self, anchor: str) -> Tensor:
        """The latent [B, C, 1, h, w] of a keyframe; a clip's first latent is its first frame's."""
        return self.video[:, :, :1] if anchor == "first" else self.last[:, :, None]


def _normalise_frame(of: Statistics, frame: Tensor) -> Tensor:
    return of.normalise(frame[:, :, None])[:, :, 0]


def rows_of(latent: Tensor) -> Tensor:
    """Patch rows of a video latent."""
    return torch.from_numpy(patchify(latent.numpy()))


def audio_rows_of(latent: Tensor) -> Tensor:
    """Channel-major rows [B, 2 Ta, C] of an audio latent [B, 2, C, Ta]."""
    return latent.transpose(2, 3).flatten(1, 2)


def draw_times(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Times t of picture and sound: one stratified grid value, shifted; or two unrelated ones."""
    grid = (rng.permutation(count) + rng.random(count)) / count
    sigma = [shift * grid / (1 + (shift - 1) * grid) for shift in (VIDEO_SHIFT, AUDIO_SHIFT)]
    free = rng.random(count) < INDEPENDENT
    video, audio = (np.where(free, rng.random(count), values) for values in sigma)
    return tuple(torch.from_numpy((1 - s).astype(np.float32)) for s in (video, audio))


def normal(rng: np.random.Generator, shape: torch.Size) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(rng.standard_normal(tuple(shape), dtype=np.float32))


def condition_rows(
    batch: Batch, keyframes: tuple[str, ...], rng: np.random.Generator, std: Tensor
) -> list[Tensor]:
    """Rows of the keyframes: sampled from the posterior, then 0.1 % noise, as the pipeline does."""
    rows = []
    for anchor in keyframes:
        latent = batch.keyframe(anchor)
        latent = latent + dims.POSTERIOR_STD / std * normal(rng, latent.shape)
        noise = normal(rng, latent.shape)
        rows.append(rows_of(dit.CONDITION_TIME * latent + (1 - dit.CONDITION_TIME) * noise))
    return rows


def loss_of(
    model: Demo,
    vocabulary: Vocabulary,
    latents: Latents,
    rng: np.random.Generator,
    *,
    basic: bool,
) -> tuple[Tensor, Tensor, bool]:
    """Velocity errors (picture, sound) of one batch, and whether it had keyframes."""
    options = [names for names, _ in KEYFRAMES]
    chances = [chance for _, chance in KEYFRAMES]
    keyframes = options[int(rng.choice(len(options), p=chances))]
    batch = latents.batch(rng, extra=16 + 90 * len(keyframes), basic=basic)
    presentation = text.Presentation(vocabulary, batch.shape, len(keyframes))
    count, prompt = batch.ids.shape
    prefix = torch.tensor(presentation.ids, dtype=torch.long).expand(count, -1)
    packing = dit.pack(model.transformer, batch.shape, presentation.tags + [1] * prompt, keyframes)
    video, audio = rows_of(batch.video), audio_rows_of(batch.audio)
    video_time, audio_time = draw_times(rng, count)
    noise, audio_noise = normal(rng, video.shape), normal(rng, audio.shape)
    mixed = torch.lerp(noise, video, video_time[:, None, None])
    audio_mixed = torch.lerp(audio_noise, audio, audio_time[:, None, None])
    conditions = condition_rows(batch, keyframes, rng, latents.video_statistics.std)
    times = torch.stack([video_time, audio_time, video_time.clamp(min=dit.CONDITION_TIME)], dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        states = text.encode(
            model.text,
            torch.cat([prefix, batch.ids], 1),
            presentation.positions(prompt),
            presentation.shown(prompt),
        )
        refined = dit.refine(model.transformer, states)
        made = dit.forward(
            model.transformer,
            packing,
            refined,
            (torch.cat([*conditions, mixed], 1), audio_mixed),
            times,
        )
    return (
        (made[0] - (video - noise)).square().mean(),
        (made[1] - (audio - audio_noise)).square().mean(),
        bool(keyframes),
    )


def is_block_matrix(name: str) -> bool:
    """Matrices of the transformer's and the text encoder's blocks, for Muon."""
    return ("blocks." in name or ".layers." in name) and "adaln" not in name


def train(work: Path, plan: Plan = PLAN) -> None:
    """The whole stage; takes up where it was cut."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(work / "tokenizer")
    model = Demo(vocabulary)
    stage = Stage(work / "transformer", model, plan, is_block_matrix)
    latents = Latents(work)
    while not stage.done:
        rng = batch_rng("transformer", stage.step)
        basic = stage.step < BASIC * plan.steps
        video, audio, keyed = loss_of(model, vocabulary, latents, rng, basic=basic)
        names = {"video_keyed" if keyed else "video": video.item(), "audio": audio.item()}
        stage.update(video + AUDIO_WEIGHT * audio, **names)


def load(work: Path) -> Demo:
    """The averaged weights, for sampling and export."""
    model = Demo(Vocabulary(work / "tokenizer"))
    model.load_state_dict(load_average(work / "transformer"))
    return model.eval().requires_grad_(False)


def main() -> None:
    """Command line: this stage by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args.work)


if __name__ == "__main__":
    main()
