"""The file of measured units: durable, bounded, read whatever has happened to it."""

import logging
from pathlib import Path

import pytest

from h3farm.engine import measurements as module
from h3farm.engine.measurements import Measurement, Measurements, Setting, newest


def measured(
    job: str = "a", seconds: float = 2.0, model: str = "m", threads: int = 2
) -> Measurement:
    return Measurement(
        at="2026-12-01T06:00:00+00:00",
        job=job,
        unit="step",
        work=1e9,
        seconds=seconds,
        setting=Setting(model=model, engine="1", isa="avx2", threads=threads),
    )


def test_what_was_added_is_read_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "m.jsonl"
    Measurements(path).append(measured("ä"))
    Measurements(path).append(measured("b", seconds=3.5))
    assert Measurements(path).read() == [measured("ä"), measured("b", seconds=3.5)]


def test_no_file_is_nothing_measured(tmp_path: Path) -> None:
    assert list(Measurements(tmp_path / "none").read()) == []
    assert Measurements(tmp_path / "none").stamp() == (0, 0)


def test_a_line_cut_short_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    file = Measurements(path)
    file.append(measured("a"))
    file.append(measured("b"))
    path.write_bytes(path.read_bytes()[:-7])
    file.append(measured("c"))
    assert [m.job for m in file.read()] == ["a", "c"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        measured().to_line().replace(b"2.0", b"NaN"),
        measured().to_line().replace(b"2.0", b"-1"),
        measured().to_line().replace(b"1000000000.0", b"0"),
        measured().to_line().replace(b'"threads": 2', b'"thread": 2'),
    ],
)
def test_what_is_no_measurement_is_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(line + b"\n" + measured().to_line())
    assert Measurements(path).read() == [measured()]


def test_the_file_stays_bounded_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    monkeypatch.setattr(module, "KEPT_SETTINGS", 2)
    file = Measurements(tmp_path / "m.jsonl")
    sizes = []
    for number in range(200):
        file.append(measured(str(number)))
        sizes.append(file.stamp()[1])
    assert max(sizes) < 2 * 10 * 2 * module.LINE_BYTES + 2 * module.LINE_BYTES
    assert file.read()[-1].job == "199"
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]


def test_a_model_that_rests_keeps_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand renders with one model do not push out the other's."""
    monkeypatch.setattr(module, "KEPT", 3)
    monkeypatch.setattr(module, "KEPT_SETTINGS", 2)
    found = [measured(str(n), model="first") for n in range(5)]
    found += [measured(str(n), model="old", threads=9) for n in range(2)]
    found += [found[0], *(measured(str(n), model="second") for n in range(9))]
    kept = newest(found)
    assert [m.setting.model for m in kept] == ["first"] * 3 + ["second"] * 3
    assert [m.job for m in kept] == ["3", "4", "0", "6", "7", "8"]


def test_a_disk_that_refuses_costs_no_render(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    file = Measurements(tmp_path / "file" / "m.jsonl")
    with caplog.at_level(logging.WARNING):
        file.append(measured())
        file.append(measured())
    assert caplog.text.count("estimates learn nothing from this render") == 1
