"""The packed sequence: every row once, positions on one clock, rows that come back as latents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine import packing
from h3farm.engine.packing import AUDIO, TEXT, VIDEO, Condition

SIDES = st.integers(1, 4).map(lambda half: 2 * half)
LATENTS = st.tuples(st.integers(1, 8), SIDES, SIDES)
CONDITIONS = st.lists(
    st.one_of(
        st.sampled_from(["first", "last"]).map(lambda kind: Condition(kind=kind)),
        st.tuples(SIDES, SIDES).map(lambda hw: Condition(kind="image", latent=(1, *hw))),
        st.integers(1, 9).map(lambda n: Condition(kind="audio", audio_latents=n)),
        st.tuples(LATENTS, st.integers(0, 9)).map(
            lambda v: Condition(kind="video", latent=v[0], audio_latents=v[1])
        ),
    ),
    max_size=4,
)


@given(LATENTS, st.integers(1, 5))
def test_patchify_and_unpatchify_are_inverse(shape: tuple[int, int, int], channels: int) -> None:
    latent = np.arange(channels * np.prod(shape), dtype=np.float32).reshape(channels, *shape)
    rows = packing.patchify(latent)
    assert rows.shape == (shape[0] * shape[1] * shape[2] // 4, channels * 4)
    np.testing.assert_array_equal(packing.unpatchify(rows, shape), latent)


def test_a_video_row_holds_its_patch_channel_by_channel() -> None:
    latent = np.arange(2 * 1 * 4 * 4, dtype=np.float32).reshape(2, 1, 4, 4)
    assert packing.patchify(latent)[1].tolist() == [2, 3, 6, 7, 18, 19, 22, 23]


@given(st.integers(1, 5), st.integers(1, 9))
def test_audio_rows_are_left_then_right_and_come_back(channels: int, latents: int) -> None:
    latent = np.arange(2 * channels * latents, dtype=np.float32).reshape(2, channels, latents)
    rows = packing.audio_to_rows(latent)
    np.testing.assert_array_equal(rows[latents], latent[1, :, 0])
    np.testing.assert_array_equal(packing.rows_to_audio(rows), latent)


@given(st.integers(0, 6), LATENTS, st.integers(0, 9), CONDITIONS)
def test_the_index_lists_name_every_row_once(
    text: int, latent: tuple[int, int, int], audio: int, conditions: list[Condition]
) -> None:
    """What the C library relies on, with any conditions in any order."""
    tags = np.full(text, TEXT, np.int32)
    sequence = packing.pack(tags, latent, audio, conditions)
    everything = np.concatenate(
        [sequence.text_indices, sequence.video_indices, sequence.audio_indices]
    )
    assert sorted(everything) == list(range(len(sequence.tags)))
    assert sequence.positions.shape == (len(sequence.tags), 3)
    assert set(sequence.tags[sequence.video_indices]) == {VIDEO}
    assert set(sequence.tags[sequence.audio_indices]) <= {AUDIO}
    target = latent[0] * latent[1] * latent[2] // 4
    assert len(sequence.video_indices) == sequence.condition_video_rows + target
    assert len(sequence.audio_indices) == sequence.condition_audio_rows + 2 * audio


def test_without_conditions_both_streams_start_where_the_text_ends() -> None:
    sequence = packing.build_t2va(5, (2, 4, 6), 3)
    assert sequence.positions[sequence.video_indices[0], 0] == 5
    assert sequence.positions[sequence.audio_indices, 0].tolist() == [5, 6, 7, 5, 6, 7]


def test_references_move_the_target_along_the_clock() -> None:
    conditions = [
        Condition(kind="image", latent=(1, 2, 2)),
        Condition(kind="audio", audio_latents=7),
    ]
    sequence = packing.pack(np.full(5, TEXT, np.int32), (2, 4, 6), 3, conditions)
    target = sequence.video_indices[sequence.condition_video_rows]
    assert sequence.positions[target, 0] == 5 + 1 + 7


@pytest.mark.parametrize("latent", [(0, 2, 2), (1, 3, 2), (1, 2, 0)])
def test_a_latent_that_makes_no_patches_is_refused(latent: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="multiples of 2"):
        packing.build_t2va(1, latent, 1)


def test_a_reference_without_a_latent_is_refused() -> None:
    with pytest.raises(ValueError, match="'image' needs a latent"):
        packing.pack(np.full(1, TEXT, np.int32), (1, 2, 2), 1, [Condition(kind="image")])


def test_each_row_gets_the_time_of_its_kind() -> None:
    """Text has the video's, sound its own; conditions are nearly clean."""
    conditions = [
        Condition(kind="first"),
        Condition(kind="video", latent=(1, 2, 2), audio_latents=1),
    ]
    sequence = packing.pack(np.array([TEXT, VIDEO], np.int32), (1, 2, 2), 1, conditions)
    times, (indices,) = packing.run_times(sequence, [0.25], [0.5])
    values = [float(np.float32(times[i][0])) for i in indices]
    near = float(np.float32(0.999))
    assert values == [0.25, 0.25, near, 1.0, 1.0, near, 0.5, 0.5, 0.25]
    masks = dict(times)
    assert masks[0.25] == 1 << VIDEO | 1 << TEXT
    assert masks[0.5] == masks[1.0] == 1 << AUDIO
    assert masks[near] == 1 << VIDEO


def test_times_of_all_steps_are_listed_once_and_rise() -> None:
    sequence = packing.build_t2va(3, (2, 2, 2), 2)
    times, indices = packing.run_times(sequence, [0.0, 0.2, 0.6], [0.0, 0.6, 0.8])
    values = [t for t, _ in times]
    assert values == sorted(set(values))
    assert len(values) == 4
    assert len(indices) == 3
    assert times[0] == (0.0, 0b111)
