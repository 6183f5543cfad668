"""Golden stages with a network: text encoder, transformer, both decoders, whole renders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np

from h3farm.engine import packing
from h3farm.engine._native import (
    AudioVae,
    Checkpoint,
    Context,
    Dit,
    TextEncoder,
    VideoEncoder,
    VideoVae,
    euler_step,
    pixels_to_rgb,
    sigmas,
)
from h3farm.engine.checkpoints import Tree
from h3farm.engine.configs import (
    TEXT_LAYERS,
    Component,
    Normalization,
    VideoEncoderConfig,
    VideoVaeConfig,
)
from h3farm.engine.geometry import audio_latents, latent_size, video_latents
from h3farm.engine.golden import Array, Case, Golden, GoldenError
from h3farm.engine.keyframes import sampled
from h3farm.engine.tokenizer import Tokenizer

Results = dict[str, Array]
N = TypeVar("N")
Part = Component | Literal["tokenizer"]
ALL_TAGS = 0b111


def holds(tree: Tree, part: Part) -> bool:
    """Whether a tree has a component, or a tokenizer."""
    return (tree.root / part).is_dir() if part == "tokenizer" else tree.has(part)


class Models:
    """The networks of a golden folder's trees, opened when first used."""

    def __init__(self, context: Context, golden: Golden) -> None:
        """Nothing is opened yet."""
        self.context, self.golden = context, golden
        self._opened: dict[Any, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Models:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close everything, last opened first."""
        self._stack.close()

    def owner(self, part: Part, tree: Tree) -> Tree:
        """The tree itself, or where it lacks the part one beside it, of its layout if possible."""
        others = sorted(self.golden.trees, key=lambda other: other.layout != tree.layout)
        for other in (tree, *others):
            if holds(other, part):
                return other
        raise GoldenError(f"no tree of {self.golden.folder} has a {part}")

    def text_encoder(self, tree: Tree) -> TextEncoder:
        """The text encoder of a tree."""
        return self._open("text_encoder", tree, TextEncoder, tree.text_encoder())

    def dit(self, tree: Tree) -> Dit:
        """The transformer of a tree."""
        return self._open("transformer", tree, Dit, tree.dit())

    def video_vae(self, tree: Tree, config: VideoVaeConfig) -> VideoVae:
        """The video decoder of a tree, with that tiling."""
        return self._open("video_vae", tree, VideoVae, config)

    def video_encoder(self, tree: Tree, config: VideoEncoderConfig) -> VideoEncoder:
        """The video encoder of a tree, with that tiling."""
        return self._open("video_vae", tree, VideoEncoder, config)

    def audio_vae(self, tree: Tree) -> AudioVae:
        """The audio decoder of a tree."""
        return self._open("audio_vae", tree, AudioVae, tree.audio_vae())

    def _open(self, component: Component, tree: Tree, network: Callable[..., N], config: Any) -> N:
        key = (component, tree, config)
        if key not in self._opened:
            files = self._opened.get((component, tree))
            if files is None:
                files = Checkpoint(self.context, component, tree.files(component))
                self._opened[component, tree] = self._stack.enter_context(files)
            opened: Any = network(self.context, files, config)
            self._opened[key] = self._stack.enter_context(opened)
        made: N = self._opened[key]
        return made


@contextmanager
def tapped(context: Context) -> Iterator[Results]:
    """Collect the intermediate tensors of what runs inside; what never arrives stays NaN."""
    seen: Results = {}

    def keep(  # noqa: PLR0917 - as a Tap
        name: str, row: int, rows: int, total: int, cols: int, data: Array
    ) -> None:
        whole = seen.get(name)
        if whole is None or whole.shape != (total, cols):
            whole = seen[name] = np.full((total, cols), np.nan, np.float32)
        whole[row : row + rows] = data

    context.on_tap(keep)
    try:
        yield seen
    finally:
        context.on_tap(None)


def encode_text(models: Models, tree: Tree, case: Case) -> Results:
    """Hidden states of a prompt's ids."""
    encoder = models.text_encoder(tree)
    with tapped(models.context) as seen:
        hidden = encoder.encode(case.inputs["ids"])
    last = f"hidden_states.{TEXT_LAYERS}"
    return {**seen, last: hidden, "bfloat16_compute": hidden}


def transform(models: Models, tree: Tree, case: Case) -> Results:
    """One forward pass over stored rows and a stored layout."""
    golden = models.golden
    rows = golden.case("transformer", case.config["rows"]).inputs
    stored = golden.case("transformer", case.config["layout"]).outputs
    sequence = packing.PackedSequence(
        positions=stored["position_ids"].want,
        tags=stored["token_tags"].want,
        text_indices=stored["text_indices"].want,
        video_indices=stored["video_indices"].want,
        audio_indices=stored["audio_indices"].want,
        condition_video_rows=0,
        condition_audio_rows=0,
    )
    # All tags, so that the table of every modality is there to compare.
    times = [(float(t), ALL_TAGS) for t in case.inputs["timestep"]]
    with (
        tapped(models.context) as seen,
        models.dit(tree).begin(sequence, rows["text"], times) as run,
    ):
        video, audio = run.step(
            case.inputs["timestep_indices"], rows["video_rows"], rows["audio_rows"]
        )
    velocities = {"velocity": video, "audio_velocity": audio}
    return {**seen, **velocities, **{f"bfloat16_{k}": v for k, v in velocities.items()}}


def decode_video(models: Models, tree: Tree, case: Case) -> Results:
    """A latent to frames, with the tiling of the case."""
    config = tree.video_vae()
    tile, overlap = case.config["tile_overlap"] or (0, 0)
    vae = models.video_vae(tree, replace(config, tile=tile, tile_overlap=overlap))
    frames = decode_clips(vae, case.inputs["latent"])
    if frames.shape[1] != case.config["num_frames"]:
        raise ValueError(f"{frames.shape[1]} frames, not {case.config['num_frames']}")
    return {"frames": frames[:, case.config["kept_frames"]]}


def decode_clips(vae: VideoVae, latent: Array) -> Array:
    """All clips of a latent, one after the other: [3, frames, H, W]."""
    carry = vae.new_carry(*latent.shape[2:])
    clips = vae.plan(latent.shape[1])[0]
    return np.concatenate([vae.decode_clip(latent, i, carry) for i in range(clips)], axis=1)


def decode_raw(models: Models, tree: Tree, case: Case) -> Results:
    """One call of the video decoder, with what happens inside."""
    vae = models.video_vae(tree, replace(tree.video_vae(), tile=0, tile_overlap=0))
    with tapped(models.context) as seen:
        frames = vae.decode_raw(case.inputs["latent"])
    return {**seen, "frames": frames}


def encode_video(models: Models, tree: Tree, case: Case) -> Results:
    """Frames to the posterior and the conditioning latent, with the tiling of the case."""
    tile, overlap = case.config["tile_overlap"] or (0, 0)
    config = replace(tree.video_encoder(), tile=tile, tile_overlap=overlap)
    mean, logvar = models.video_encoder(tree, config).encode(case.inputs["frames"])
    condition = sampled(models.context, mean, logvar, tree.video_normalization())
    return {"mean": mean, "logvar": logvar, "condition": condition}


def encode_picture(models: Models, tree: Tree, case: Case) -> Results:
    """One picture through the video encoder, with what happens inside."""
    encoder = models.video_encoder(tree, replace(tree.video_encoder(), tile=0, tile_overlap=0))
    with tapped(models.context) as seen:
        encoder.encode(case.inputs["image"][None])
    return seen


def decode_audio(models: Models, tree: Tree, case: Case) -> Results:
    """A latent to sound: [C, T] of one channel with what happens inside, or [2, C, T]."""
    latent = case.inputs["latent"]
    with tapped(models.context) as seen:
        wave = models.audio_vae(tree).decode(latent.reshape(-1, *latent.shape[-2:]))
    if latent.ndim == 2:
        return {**seen, "waveform": wave[0]}
    return {"waveform": wave}


def activate(models: Models, tree: Tree, case: Case) -> Results:
    """The alias-free activation of the audio decoder."""
    with tapped(models.context) as seen:
        out = models.audio_vae(tree).activation(case.config["module"], case.inputs["signal"])
    return {**seen, "downsampled": out}


def render(models: Models, tree: Tree, case: Case) -> Results:
    """A whole text-to-video request from given noise."""
    config = case.config
    results: Results = {}
    tokenizer = Tokenizer(models.owner("tokenizer", tree).tokenizer)
    ids, tags = tokenizer.present(config["prompt"])
    encoder = models.text_encoder(models.owner("text_encoder", tree))
    results["prompt_embeds"] = text = encoder.encode(ids)
    results["text_token_tags"] = tags
    latent = (video_latents(config["frames"]), *latent_size(config["width"], config["height"]))
    sequence = packing.pack(tags, latent, audio_latents(config["frames"]))
    results["position_ids"] = sequence.positions
    results |= denoise(models, tree, case, sequence, text)
    results["final_latent"] = packing.unpatchify(results.pop("video"), latent)
    results["final_audio_latent"] = packing.rows_to_audio(results.pop("audio"))

    owner = models.owner("video_vae", tree)
    vae = models.video_vae(owner, owner.video_vae())
    clean = denormalized(results["final_latent"], owner.video_normalization(), axis=0)
    frames = np.ascontiguousarray(decode_clips(vae, clean))
    results["frames"] = pixels_to_rgb(models.context, frames)
    owner = models.owner("audio_vae", tree)
    clean = denormalized(results["final_audio_latent"], owner.audio_normalization(), axis=1)
    results["waveform"] = models.audio_vae(owner).decode(clean)
    return results


def denoise(
    models: Models, tree: Tree, case: Case, sequence: packing.PackedSequence, text: Array
) -> Results:
    """All steps of a request: what goes in and comes out of each, and the final rows."""
    shifts, points = tree.shifts(), int(case.config["steps"])
    grids = [sigmas(models.context, shift, points) for shift in (shifts.video, shifts.audio)]
    timesteps = [[float(t) for t in np.float32(1) - grid[:-1]] for grid in grids]
    times, row_times = packing.run_times(sequence, *timesteps)
    rows = {
        "video": packing.patchify(case.inputs["video_noise"]),
        "audio": packing.audio_to_rows(case.inputs["audio_noise"]),
    }
    steps: dict[str, list[Array]] = {
        key: [] for key in ("video_rows", "audio_rows", "velocity", "audio_velocity")
    }
    with models.dit(tree).begin(sequence, text, times) as run:
        for step, indices in enumerate(row_times):
            velocities = run.step(indices, rows["video"], rows["audio"])
            seen = (rows["video"].copy(), rows["audio"].copy(), *velocities)
            for kept, value in zip(steps.values(), seen, strict=True):
                kept.append(value)
            for grid, velocity, sample in zip(grids, velocities, rows.values(), strict=True):
                euler_step(grid, step, velocity, sample)
    return rows | {key: np.stack(values) for key, values in steps.items()}


def denormalized(latent: Array, statistics: Normalization, axis: int) -> Array:
    """From the transformer's latent to the VAE's; `axis` is the channel's."""
    shape = [1] * latent.ndim
    shape[axis] = -1
    mean, std = (np.array(v, np.float32).reshape(shape) for v in (statistics.mean, statistics.std))
    return latent * std + mean
