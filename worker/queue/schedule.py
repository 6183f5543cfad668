"""When a job may run: moments, and nightly windows on the clock of the wall.

A window is told by local time ("22:00-07:00") and is one interval a day. Where the clock is set
forward over its start or end, the moment of the change stands in; where it is set back, the window
begins at the first showing of its start and ends at the last of its end. So it never opens twice in
a night. `zone` is None for the machine's own.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Self

from h3farm.worker.queue.errors import BadSchedule
from h3farm.worker.queue.job import stamp
from h3farm.worker.queue.states import State

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
WINDOW = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*[-–]\s*([01]?\d|2[0-3]):([0-5]\d)")
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
IN = re.compile(r"\+\s*(\d{1,5}(?:\.\d+)?)\s*(m|min|h|d)")
UNITS = {"m": MINUTE, "min": MINUTE, "h": timedelta(hours=1), "d": DAY}
MOMENTS = "22:00, 2026-12-24 22:00, 2026-12-24T22:00+01:00, +90m, +8h or +1d"
WINDOWS = "two different times of the day, as in 22:00-07:00"


@dataclass(frozen=True, slots=True)
class Window:
    """Every day from `start` to `end`, in local time; across midnight when it ends earlier."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "22:00-07:00"; BadSchedule for anything else."""
        found = WINDOW.fullmatch(text.strip())
        if not found:
            raise BadSchedule("window", text, WINDOWS)
        hours, minutes, end_hours, end_minutes = map(int, found.groups())
        start, end = time(hours, minutes), time(end_hours, end_minutes)
        if start == end:
            raise BadSchedule("window", text, WINDOWS)
        return cls(start, end)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.start:%H:%M}-{self.end:%H:%M}"

    def interval(self, now: datetime, zone: tzinfo | None = None) -> tuple[datetime, datetime]:
        """The window that is open now, or else the next one: its first moment, and that after its
        last.
        """
        today = now.astimezone(zone).date()
        for day in (today + DAY * n for n in range(-1, 3)):
            start, end = self._on(day, zone)
            if now < end and start < end:
                return start, end
        raise AssertionError(f"no window {self} near {now}")  # a day lasts less than three

    def is_open(self, now: datetime, zone: tzinfo | None = None) -> bool:
        """Whether `now` lies in it."""
        return self.interval(now, zone)[0] <= now

    def _on(self, day: date, zone: tzinfo | None) -> tuple[datetime, datetime]:
        last = day if self.start < self.end else day + DAY
        return _instant(day, self.start, 0, zone), _instant(last, self.end, 1, zone)


def _instant(day: date, clock: time, fold: int, zone: tzinfo | None) -> datetime:
    """The moment at which the clock shows this: of two the first (fold 0) or the last (1), of none
    the change that leaves it out.
    """
    shown = datetime.combine(day, clock)
    moment = _utc(shown, fold, zone)
    if moment.astimezone(zone).replace(tzinfo=None, fold=0) == shown:
        return moment
    moment = min(_utc(shown, 0, zone), _utc(shown, 1, zone))  # before the change
    offset = moment.astimezone(zone).utcoffset()
    while moment.astimezone(zone).utcoffset() == offset:
        moment += MINUTE
    return moment


def _utc(shown: datetime, fold: int, zone: tzinfo | None) -> datetime:
    shown = shown.replace(fold=fold, tzinfo=zone)
    # A naive time counts as of the machine's zone.
    return datetime.fromtimestamp(shown.timestamp(), UTC)


def parse_moment(text: str, now: datetime, field: str, zone: tzinfo | None = None) -> datetime:
    """What a user calls a moment: see MOMENTS; a time of the day is the next one. BadSchedule."""
    text = text.strip()
    if found := IN.fullmatch(text):
        return now + float(found[1]) * UNITS[found[2]]
    if found := CLOCK.fullmatch(text):
        clock, today = time(int(found[1]), int(found[2])), now.astimezone(zone).date()
        moments = (_instant(today + DAY * n, clock, 0, zone) for n in range(3))
        return next(moment for moment in moments if moment > now)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return _utc(moment, 0, zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise BadSchedule(field, text, MOMENTS) from None


def shown(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """A moment in local time: only the clock when it is less than a day away."""
    local = moment.astimezone(zone)
    return f"{local:%H:%M}" if abs(moment - now) < DAY else f"{local:%Y-%m-%d %H:%M}"


def held(
    not_before: str | None, window: str | None, now: datetime, zone: tzinfo | None = None
) -> str | None:
    """Why a job with this schedule may not run now; None when it may."""
    if not_before and now < (moment := datetime.fromisoformat(not_before)):
        return f"not before {shown(moment, now, zone)}"
    if window and (start := Window.parse(window).interval(now, zone)[0]) > now:
        return f"outside its nightly window {window}: it opens at {shown(start, now, zone)}"
    return None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job may run: from a moment on (a UTC stamp), in a nightly window ("22:00-07:00")."""

    not_before: str | None = None
    window: str | None = None

    @classmethod
    def parse(cls, not_before: str | None, window: str | None, now: datetime) -> Self:
        """From what a user says; BadSchedule."""
        moment = parse_moment(not_before, now, "not_before") if not_before else None
        return cls(stamp(moment) if moment else None, str(Window.parse(window)) if window else None)

    def state(self, now: datetime) -> State:
        """What a new job is by it."""
        return State.SCHEDULED if held(self.not_before, self.window, now) else State.QUEUED


AT_ONCE = Schedule()
