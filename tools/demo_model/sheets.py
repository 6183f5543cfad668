"""Contact sheets: a few frames of each clip in a row, its caption above."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

COLUMNS = 8
CAPTION_HEIGHT = 14


def contact_sheet(path: Path, clips: list[tuple[str, NDArray[np.uint8]]]) -> None:
    """Write one PNG with a row of COLUMNS frames for each (caption, frames [F, H, W, 3])."""
    rows = []
    for words, frames in clips:
        chosen = frames[np.linspace(0, len(frames) - 1, COLUMNS).round().astype(int)]
        strip = Image.fromarray(np.concatenate(list(chosen), axis=1))
        row = Image.new("RGB", (strip.width, strip.height + CAPTION_HEIGHT), "white")
        row.paste(strip, (0, CAPTION_HEIGHT))
        # The built-in font has no Chinese.
        plain = words.encode("ascii", "replace").decode()
        ImageDraw.Draw(row).text((2, 1), plain, fill="black")
        rows.append(row)
    sheet = Image.new("RGB", (max(row.width for row in rows), sum(row.height for row in rows)))
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height
    sheet.save(path)
