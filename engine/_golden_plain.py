"""Golden stages without a network: geometry, noise, schedules, token ids, packed layouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3farm.engine import geometry
from h3farm.engine._native import Context, Noise, euler_step, sigmas
from h3farm.engine.golden import Array, Case
from h3farm.engine.packing import (
    CONDITION_TIME,
    TEXT,
    Condition,
    PackedSequence,
    add_condition_noise,
    pack,
)
from h3farm.engine.tokenizer import Medium, Tokenizer

Results = dict[str, Array]


def frame_counts(case: Case) -> Results:
    """Frames asked for -> on the grid, and the latents of both streams."""
    _constants(case, fps=geometry.FPS, audio_latents_per_second=geometry.AUDIO_LATENTS_PER_SECOND)
    aligned = [geometry.align_frames(int(asked)) for asked in case.inputs["asked"]]
    return {
        "aligned": np.array(aligned),
        "video_latents": np.array([geometry.video_latents(frames) for frames in aligned]),
        "audio_latents": np.array([geometry.audio_latents(frames) for frames in aligned]),
    }


def canvases(case: Case) -> Results:
    """Aspect ratios -> canvas sizes."""
    limits = {key: int(case.config[key]) for key in ("short_edge", "max_pixels", "multiple")}
    sizes = [
        geometry.canvas_for_aspect(int(width), int(height), **limits)[::-1]
        for width, height in case.inputs["aspect_width_height"]
    ]
    return {"height_width": np.array(sizes)}


def _constants(case: Case, **known: Any) -> None:
    """Refuse a case made for other constants than the model's."""
    for key, value in known.items():
        if case.config.get(key, value) != value:
            raise ValueError(f"the case has {key} {case.config[key]}, the model {value}")


def random_numbers(context: Context, case: Case) -> Results:
    """`first_N`: N numbers of a fresh generator; the others are drawn one after the other."""
    seed = int(case.config["seed"]) % 2**64
    results = {}
    with Noise(context, seed) as stream:
        for key in sorted(case.outputs, key=_draw_order):
            shape = case.outputs[key].want.shape
            if re.fullmatch(r"first_\d+", key):
                with Noise(context, seed) as fresh:
                    results[key] = fresh.draw(shape)
            elif _draw_order(key)[0] < len(_DRAWS):
                results[key] = stream.draw(shape)
    return results


_DRAWS = ("two_draws", "condition", "video", "audio")  # the order in which a request draws


def _draw_order(key: str) -> tuple[int, int]:
    name, _, index = key.partition(".")
    return (_DRAWS.index(name) if name in _DRAWS else len(_DRAWS)), int(index or 0)


def schedule(context: Context, case: Case) -> Results:
    """The sigma grid of a shift, and the timesteps of its evaluations."""
    grid = sigmas(context, float(case.config["shift"]), int(case.config["steps"]))
    return {"sigmas": grid, "timesteps": np.float32(1) - grid[:-1]}


def euler(context: Context, case: Case) -> Results:
    """The sample after every step along given velocities."""
    grid = sigmas(context, float(case.config["shift"]), int(case.config["steps"]))
    sample = case.inputs["noise"].copy()
    samples = []
    for step, velocity in enumerate(case.inputs["velocities"]):
        euler_step(grid, step, np.ascontiguousarray(velocity), sample)
        samples.append(sample.copy())
    return {"samples": np.stack(samples)}


def condition_noise(case: Case) -> Results:
    """A condition with its share of noise."""
    _constants(case, t=CONDITION_TIME)
    return {"noised": add_condition_noise(case.inputs["clean"], case.inputs["noise"])}


def token_ids(folder: Path, case: Case) -> Results:
    """Ids of a prompt, of a presentation with media, or of single tokens."""
    tokenizer = Tokenizer(folder)
    if "tokens" in case.config:
        return {"ids": np.array([tokenizer.id(token) for token in case.config["tokens"]])}
    if "tags" in case.outputs:
        ids, tags = tokenizer.present(case.config["prompt"], media(case.config))
        return {"ids": ids, "tags": tags}
    prompt = bytes(case.inputs["utf8"]).decode() if case.inputs else case.config["prompt"]
    return {"ids": tokenizer.encode(prompt)}


def media(config: Any) -> list[Medium]:
    """The media of a presentation: keyframes when no references are named."""
    image_tokens = list(config.get("image_tokens", []))
    block_tokens = list(config.get("video_block_tokens", []))
    timestamps = config.get("video_block_timestamps", [])
    if timestamps and not isinstance(timestamps[0], Sequence):  # of the one video
        timestamps = [timestamps]
    found = []
    for kind in config.get("references", ["image"] * len(image_tokens)):
        if kind == "image":
            found.append(Medium(kind="image", tokens=image_tokens.pop(0)))
        elif kind == "audio":
            found.append(Medium(kind="audio"))
        else:
            times, timestamps = tuple(timestamps[0]), timestamps[1:]
            found.append(
                Medium(
                    kind="video",
                    tokens=block_tokens.pop(0),
                    timestamps=times,
                    sound=kind == "video with sound",
                )
            )
    return found


def layout(case: Case) -> Results:
    """The packed sequence of a request, keyframes and references included."""
    sequence = packed(case)
    for stream in ("video", "audio"):
        key = f"condition_{stream}_rows"
        _constants(case, **{key: getattr(sequence, key)})
    return {
        "position_ids": sequence.positions,
        "token_tags": sequence.tags,
        "video_indices": sequence.video_indices,
        "audio_indices": sequence.audio_indices,
        "text_indices": sequence.text_indices,
    }


def packed(case: Case) -> PackedSequence:
    """The layout that a case's config describes."""
    config = case.config
    conditions = [Condition(kind=anchor) for anchor in config.get("anchors", [])]
    for reference in config.get("references", []):
        latent = reference.get("latent")
        conditions.append(
            Condition(
                kind=reference["kind"].split()[0],
                latent=tuple(latent) if latent else None,
                audio_latents=reference.get("audio_latents", 0),
            )
        )
    tags = case.inputs.get("text_tags")
    if tags is None:
        tags = np.full(config["text"], TEXT, np.int32)
    latent = tuple(config.get("latent_frames_height_width") or config["latent"])
    return pack(tags, latent, config["audio_latents"], conditions)
