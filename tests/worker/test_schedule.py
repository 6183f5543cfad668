"""Moments and nightly windows, across midnight and the changes of the clock."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from h3farm.worker.queue.errors import BadSchedule
from h3farm.worker.queue.schedule import Window, held, parse_moment, shown

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def at(zone: ZoneInfo, text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


@pytest.mark.parametrize(
    ("window", "clock", "is_open"),
    [
        ("22:00-07:00", "21:59", False),
        ("22:00-07:00", "22:00", True),
        ("22:00-07:00", "23:59", True),
        ("22:00-07:00", "00:00", True),
        ("22:00-07:00", "06:59", True),
        ("22:00-07:00", "07:00", False),
        ("22:00-07:00", "12:00", False),
        ("09:00-17:30", "08:59", False),
        ("09:00-17:30", "17:29", True),
        ("09:00-17:30", "17:30", False),
        ("00:00-06:00", "00:00", True),
        ("18:00-00:00", "23:59", True),
        ("18:00-00:00", "00:00", False),
    ],
)
def test_a_window_is_open_from_its_start_to_its_end(window: str, clock: str, is_open: bool) -> None:
    assert Window.parse(window).is_open(at(BERLIN, f"2026-06-10T{clock}"), BERLIN) == is_open


@pytest.mark.parametrize(
    ("zone", "window", "day", "start", "end"),
    [
        # Forward in Berlin, 2026-03-29 02:00 -> 03:00 (01:00 UTC): the night is an hour shorter.
        (BERLIN, "22:00-07:00", "2026-03-28", "2026-03-28T21:00", "2026-03-29T05:00"),
        (BERLIN, "02:30-07:00", "2026-03-29", "2026-03-29T01:00", "2026-03-29T05:00"),
        (BERLIN, "22:00-02:30", "2026-03-28", "2026-03-28T21:00", "2026-03-29T01:00"),
        # Back in Berlin, 2026-10-25 03:00 -> 02:00 (01:00 UTC): an hour longer, and never two.
        (BERLIN, "22:00-07:00", "2026-10-24", "2026-10-24T20:00", "2026-10-25T06:00"),
        (BERLIN, "02:30-07:00", "2026-10-25", "2026-10-25T00:30", "2026-10-25T06:00"),
        (BERLIN, "22:00-02:30", "2026-10-24", "2026-10-24T20:00", "2026-10-25T01:30"),
        # New York: forward 2026-03-08 at 07:00 UTC, back 2026-11-01 at 06:00 UTC.
        (NEW_YORK, "22:00-07:00", "2026-03-07", "2026-03-08T03:00", "2026-03-08T11:00"),
        (NEW_YORK, "02:15-06:00", "2026-03-08", "2026-03-08T07:00", "2026-03-08T10:00"),
        (NEW_YORK, "22:00-07:00", "2026-10-31", "2026-11-01T02:00", "2026-11-01T12:00"),
        (NEW_YORK, "01:30-06:00", "2026-11-01", "2026-11-01T05:30", "2026-11-01T11:00"),
    ],
)
def test_a_window_follows_the_changes_of_the_clock(
    zone: ZoneInfo, window: str, day: str, start: str, end: str
) -> None:
    first, last = utc(start), utc(end)
    parsed = Window.parse(window)
    assert parsed.interval(first - timedelta(hours=1), zone) == (first, last), day
    assert not parsed.is_open(first - timedelta(seconds=1), zone)
    minutes = int((last - first) / timedelta(minutes=1))
    assert all(parsed.is_open(first + timedelta(minutes=n), zone) for n in range(minutes))
    assert not parsed.is_open(last, zone)


def test_a_window_that_the_clock_leaves_out_is_skipped_that_night() -> None:
    window = Window.parse("02:15-02:45")
    assert window.interval(utc("2026-03-28T12:00"), BERLIN)[0] == at(BERLIN, "2026-03-30T02:15")


def test_a_clock_that_is_set_back_changes_the_answer_and_nothing_else() -> None:
    window = Window.parse("22:00-07:00")
    assert window.is_open(at(BERLIN, "2026-06-10T23:00"), BERLIN)
    assert not window.is_open(at(BERLIN, "2026-06-10T20:00"), BERLIN)
    assert window.is_open(at(BERLIN, "2026-06-10T23:00"), BERLIN)


@pytest.mark.parametrize(
    "text", ["", "22:00", "22-7", "24:00-07:00", "22:60-07:00", "22:00-22:00", "night"]
)
def test_what_is_no_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSchedule, match="as in 22:00-07:00"):
        Window.parse(text)


def test_a_window_reads_what_it_says() -> None:
    assert str(Window.parse(" 7:05 – 9:00 ")) == "07:05-09:00"


NOW = at(BERLIN, "2026-06-10T20:00")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("22:00", at(BERLIN, "2026-06-10T22:00")),
        ("07:30", at(BERLIN, "2026-06-11T07:30")),
        ("20:00", at(BERLIN, "2026-06-11T20:00")),
        ("+90m", at(BERLIN, "2026-06-10T21:30")),
        ("+1.5h", at(BERLIN, "2026-06-10T21:30")),
        ("+1d", at(BERLIN, "2026-06-11T20:00")),
        ("2026-12-24 22:00", at(BERLIN, "2026-12-24T22:00")),
        ("2026-12-24T22:00+00:00", utc("2026-12-24T22:00")),
        ("2026-12-24T22:00:00.000Z", utc("2026-12-24T22:00")),
    ],
)
def test_moments_are_understood(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW, "until", BERLIN) == moment


def test_the_next_showing_of_a_time_that_the_clock_leaves_out_is_the_change() -> None:
    now = at(BERLIN, "2026-03-29T00:30")
    assert parse_moment("02:30", now, "until", BERLIN) == utc("2026-03-29T01:00")


@pytest.mark.parametrize("text", ["", "soon", "25:00", "+5", "2026-13-01", "9999-12-31T23:59-12"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadSchedule, match=r"until is .*it must be 22:00"):
        parse_moment(text, NOW, "until", BERLIN)


def test_a_job_is_held_by_its_moment_and_by_its_window() -> None:
    assert held(None, None, NOW, BERLIN) is None
    assert held("2026-06-10T19:00:00Z", None, NOW, BERLIN) == "not before 21:00"
    assert held("2026-06-10T18:00:00Z", None, NOW, BERLIN) is None
    assert held("2026-06-12T18:00:00Z", None, NOW, BERLIN) == "not before 2026-06-12 20:00"
    opens = "outside its nightly window 22:00-07:00: it opens at 22:00"
    assert held(None, "22:00-07:00", NOW, BERLIN) == opens
    assert held(None, "19:00-07:00", NOW, BERLIN) is None


def test_the_machines_own_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert Window.parse("22:00-07:00").interval(utc("2026-03-08T01:00")) == (
            utc("2026-03-08T03:00"),
            utc("2026-03-08T11:00"),
        )
        assert parse_moment("22:00", utc("2026-03-08T01:00"), "x") == utc("2026-03-08T03:00")
        assert shown(utc("2026-03-08T03:00"), utc("2026-03-08T01:00")) == "22:00"
    finally:
        monkeypatch.undo()
        time.tzset()
