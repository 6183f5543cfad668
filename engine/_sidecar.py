"""The record beside a video: everything needed to make it again, and what making it took."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from h3farm.engine._native import version
from h3farm.engine.geometry import FPS, SAMPLE_RATE, audio_latents
from h3farm.engine.model import Model
from h3farm.engine.spec import RenderSpec

SIDECAR_VERSION = 1

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a sidecar is made from.

    Times are aware, sizes in bytes, timings in seconds by phase. samples: of the sound in the
    video, per channel; decoded_samples: before it was fitted to the picture's length.
    """

    spec: RenderSpec
    job_id: str
    started: datetime
    ended: datetime
    model: Model
    tokens: int
    latent: tuple[int, int, int]
    grids: tuple[Floats, Floats]
    timings: dict[str, float]
    estimate: dict[str, Any]
    peak_bytes: int
    process_peak_bytes: int
    isa: str
    threads: int
    limits: list[str]
    samples: int | None
    decoded_samples: int | None
    warnings: list[str]
    ffmpeg: str


def embedded(spec: RenderSpec) -> str:
    """What the mp4 itself carries: the spec, as one line of JSON."""
    return json.dumps(spec.to_json(), ensure_ascii=False)


def text(facts: Facts) -> str:
    """render.json."""
    return json.dumps(_record(facts), ensure_ascii=False, indent=1) + "\n"


def _record(facts: Facts) -> dict[str, Any]:
    spec = facts.spec
    return {
        "sidecar_version": SIDECAR_VERSION,
        "job_id": facts.job_id,
        "started_at": _stamp(facts.started),
        "ended_at": _stamp(facts.ended),
        "spec": spec.to_json(),
        "spec_hash": spec.hash,
        "warnings": [*spec.warnings(), *facts.warnings],
        "resolved": {
            "frames": spec.frames,
            "fps": FPS,
            "duration_s": round(spec.frames / FPS, 3),
            "prompt_tokens": facts.tokens,
            "latent_frames_height_width": list(facts.latent),
            "audio_latents": audio_latents(spec.frames),
            "audio_samples": facts.samples,
            "audio_samples_decoded": facts.decoded_samples,
            "audio_sample_rate": SAMPLE_RATE,
            "video_sigmas": [float(sigma) for sigma in facts.grids[0]],
            "audio_sigmas": [float(sigma) for sigma in facts.grids[1]],
        },
        "model": {
            "name": facts.model.tree.name,
            "layout": facts.model.tree.layout,
            "files": facts.model.identity,
        },
        "versions": {
            "h3farm": metadata.version("h3farm"),
            "engine": version(),
            "ffmpeg": facts.ffmpeg,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
        },
        "engine": {"isa": facts.isa, "threads": facts.threads, "limits": facts.limits},
        "timings": facts.timings,
        "estimate": facts.estimate,
        "peak_bytes": facts.peak_bytes,
        "process_peak_bytes": facts.process_peak_bytes,
        "interruptions": [],
    }


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
