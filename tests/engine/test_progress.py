"""Progress as JSON."""

import pytest

from h3farm.engine.progress import PHASES, Progress


def test_progress_survives_json() -> None:
    for remaining in (None, 12.5):
        progress = Progress(
            phase="denoise",
            step=3,
            steps=20,
            block=7,
            blocks=50,
            elapsed_s=4.25,
            remaining_s=remaining,
        )
        assert Progress.from_json(progress.to_json()) == progress


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"phase": "dream"}, f"progress has no phase 'dream': known are {', '.join(PHASES)}"),
        ({"step": "3"}, "progress needs a whole number as step, got '3'"),
        ({"blocks": None}, "progress needs a whole number as blocks, got None"),
        ({"elapsed_s": None}, "progress needs seconds as elapsed_s, got None"),
        ({"remaining_s": "soon"}, "progress needs seconds as remaining_s, got 'soon'"),
    ],
)
def test_a_foreign_progress_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match="progress") as caught:
        Progress.from_json(Progress(phase="check").to_json() | change)
    assert str(caught.value) == sentence
