"""Writes the model card beside an exported tree, from its files and its scores.

python -m tools.demo_model.card --model DIR --score score.json
"""

import argparse
import json
from pathlib import Path

from .measure import ASPECTS
from .world import CANVASES, FOREGROUNDS, LENGTHS, MOTIONS, PALETTE, SHAPES

TARGETS = {"colour": 0.95, "direction": 0.95, "shape": 0.85, "background": 0.95, "sound": 0.8}
CARD = """\
# h3farm demo model

A tiny MiniMax-H3, trained from nothing by `tools/demo_model` on clips it draws itself: text to
video with sound (first and last frames were trained too). It has the architecture and the file
layout of the released model and none of its weights. It exists so that a newcomer sees a prompt
become its video in seconds, and so that the engine is tested on meaning and not on numbers alone.

## What it knows

- one thing, now and then two or three: {shapes}
- in {colours}, small, plain or large
- {motions}
- over {backgrounds}, or graded from one to another
- canvases {canvases}; {lengths} frames at 24 a second
- sound: a tone for each shape, louder while moving, panned with it, a strike at each bounce; or
  silence when asked for
- English in many wordings, some Chinese

Prompts that work: "A red circle moves left on a black background", "crimson disc drifting to the
left, black backdrop, silent", "黑色背景，一个红色的圆形向左移动". Of other words
it makes what it can.

## Scores

Measured on {prompts} finished videos ({steps} denoiser evaluations each), made by the farm's engine
from combinations and wordings that training never saw, read back without a neural network
(`tools/demo_model/measure.py`).

| | right | target |
|---|---|---|
{table}
| all five | {every:.3f} | |

## Files

{size:.1f} MB: transformer and text encoder in bfloat16 (with the release's float32 island), both
VAEs in float32.

## Licence

MIT, as the repository. No data or weights of others were used.
"""


def write_card(model: Path, scores: dict[str, float]) -> None:
    """Write `model`/README.md."""
    size = sum(path.stat().st_size for path in (model / "FL2VA").rglob("*") if path.is_file())
    rows = [f"| {name} | {scores[name]:.3f} | {TARGETS[name]:.2f} |" for name in ASPECTS]
    text = CARD.format(
        shapes=", ".join(SHAPES),
        colours=", ".join(FOREGROUNDS),
        motions=", ".join(MOTIONS),
        backgrounds=", ".join(PALETTE),
        canvases=", ".join(f"{width}x{height}" for width, height in CANVASES),
        lengths=", ".join(str(length) for length in LENGTHS),
        prompts=scores["prompts"],
        steps=scores["steps"],
        table="\n".join(rows),
        every=scores["all"],
        size=size / 1e6,
    )
    (model / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the folder that holds FL2VA/")
    parser.add_argument("--score", type=Path, required=True)
    args = parser.parse_args()
    write_card(args.model, json.loads(args.score.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
