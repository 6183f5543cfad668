"""The work of a render, in units that take time in proportion to it. Standard library only.

Source of the formulas: docs/model.md; the totals are held against the published table in
tests/engine/test_work.py. One multiplication with its addition counts as two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from h3farm.engine.costs import CLIP_LATENTS_IN, Networks, rows_of, tiles_of
from h3farm.engine.geometry import AUDIO_CHANNELS, CLIP_FRAMES, REST_FRAMES, audio_latents
from h3farm.engine.spec import RenderSpec

# A unit is what is timed: all of a phase, or one of the denoise phase's steps, one clip. "prepare"
# makes the modulation tables and refines the text rows, before the first step.
UNITS = ("check", "encode", "prepare", "step", "clip", "sound", "assemble")
# The release's decoder, per latent and channel; one of another width is learnt by its own rate.
SOUND_OPERATIONS = 1.2e9
# Bytes of UTF-8 that make a token of English prose: what is known of a prompt without a tokenizer.
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`count` units of one kind; `work` is that of one: operations, for "assemble" pixels."""

    unit: str
    count: int
    work: float


def guessed_rows(prompt: str) -> int:
    """About how many tokens a prompt has."""
    return 1 + len(prompt.encode()) // BYTES_PER_TOKEN


def tasks_of(networks: Networks, spec: RenderSpec, text_rows: int | None = None) -> list[Task]:
    """The units of a render in their order; `text_rows` None: guessed from the prompt."""
    text = guessed_rows(spec.prompt) if text_rows is None else text_rows
    pixels = spec.frames * spec.width * spec.height
    tasks = [
        Task(unit="check", count=1, work=1.0),
        Task(unit="encode", count=1, work=_encode(networks, text)),
        Task(unit="prepare", count=1, work=_prepare(networks, spec, text)),
        Task(unit="step", count=spec.steps, work=_step(networks, spec, text)),
        Task(
            unit="clip",
            count=(spec.frames - REST_FRAMES) // CLIP_FRAMES,
            work=_clip(networks, spec),
        ),
    ]
    if spec.audio:
        sound = SOUND_OPERATIONS * AUDIO_CHANNELS * audio_latents(spec.frames)
        tasks.append(Task(unit="sound", count=1, work=sound))
    tasks.append(Task(unit="assemble", count=1, work=float(pixels * (1 + spec.keep_frames))))
    return tasks


def _encode(networks: Networks, rows: int) -> float:
    """Causal attention is computed below the diagonal only."""
    encoder = networks.text_encoder
    heads = (2 * encoder.heads + 2 * encoder.kv_heads) * encoder.head_dim
    linear = encoder.hidden * (heads + 3 * encoder.ffn)
    attention = 2.0 * rows * rows * encoder.heads * encoder.head_dim
    return encoder.layers * (2.0 * rows * linear + attention)


def _prepare(networks: Networks, spec: RenderSpec, rows: int) -> float:
    """The tables of every step, of three kinds of row each; the refiner over the text."""
    dit = networks.transformer
    tables = 2.0 * spec.steps * dit.layers * dit.time_dim * 3 * 6 * dit.hidden
    return tables + 2.0 * rows * dit.refiner_layers * _block(networks)


def _block(networks: Networks) -> int:
    """Weights of a transformer block, modulation aside."""
    dit = networks.transformer
    return 4 * dit.hidden * dit.heads * dit.head_dim + 3 * dit.hidden * dit.ffn


def _step(networks: Networks, spec: RenderSpec, text_rows: int) -> float:
    dit = networks.transformer
    rows = rows_of(spec, text_rows).total
    attention = 4.0 * rows * rows * dit.heads * dit.head_dim
    return dit.layers * (2.0 * rows * _block(networks) + attention)


def _clip(networks: Networks, spec: RenderSpec) -> float:
    vae = networks.video_vae
    tiles, area = tiles_of(vae, spec)
    tokens = CLIP_LATENTS_IN * area + vae.registers + 1
    hidden = vae.heads * vae.head_dim
    linear = 4 * hidden * hidden + 3 * hidden * vae.ffn
    return tiles * vae.layers * (2.0 * tokens * linear + 4.0 * tokens * tokens * hidden)
