"""What the demo model's videos show: the engine tested on meaning.

A swapped channel, a wrong rotary axis or a noise of another layout can be consistent in itself and
still shows here. The floors are far below the scores of `make score`, and far above chance.
"""

from pathlib import Path

import pytest

from tools.demo_model.score import MODEL, score

COUNT = 16


@pytest.mark.slow
def test_prompts_become_the_videos_they_ask_for() -> None:
    scores = score(MODEL, COUNT, steps=8)
    assert scores["colour"] >= 0.8
    assert scores["background"] >= 0.8
    assert scores["sound"] >= 0.7
    assert scores["direction"] >= 0.4  # nine motions


def test_the_tree_is_small_enough_for_a_repository() -> None:
    assert sum(path.stat().st_size for path in Path(MODEL).rglob("*")) < 25_000_000
