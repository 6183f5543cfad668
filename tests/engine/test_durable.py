"""Durable files: the old content or the new, whatever fails."""

from collections.abc import Callable
from pathlib import Path

import pytest

from h3farm.engine.durable import sync_file, sync_many, write_durably
from h3farm.engine.errors import DiskError, DiskFull


def test_a_written_file_holds_the_new_content_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "狐 state.json"
    write_durably(target, b"old")
    write_durably(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path,
) -> None:
    """The order of a durable write: content flushed, renamed, folder flushed."""
    target = tmp_path / "state.json"
    seen: list[list[str]] = []
    write_durably(
        target,
        b"new",
        flush=lambda _: seen.append(sorted(path.name for path in tmp_path.iterdir())),
    )
    assert seen == [[".state.json.tmp"], ["state.json"]]


def test_a_failed_flush_leaves_the_old_content(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    write_durably(target, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFull) as caught:
        write_durably(target, b"new", flush=fail)
    assert str(caught.value) == f"cannot write {target}: No space left on device"
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_file_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"cannot sync .*: No such file or directory"):
        sync_file(tmp_path / "absent")


@pytest.mark.parametrize(("platform", "syncs", "fsyncs"), [("linux", 1, 0), ("darwin", 0, 7)])
def test_many_files_cost_few_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, syncs: int, fsyncs: int
) -> None:
    """macOS: three files, their folders and the folder of these to the drive, the last flushed."""
    calls = {"sync": 0, "fsync": 0, "flush": 0}

    def count(name: str) -> Callable[..., None]:
        def call(*_: object) -> None:
            calls[name] += 1

        return call

    paths = [tmp_path / name / "job.json" for name in "abc"]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"x")
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("os.sync", count("sync"))
    monkeypatch.setattr("os.fsync", count("fsync"))
    sync_many(paths, flush=count("flush"))
    assert calls == {"sync": syncs, "fsync": fsyncs, "flush": 1}
    sync_many([], flush=count("flush"))
    assert calls["flush"] == 1
