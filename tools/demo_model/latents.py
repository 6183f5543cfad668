"""Encodes scenes once: latents, keyframe latents and captions, in shards on disk."""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import Tensor

from . import audio_codec, video_codec
from .captions import Style, caption
from .geometry import Shape
from .scenes import lane_scene, lone_scene
from .training import SEED, load_average, write_atomically
from .vocabulary import Vocabulary
from .world import Scene, paint, sound

Codecs = tuple[AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio]
SHARD = 50  # scenes
CAPTIONS = 10  # wordings of a scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Scenes of one canvas and length."""

    shape: Shape
    scenes: int

    @property
    def name(self) -> str:
        """Canvas and length, for file names."""
        return f"{self.shape.width}x{self.shape.height}x{self.shape.frames}"


GROUPS = tuple(
    Group(shape=Shape(width=width, height=height, frames=frames), scenes=scenes)
    for width, height, frames, scenes in (
        (128, 128, 22, 4000),
        (192, 128, 22, 700),
        (128, 192, 22, 700),
        (128, 128, 39, 500),
        (192, 128, 39, 200),
        (128, 192, 39, 200),
        (128, 128, 56, 250),
        (192, 128, 56, 100),
        (128, 192, 56, 100),
    )
)


def scene_of(group: Group, index: int) -> Scene:
    """Scene `index` of a group's training set."""
    shape = group.shape
    key = [SEED, 2, shape.width, shape.height, shape.frames, index]
    rng = np.random.default_rng(key)
    kind = rng.random()
    if kind < 0.88:
        return lone_scene(rng, shape, through=0.15)
    count = 3 if shape.width != shape.height and kind > 0.95 else 2
    return lane_scene(rng, shape, count)


def load_codecs(work: Path, video: str = "video") -> Codecs:
    """Both trained VAEs, frozen."""
    vae, audio_vae = video_codec.build(), audio_codec.build()
    vae.load_state_dict(load_average(work / video))
    audio_vae.load_state_dict(load_average(work / "audio"))
    return vae.eval().requires_grad_(False), audio_vae.eval().requires_grad_(False)


@torch.no_grad()
def encode_scene(
    vae: AutoencoderKLMiniMaxH3, audio_vae: AutoencoderKLMiniMaxH3Audio, scene: Scene
) -> dict[str, Tensor]:
    """Means: `video` [C, T, h, w], `last` [C, h, w] of the last frame, `audio` [2, C, T]."""
    pixels = video_codec.normalise(torch.from_numpy(paint(scene)[0]))[None]
    with torch.autocast("cpu", torch.bfloat16):
        video = video_codec.encode(vae, pixels)[0]
        last = video_codec.encode(vae, pixels[:, -1:])[0, :, 0]
    audio = audio_codec.encode(audio_vae, torch.from_numpy(sound(scene))[:, None])[0]
    return {"video": video.half(), "last": last.half(), "audio": audio.half()}


def build_shard(path: Path, group: Group, start: int, codecs: Codecs, words: Vocabulary) -> None:
    """Encode SHARD scenes from `start` on into `path`, unless it is there."""
    if path.exists():
        return
    vae, audio_vae = codecs
    encoded, captions = [], []
    for index in range(start, start + SHARD):
        scene = scene_of(group, index)
        encoded.append(encode_scene(vae, audio_vae, scene))
        rng = np.random.default_rng([SEED, 3, group.shape.frames, index])
        captions.append([words.encode(caption(rng, scene, Style())) for _ in range(CAPTIONS)])
    stacked = {name: torch.stack([item[name] for item in encoded]) for name in encoded[0]}
    write_atomically(path, {**stacked, "captions": captions})


def build_all(work: Path) -> None:
    """Every shard, in as many processes as torch may use threads."""
    (work / "latents").mkdir(exist_ok=True)
    processes = torch.get_num_threads()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(_build_part, [(work, part, processes) for part in range(processes)])


def _build_part(work: Path, part: int, parts: int) -> None:
    """Every `parts`th shard, from `part` on."""
    torch.set_num_threads(1)
    vocabulary, codecs = Vocabulary(work / "tokenizer"), load_codecs(work)
    order = [(group, start) for group in GROUPS for start in range(0, group.scenes, SHARD)]
    mine = order[part::parts]
    for done, (group, start) in enumerate(mine):
        path = work / "latents" / f"{group.name}-{start // SHARD:03d}.pt"
        build_shard(path, group, start, codecs, vocabulary)
        if done % 10 == 0:
            print(f"latents: {done + 1} of {len(mine)} shards", flush=True)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and deviation of each latent channel, as the configs carry them."""

    mean: Tensor
    std: Tensor

    def normalise(self, latent: Tensor) -> Tensor:
        """De-normalised [..., C, *rest] -> normalised."""
        return (latent - self.mean) / self.std

    def restore(self, latent: Tensor) -> Tensor:
        """The inverse of `normalise`."""
        return latent * self.std + self.mean


def statistics(work: Path) -> tuple[Statistics, Statistics]:
    """Of video [C, 1, 1, 1] and audio [C, 1], from every group's first shard; kept in a file."""
    path = work / "latents" / "statistics.pt"
    if not path.exists():
        video, audio = [], []
        for group in GROUPS:
            shard = torch.load(path.parent / f"{group.name}-000.pt", weights_only=True)
            video.append(shard["video"].float().transpose(0, 1).flatten(1))
            audio.append(shard["audio"].float().flatten(0, 1).transpose(0, 1).flatten(1))
        values = {}
        for name, parts in (("video", video), ("audio", audio)):
            joined = torch.cat(parts, 1)
            values[f"{name}_mean"], values[f"{name}_std"] = joined.mean(1), joined.std(1)
        write_atomically(path, values)
    saved = torch.load(path, weights_only=True)
    return (
        Statistics(saved["video_mean"].view(-1, 1, 1, 1), saved["video_std"].view(-1, 1, 1, 1)),
        Statistics(saved["audio_mean"].view(-1, 1), saved["audio_std"].view(-1, 1)),
    )
