"""What a render is predicted to need, held against the tiny model's measure and the release's."""

from pathlib import Path

import numpy as np
import pytest

from h3farm.engine import packing
from h3farm.engine._native import Context, sigmas
from h3farm.engine.costs import Networks, memory_by_phase, rows_of
from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.geometry import audio_latents, latent_size, video_latents
from h3farm.engine.model import Model
from h3farm.engine.spec import RenderSpec

pytestmark = pytest.mark.slow  # whole renders and encodings

TINY = Path(__file__).parent.parent / "golden" / "tiny-h3"


def spec(width: int, height: int, frames: int, steps: int = 20) -> RenderSpec:
    return RenderSpec(
        prompt="fox", model="m", width=width, height=height, frames=frames, steps=steps, seed=1
    )


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (spec(256, 256, 22), 778),
        (spec(864, 480, 56), 7327),
        (spec(1344, 768, 107), 32868),
        (spec(1344, 768, 362), 109318),
    ],
)
def test_rows_are_those_of_the_published_table(wanted: RenderSpec, rows: int) -> None:
    assert rows_of(wanted, 256).total == rows


def test_the_release_at_full_size_is_predicted_to_need_a_few_gigabytes(release: Networks) -> None:
    """Residual, K and V of 32,868 rows in f32 are 2.6 GB; weights are mapped, not allocated."""
    phases = memory_by_phase(release, spec(1344, 768, 107), 256)
    assert 2.6e9 < phases["denoise"] < 3.5e9
    assert 0.3e9 < phases["decode_video"] < 3e9


def measured(context: Context, model: Model, wanted: RenderSpec, tokens: int) -> dict[str, int]:
    """The engine's own peak of each phase, on zeros."""
    latent = (video_latents(wanted.frames), *latent_size(wanted.width, wanted.height))
    sequence = packing.build_t2va(tokens, latent, audio_latents(wanted.frames))
    grids = [sigmas(context, shift, wanted.steps + 1)[:-1] for shift in (12.0, 3.0)]
    times, indices = packing.run_times(sequence, *((1 - grid).tolist() for grid in grids))
    held, peaks = context.memory_peak, {}
    networks = model.networks

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def peak(phase: str) -> None:
        peaks[phase] = context.memory_peak - held
        context.reset_memory_peak()

    text = model.encoder.encode(np.zeros(tokens, np.int32))
    peak("encode")
    with model.dit.begin(sequence, text, times) as run:
        video = zeros(len(sequence.video_indices), networks.transformer.video_dim)
        run.step(indices[0], video, zeros(len(sequence.audio_indices), 4))
    peak("denoise")
    carry = model.video_vae.new_carry(*latent[1:])
    pixels = model.video_vae.decode_clip(
        zeros(networks.video_vae.latent_channels, *latent), 0, carry
    )
    peak("decode_video")
    peaks["decode_video"] += pixels.nbytes * 2 + carry.nbytes
    model.audio_vae.decode(zeros(2, 4, audio_latents(wanted.frames)))
    peak("decode_audio")
    return peaks


@pytest.mark.parametrize(
    ("wanted", "tokens"),
    [
        (spec(96, 64, 22), 3),
        (spec(96, 64, 22), 4000),
        (spec(512, 320, 22), 50),
        (spec(64, 64, 345), 3),
    ],
)
def test_no_phase_takes_more_than_was_predicted(wanted: RenderSpec, tokens: int) -> None:
    with Context(2) as context, Model(context, TINY) as model:
        context.reset_memory_peak()
        predicted = memory_by_phase(model.networks, wanted, tokens)
        for phase, size in measured(context, model, wanted, tokens).items():
            assert size <= predicted[phase], phase


def test_disk_is_counted_for_what_is_kept() -> None:
    plain = spec(96, 64, 22)
    pictures = RenderSpec.from_json(plain.to_json() | {"keep_frames": True})
    assert disk_for_work(plain) == 22 * 96 * 64 * 3 + 29_333 * 2 * 4
    assert disk_for_output(pictures) - disk_for_output(plain) == 22 * 96 * 64 * 3
