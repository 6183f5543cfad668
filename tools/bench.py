"""`make bench`: one full-width transformer block against this machine's own f32 GEMM rate.

A one-block transformer of the release's width is made in a temporary folder (bf16, random), its
forward pass is timed, and numpy's sgemm is timed before and after it in the same process with as
many threads, so that the machine's mood falls on both. Prints the ratio and exits 1 when it is
below the limit.
"""

import json
import math
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from h3farm.engine._native import Checkpoint, Context, Dit
from h3farm.engine.configs import DitConfig
from h3farm.engine.packing import build_t2va

LIMIT = 1 / 3  # of the sgemm rate
RUNS = 3
CANVAS_LATENT = (7, 24, 36)  # 1512 video rows
AUDIO_LATENTS = 37
TEXT_ROWS = 64
# The release's block; the parts around it are narrow, since only the block is measured.
CONFIG = DitConfig(
    hidden=5376,
    layers=1,
    refiner_layers=0,
    heads=56,
    head_dim=128,
    ffn=14336,
    video_dim=96,
    audio_dim=32,
    text_dim=64,
    freq_dim=256,
    time_hidden=64,
    time_dim=64,
    rope_freqs=16,
    rope_theta=10000.0,
    norm_eps=1e-5,
    qk_norm_eps=1e-5,
    final_norm_eps=1e-5,
)


def block_shapes(c: DitConfig, name: str) -> dict[str, tuple[int, ...]]:
    """The tensors of one block, AdaLN aside."""
    inner = c.heads * c.head_dim
    return {
        f"{name}.norm1.weight": (c.hidden,),
        f"{name}.norm2.weight": (c.hidden,),
        f"{name}.attn.q_norm.weight": (c.head_dim,),
        f"{name}.attn.k_norm.weight": (c.head_dim,),
        f"{name}.attn.qkv_proj.weight": (3 * inner, c.hidden),
        f"{name}.attn.out_proj.weight": (c.hidden, inner),
        f"{name}.mlp.fc1.weight": (2 * c.ffn, c.hidden),
        f"{name}.mlp.fc2.weight": (c.hidden, c.ffn),
    }


def shapes(c: DitConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a transformer, by official name."""
    linear = {
        "video_patch_proj": (c.hidden, c.video_dim),
        "audio_patch_proj": (c.hidden, c.audio_dim),
        "condition_proj": (c.hidden, c.text_dim),
        "time_embedder.proj_in": (c.time_hidden, c.freq_dim),
        "time_embedder.proj_out": (c.time_dim, c.time_hidden),
        "final_layer.adaln_proj.linear": (2 * c.hidden, c.time_dim),
        "final_layer.video_out": (c.video_dim, c.hidden),
        "final_layer.audio_out": (c.audio_dim, c.hidden),
    } | {f"blocks.{i}.adaln_proj.linear": (18 * c.hidden, c.time_dim) for i in range(c.layers)}
    out: dict[str, tuple[int, ...]] = {
        "token_refiner.final_norm.weight": (c.hidden,),
        "final_layer.norm.weight": (c.hidden,),
    }
    for name, shape in linear.items():
        out |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for i in range(c.refiner_layers):
        out |= block_shapes(c, f"token_refiner.blocks.{i}")
    for i in range(c.layers):
        out |= block_shapes(c, f"blocks.{i}")
    return out


def header_of(c: DitConfig) -> tuple[bytes, int]:
    """A safetensors file's beginning for all of `shapes` in bf16, and the bytes of its data."""
    header, offset = {}, 0
    for name, shape in shapes(c).items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded, offset


def write_checkpoint(path: Path) -> None:
    """The transformer of CONFIG: random values of about +-0.02."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header_of(CONFIG)[0])
        for shape in shapes(CONFIG).values():
            values = rng.random(shape, np.float32) * 0.04 - 0.02
            (values.view(np.uint32) >> 16).astype(np.uint16).tofile(file)


def best(call: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds: what the machine can do when it is left alone."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def sgemm_rate(rows: int) -> float:
    """GFLOP/s of numpy's f32 product at the shape of the block's largest layer."""
    x = np.ones((rows, CONFIG.hidden), np.float32)
    w = np.ones((CONFIG.ffn, CONFIG.hidden), np.float32)
    return 2e-9 * rows * w.size / best(lambda: x @ w.T)


def block_rate(folder: Path) -> tuple[int, float]:
    """Rows of the pass and GFLOP/s of our block, attention included."""
    write_checkpoint(folder / "block.safetensors")
    sequence = build_t2va(TEXT_ROWS, CANVAS_LATENT, AUDIO_LATENTS)
    rows = len(sequence.positions)
    inner = CONFIG.heads * CONFIG.head_dim
    weights = CONFIG.hidden * (4 * inner + 3 * CONFIG.ffn)
    flop = 2 * rows * weights + 4 * rows * rows * inner
    rng = np.random.default_rng(1)
    text, video, audio = (
        rng.standard_normal(shape, np.float32)
        for shape in (
            (TEXT_ROWS, CONFIG.text_dim),
            (len(sequence.video_indices), CONFIG.video_dim),
            (len(sequence.audio_indices), CONFIG.audio_dim),
        )
    )
    row_times = np.zeros(rows, np.int32)
    with (
        Context() as context,
        Checkpoint(context, "transformer", [folder / "block.safetensors"]) as checkpoint,
        Dit(context, checkpoint, CONFIG) as dit,
        dit.begin(sequence, text, [(0.5, 7)]) as run,
    ):
        print(f"engine: {context.isa}, {context.threads} threads, {rows} rows")
        return rows, 1e-9 * flop / best(lambda: run.step(row_times, video, audio))


def main() -> int:
    """Measure, print, judge."""
    with tempfile.TemporaryDirectory(prefix="h3farm-bench-") as folder:
        before = sgemm_rate(1024)
        rows, ours = block_rate(Path(folder))
        after = sgemm_rate(rows)
    peer = max(before, after)
    print(f"sgemm (numpy): {peer:.0f} GFLOP/s")
    print(f"full-width block, bf16 weights: {ours:.0f} GFLOP/s")
    print(
        f"ratio {ours / peer:.2f}, limit {LIMIT:.2f}: {'ok' if ours >= LIMIT * peer else 'MISSED'}"
    )
    return 0 if ours >= LIMIT * peer else 1


if __name__ == "__main__":
    sys.exit(main())
