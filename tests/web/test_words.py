"""Numbers and times, as people read them."""

from datetime import UTC, datetime

import pytest

from h3farm.engine.progress import PHASES, Progress
from h3farm.web import words
from h3farm.worker.queue import quantities

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (90000, "25 h 00 min"),
    ],
)
def test_durations(value: float, expected: str) -> None:
    assert quantities.seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (3_400_000, "3.4 MB"),
        (21_300_000_000, "21.3 GB"),
        (4_000_000_000_000, "4000 GB"),
    ],
)
def test_sizes(value: int, expected: str) -> None:
    assert quantities.size(value) == expected


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-11-30T11:59:30.000Z", "just now"),
        ("2026-11-30T12:05:00.000Z", "just now"),  # a clock that went back
        ("2026-11-30T11:55:00.000Z", "5 min ago"),
        ("2026-11-30T11:00:01.000Z", "59 min ago"),
        ("2026-11-30T09:00:00.000Z", "3 h ago"),
        ("", ""),
        ("yesterday", ""),
    ],
)
def test_how_long_ago(stamp: str, expected: str) -> None:
    assert words.ago(stamp, NOW) == expected


@pytest.mark.parametrize(
    ("progress", "doing", "fraction"),
    [
        (Progress(phase="check"), "Checking", 0.0),
        (Progress(phase="encode", block=25, blocks=50), "Reading the prompt", 0.5),
        (Progress(phase="denoise", steps=20), "Denoising, step 1 of 20", 0.0),
        (Progress(phase="denoise", step=20, steps=20), "Denoising, step 20 of 20", 1.0),
        (
            Progress(phase="denoise", step=1, steps=4, block=5, blocks=10),
            "Denoising, step 2 of 4",
            0.375,
        ),
        (
            Progress(phase="decode_video", step=1, steps=3),
            "Decoding the picture, clip 2 of 3",
            0.3333,
        ),
        (
            Progress(phase="assemble", step=4, steps=4, block=9, blocks=3),
            "Writing the video, frame 4 of 4",
            1.0,
        ),
    ],
)
def test_progress(progress: Progress, doing: str, fraction: float) -> None:
    assert words.doing(progress) == doing
    assert words.fraction(progress) == fraction


def test_every_phase_has_its_words() -> None:
    assert tuple(words.PHASES) == PHASES
    assert tuple(name for name, _ in words.PHASE_LABELS) == PHASES


def test_lengths() -> None:
    assert words.length(56) == "56 frames = 2.33 s"
