"""Names of output folders, and folders that appear whole or not at all."""

import json
import subprocess
import sys
import unicodedata
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine.durable import flush_to_platter
from h3farm.engine.errors import DiskError
from h3farm.engine.output import OutputFolder, slug, write_latents

STARTED = datetime(2026, 11, 30, 18, 42, 59)


def begin(outputs: Path, job_id: str = "1130-1842-aaaa", prompt: str = "Red fox") -> OutputFolder:
    return OutputFolder(outputs, prompt=prompt, job_id=job_id, started=STARTED)


def files(outputs: Path) -> list[str]:
    return sorted(str(path.relative_to(outputs)) for path in outputs.rglob("*"))


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("Red fox in snow", "red-fox-in-snow"),
        ("  <d>‹Scene›\n(S1) A FOX's den, 4K!", "d-scene-s1-a-fox-s-den-4k"),
        ("狐狸在雪地里奔跑", "狐狸在雪地里奔跑"),
        ("लोमड़ी बर्फ़ में", "लोमड़ी-बर्फ़-में"),
        ("Straße ﬁve Ｆｏｘ", "strasse-five-fox"),
        ("../../etc/passwd", "etc-passwd"),
        ("CON: a|b*c?", "con-a-b-c"),
        ("🦊🦊🦊", "render"),
        ("...", "render"),
        (
            "A photorealistic extraordinarily long establishing shot",
            "a-photorealistic-extraordinarily-long",
        ),
        ("x" * 100, "x" * 40),
        ("fox " + "x" * 100, "fox-" + "x" * 36),
    ],
)
def test_a_slug_reads_like_the_prompt(prompt: str, name: str) -> None:
    assert unicodedata.normalize("NFC", slug(prompt)) == unicodedata.normalize("NFC", name)


@given(st.text(max_size=200))
def test_a_slug_is_a_safe_name_for_any_text(prompt: str) -> None:
    """Never empty, short, and in no two spellings that a disk would take as one."""
    name = slug(prompt)
    assert 1 <= len(name) <= 40
    assert len(name.encode()) <= 160
    assert not name.startswith(("-", ".")) and not name.endswith("-")
    assert all(char == "-" or unicodedata.category(char)[0] in "LMN" for char in name)
    assert slug(name) == name
    assert unicodedata.normalize("NFC", name) == name


def test_a_folder_appears_whole_under_its_final_name(tmp_path: Path) -> None:
    outputs = tmp_path / "out puts"
    with begin(outputs) as folder:
        (folder.path / "frames").mkdir()
        (folder.path / "frames" / "000001.png").write_bytes(b"png")
        (folder.path / "video.mp4").write_bytes(b"mp4")
        assert all(part.name.startswith(".") for part in (outputs / "2026-11-30").iterdir())
        final = folder.appear()
    assert final == outputs / "2026-11-30" / final.name
    assert final.name.startswith("1842-red-fox-") and len(final.name) == len("1842-red-fox-3f2a")
    assert files(final) == ["frames", "frames/000001.png", "video.mp4"]
    assert list((outputs / "2026-11-30").iterdir()) == [final]


def test_everything_is_on_the_disk_before_the_name_is(tmp_path: Path) -> None:
    """A power cut after the rename must not leave empty files under the final name."""
    flushed: list[bool] = []

    def flush(descriptor: int) -> None:
        flushed.append(any(path.name.startswith("1842") for path in tmp_path.glob("*/*")))
        flush_to_platter(descriptor)

    with begin(tmp_path) as folder:
        (folder.path / "video.mp4").write_bytes(b"mp4")
        folder.appear(flush=flush)
    # the file, its folder; then the rename; then the day's folder and the outputs folder
    assert flushed == [False, False, True, True]


def test_jobs_that_begin_alike_in_the_same_minute_get_folders_of_their_own(tmp_path: Path) -> None:
    names = set()
    for job_id in ("1130-1842-aaaa", "1130-1842-bbbb"):
        with begin(tmp_path, job_id) as folder:
            names.add(folder.appear().name)
    assert len(names) == 2


def test_a_collision_never_overwrites(tmp_path: Path) -> None:
    """The same job again in the same minute; a file of that name is respected too."""
    made = []
    for content in (b"first", b"second"):
        with begin(tmp_path) as folder:
            (folder.path / "video.mp4").write_bytes(content)
            made.append(folder.appear())
    made[0].with_name(f"{made[0].name}-3").write_bytes(b"a file")
    with begin(tmp_path) as folder:
        made.append(folder.appear())
    assert [path.name for path in made[1:]] == [f"{made[0].name}-2", f"{made[0].name}-4"]
    assert [(path / "video.mp4").read_bytes() for path in made[:2]] == [b"first", b"second"]


def test_what_did_not_appear_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), begin(tmp_path) as folder:
        (folder.path / "video.mp4").write_bytes(b"half")
        raise RuntimeError
    assert files(tmp_path) == []


def test_a_discarded_folder_leaves_its_neighbours(tmp_path: Path) -> None:
    with begin(tmp_path, "other") as other:
        (other.path / "video.mp4").write_bytes(b"whole")
        final = other.appear()
    with begin(tmp_path):
        pass
    assert files(tmp_path) == [
        str(p.relative_to(tmp_path)) for p in (final.parent, final, final / "video.mp4")
    ]


def test_the_leftover_of_a_killed_attempt_is_removed_by_the_next_one_only(tmp_path: Path) -> None:
    killed, running = begin(tmp_path, "killed"), begin(tmp_path, "running")
    with begin(tmp_path, "killed") as folder:
        assert folder.path == killed.path
        folder.appear()
    assert not killed.path.exists()
    assert running.path.exists()
    running.discard()


def test_the_leftover_of_a_writer_that_was_killed_is_removed_by_any_job(tmp_path: Path) -> None:
    """A job that never runs again would keep its half-written video for ever."""
    script = (
        "import os, signal; from datetime import datetime; from pathlib import Path;"
        "from h3farm.engine.output import OutputFolder;"
        "OutputFolder(Path('.'), prompt='x', job_id='killed', started=datetime(2026, 11, 29));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert len(list(tmp_path.glob("2026-11-29/.*.partial"))) == 1
    with begin(tmp_path, "other"):
        assert list(tmp_path.glob("2026-11-29/.*")) == []


def test_outputs_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_bytes(b"a file")
    with pytest.raises(DiskError, match=r"cannot write into .*outputs: Not a directory"):
        begin(tmp_path / "outputs")


def test_latents_are_a_safetensors_file(tmp_path: Path) -> None:
    """Read back by the format's own rules: u64 length, JSON header, data in order."""
    video = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    audio = np.full((5,), 0.5, np.float32)
    path = tmp_path / "latents.safetensors"
    write_latents(path, {"video": video, "audio": audio}, {"spec_hash": "ab"})
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    assert end % 8 == 0
    assert header == {
        "__metadata__": {"spec_hash": "ab"},
        "video": {"dtype": "F32", "shape": [2, 3, 4], "data_offsets": [0, 96]},
        "audio": {"dtype": "F32", "shape": [5], "data_offsets": [96, 116]},
    }
    assert data[end:] == video.tobytes() + audio.tobytes()
