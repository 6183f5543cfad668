"""How jobs, numbers and progress are said on a terminal."""

import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from h3farm.engine.progress import Progress
from h3farm.worker.queue import RenderJob, State, quantities

PHASES = {
    "check": "checking",
    "encode": "reading the prompt",
    "denoise": "denoising",
    "decode_video": "decoding the picture",
    "decode_audio": "decoding the sound",
    "assemble": "writing the video",
}
COUNTED = {"denoise": "step", "decode_video": "clip", "assemble": "frame"}
BAR_WIDTH = 20


def print_json(value: Any) -> None:
    """JSON for programs: one line."""
    print(json.dumps(value, ensure_ascii=False))


def one_line(text: str) -> str:
    """A text without what would move the cursor or change the terminal's state."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def printable(text: str) -> str:
    """Lines without what would move the cursor or change the terminal's state."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def columns(text: str) -> int:
    """How many columns a text takes: letters of east Asian scripts take two, accents none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits into so many columns."""
    if columns(text) <= width:
        return text
    kept, used = [], 1
    for char in text:
        used += columns(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + "…"


def terminal_width() -> int:
    """Columns of the terminal; 80 when there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; the last column is cut to the terminal."""
    lines = [head, *rows]
    widths = [max(columns(line[place]) for line in lines) for place in range(len(head) - 1)]
    left = terminal_width() - sum(widths) - 2 * len(widths)
    return [
        "".join(
            cell + " " * (width - columns(cell) + 2)
            for cell, width in zip(line[:-1], widths, strict=True)
        )
        + cut(line[-1], max(left, 10))
        for line in lines
    ]


def moment(text: str | None) -> str:
    """A stored time as the clock on the wall shows it."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def progress(now: Progress) -> str:
    """One moment of a render: "denoising, step 3 of 20, 2 min 10 s left"."""
    parts = [PHASES[now.phase]]
    if now.steps and now.phase in COUNTED:
        parts.append(f"{COUNTED[now.phase]} {now.step} of {now.steps}")
    if now.remaining_s is not None and now.phase != "assemble":
        parts.append(f"{quantities.seconds(now.remaining_s)} left")
    return ", ".join(parts)


def detail(job: RenderJob) -> str:
    """What there is to say of a job in a few words."""
    if job.state is State.RUNNING:
        if job.cancel_requested:
            return "stopping"
        return progress(job.progress) if job.progress else "starting"
    if job.position is not None:
        return "next" if job.position == 0 else f"{job.position} before it"
    if job.state is State.QUEUED:
        return "about to start"  # taken from the list, not begun yet
    reason = job.waits or (job.error or {}).get("sentence")
    if reason:
        return cut(one_line(reason), 40)
    return moment(job.ended_at)


def rung(job: RenderJob) -> str:
    """The named change that a job is rendered with, and whether it had failed before."""
    if not job.rung:
        return ""
    after = "after a failure" if job.retries else "as such jobs needed it before"
    return f"{job.rung} ({after})"


class ProgressLine:
    """Progress on standard error: a line that changes on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._place: tuple[str, int] | None = None

    def show(self, text: str, now: Progress | None = None) -> None:
        """Show a moment; elsewhere than on a terminal only when phase or step is another."""
        if self._live:
            line = cut(text, terminal_width() - 1)
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._shown = line
            return
        place = (now.phase, now.step if now.phase == "denoise" else 0) if now else (text, 0)
        if place != self._place:
            print(text, file=sys.stderr, flush=True)
            self._place = place

    def end(self) -> None:
        """Leave the terminal's line."""
        if self._live and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""
