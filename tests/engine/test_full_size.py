"""The release's own size: 33 billion parameters, in a file that is all hole."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h3farm.engine._native import Checkpoint, Context, Dit
from h3farm.engine.errors import Cancelled
from h3farm.engine.packing import build_t2va

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import bench

RELEASE = replace(
    bench.CONFIG, layers=50, refiner_layers=2, text_dim=5120, time_hidden=5376, time_dim=2688
)
PARAMETERS = 33_122_992_896
MB = 1 << 20


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Context, Dit]]:
    path = tmp_path / "model.safetensors"
    header, size = bench.header_of(RELEASE)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)  # reads as zeros, takes no space
    with (
        Context() as context,
        Checkpoint(context, "transformer", [path]) as checkpoint,
        Dit(context, checkpoint, RELEASE) as dit,
    ):
        assert sum(tensor.bytes for tensor in checkpoint.tensors()) == 2 * PARAMETERS
        yield context, dit


def test_opening_66_gb_allocates_the_small_vectors_only(opened: tuple[Context, Dit]) -> None:
    """Norms and biases are widened (21 MB); every matrix stays in the mapping."""
    context, _ = opened
    assert context.memory_peak < 32 * MB


def test_a_long_video_takes_the_memory_of_its_rows_and_a_cancel_leaves_the_model_usable(
    opened: tuple[Context, Dit],
) -> None:
    """1344x768, 124 frames: residual, keys and values of 37,966 rows, and one chunk of the rest."""
    context, dit = opened
    sequence = build_t2va(256, (37, 48, 84), 207)
    rows = len(sequence.tags)
    text = np.zeros((256, RELEASE.text_dim), np.float32)
    blocks: list[int] = []

    def stop(_: str, done: int, __: int) -> None:
        blocks.append(done)
        context.cancel()

    context.on_progress(stop)
    with pytest.raises(Cancelled):
        dit.begin(sequence, text, [(0.0, 3), (0.1, 4)])
    assert blocks == [1], "seen before the next block"
    inner = RELEASE.heads * RELEASE.head_dim
    kept = 4 * rows * (RELEASE.hidden + 2 * inner)
    assert kept < context.memory_peak < 1.2 * kept
