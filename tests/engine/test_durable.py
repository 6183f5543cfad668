"""Durable files: the old content or the new, whatever fails."""

from pathlib import Path

import pytest

from h3farm.engine.durable import sync_file, write_durably
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
