"""How numbers, times and states are said to people. Registered as template filters and tests."""

from datetime import UTC, datetime

from h3farm.engine.geometry import FPS
from h3farm.engine.progress import Progress
from h3farm.worker.queue import quantities

PHASES = {
    "check": "Checking",
    "encode": "Reading the prompt",
    "denoise": "Denoising",
    "decode_video": "Decoding the picture",
    "decode_audio": "Decoding the sound",
    "assemble": "Writing the video",
}
PHASE_LABELS = (
    ("check", "check"),
    ("encode", "prompt"),
    ("denoise", "denoise"),
    ("decode_video", "picture"),
    ("decode_audio", "sound"),
    ("assemble", "write"),
)
COUNTED = {"denoise": "step", "decode_video": "clip", "assemble": "frame"}


def length(frames: int) -> str:
    """`56` is "56 frames = 2.33 s"."""
    return f"{frames} frames = {frames / FPS:.2f} s"


def moment(stamp: str) -> datetime | None:
    """A stored time; None for what is none."""
    try:
        parsed = datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def local_time(stamp: str) -> str:
    """A stored time on this machine's clock, to the second."""
    parsed = moment(stamp)
    return parsed.astimezone().strftime("%Y-%m-%d %H:%M:%S") if parsed else ""


def ago(stamp: str, now: datetime | None = None) -> str:
    """How long a stored time is past: "just now", "5 min ago"; the date when it is days."""
    parsed = moment(stamp)
    if parsed is None:
        return ""
    past = ((now or datetime.now(UTC)) - parsed).total_seconds()
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{past // 60:.0f} min ago"
    if past < 86400:
        return f"{past // 3600:.0f} h ago"
    return parsed.astimezone().strftime("%d %b %Y")


def since(stamp: str, now: datetime | None = None) -> str:
    """The time from a stored moment to now."""
    return between(stamp, (now or datetime.now(UTC)).isoformat())


def between(start: str | None, end: str | None) -> str:
    """The time from one stored moment to another; "" when one is missing."""
    first, last = moment(start or ""), moment(end or "")
    return quantities.seconds(max(0.0, (last - first).total_seconds())) if first and last else ""


def doing(progress: Progress) -> str:
    """What a render does at the moment: "Denoising, step 3 of 20"."""
    what = PHASES[progress.phase]
    if progress.phase not in COUNTED or not progress.steps:
        return what
    current = min(progress.step + 1, progress.steps)
    return f"{what}, {COUNTED[progress.phase]} {current} of {progress.steps}"


def inside(progress: Progress) -> str:
    """Where inside the step: "block 12 of 50"; "" where nothing is counted."""
    return f"block {progress.block} of {progress.blocks}" if progress.blocks else ""


def fraction(progress: Progress) -> float:
    """How much of the current phase is done, 0 to 1."""
    within = progress.block / progress.blocks if progress.blocks else 0.0
    if not progress.steps:
        return round(min(1.0, within), 4)
    return round(min(1.0, (progress.step + min(within, 1.0)) / progress.steps), 4)


def remaining(progress: Progress) -> str:
    """The estimate; "" until there is one."""
    if progress.remaining_s is None:
        return ""
    return f"about {quantities.seconds(progress.remaining_s)} left"


FILTERS = {
    "ago": ago,
    "between": between,
    "doing": doing,
    "fraction": fraction,
    "inside": inside,
    "length_words": length,
    "local_time": local_time,
    "remaining": remaining,
    "seconds": quantities.seconds,
    "since": since,
    "size": quantities.size,
}
