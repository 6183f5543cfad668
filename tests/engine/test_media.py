"""Videos, posters and PNG files, made by the real ffmpeg and read back."""

import json
import os
import shutil
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h3farm.engine.errors import Cancelled, DiskFull, MediaError
from h3farm.engine.geometry import samples_for
from h3farm.engine.media import (
    Clip,
    Ffmpeg,
    encode_video,
    read_comment,
    top_level_atoms,
    verify_video,
    write_frames,
    write_poster,
)
from h3farm.engine.spec import MAX_PROMPT

pytestmark = pytest.mark.slow  # whole renders and encodings

CLIP = Clip(width=64, height=96, frames=22, samples=samples_for(22), comment='{"prompt": "fox"}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name would mean something to a careless command line."""
    made = tmp_path / "-a b:狐 %d 'q'"
    made.mkdir()
    return made


def picture(clip: Clip) -> bytes:
    """A gradient that moves to the right with time."""
    x = np.arange(clip.width)[None, None, :] + np.arange(clip.frames)[:, None, None]
    y = np.arange(clip.height)[None, :, None]
    red, green = np.broadcast_arrays(x * 3 % 256, y * 2 % 256)
    return np.stack([red, green, 255 - green], axis=-1).astype(np.uint8).tobytes()


def sound(path: Path, samples: int) -> Path:
    time = np.arange(samples) / 32_000
    tone = np.sin(2 * np.pi * 440 * time) * 0.3
    path.write_bytes(np.stack([tone, tone], axis=1).astype("<f4").tobytes())
    return path


def encoded(folder: Path, clip: Clip = CLIP) -> Path:
    wave = None if clip.samples is None else sound(folder.parent / "wave.f32", clip.samples)
    encode_video(Ffmpeg(), clip, [picture(clip)], wave, folder / "video.mp4")
    return folder / "video.mp4"


@pytest.mark.parametrize("samples", [CLIP.samples, None], ids=["sound", "silent film"])
def test_a_video_reads_back_as_it_was_encoded(folder: Path, samples: int | None) -> None:
    clip = replace(CLIP, samples=samples)
    path = encoded(folder, clip)
    verify_video(Ffmpeg(), path, clip)
    assert top_level_atoms(path) == ["ftyp", "moov", "free", "mdat"]
    assert [item.name for item in folder.iterdir()] == ["video.mp4"]


@pytest.mark.parametrize(
    "prompt",
    [
        "a;b=c#d\\e\nf\r\n\"g\" 'h' \\n 狐狸 🦊 \u2028 \x7f",
        "\\" * 50,
        "🦊" * MAX_PROMPT,
        "\x01" * MAX_PROMPT,
    ],
    ids=["separators", "backslashes", "longest", "longest escaped"],
)
def test_the_embedded_comment_comes_back_letter_by_letter(folder: Path, prompt: str) -> None:
    clip = replace(CLIP, comment=json.dumps({"prompt": prompt}, ensure_ascii=False))
    path = encoded(folder, clip)
    assert read_comment(Ffmpeg(), path) == clip.comment
    verify_video(Ffmpeg(), path, clip)


@pytest.mark.parametrize("frames", [22, 39, 56, 345])
def test_picture_and_sound_have_the_same_length(tmp_path: Path, frames: int) -> None:
    """Seconds of sound = frames / 24 to the nearest sample, before and after the encoder."""
    clip = replace(CLIP, width=32, height=32, frames=frames, samples=samples_for(frames))
    assert abs((clip.samples or 0) / 32_000 - frames / 24) < 1 / 32_000
    verify_video(Ffmpeg(), encoded(tmp_path, clip), clip)


@pytest.mark.parametrize(
    ("expected", "clause"),
    [
        (replace(CLIP, frames=23), "it should have 23 frames, found 22"),
        (replace(CLIP, samples=40_000), "its sound should have 40000 samples, found 29333"),
        (
            replace(CLIP, samples=None),
            "the sound should be absent, found ['aac (LC) 32000 Hz, stereo']",
        ),
        (replace(CLIP, width=32), "the picture should have a size of 32x96, found h264 "),
        (replace(CLIP, comment="{}"), "the embedded spec is not the one submitted"),
    ],
)
def test_a_video_that_is_not_as_expected_is_refused(
    tmp_path: Path, expected: Clip, clause: str
) -> None:
    path = encoded(tmp_path)
    with pytest.raises(MediaError) as caught:
        verify_video(Ffmpeg(), path, expected)
    assert str(caught.value).startswith(f"video.mp4 is not what was rendered: {clause}")


def rewritten(path: Path, *arguments: str) -> Path:
    """The video once more through ffmpeg, with other settings."""
    target = path.with_name("other.mp4")
    command = ["-v", "error", "-i", path.name, "-map_metadata", "0", *arguments, target.name]
    Ffmpeg().run("spoil the video", command, folder=path.parent)
    return target


@pytest.mark.parametrize(
    ("arguments", "clause"),
    [
        (["-c", "copy"], "its index is not in front of its data (found ftyp, free, mdat, moov)"),
        (["-r", "25", "-movflags", "+faststart"], "the picture should have a rate of 24 frames"),
        (["-c:v", "mpeg4", "-movflags", "+faststart"], "it should have one H.264 picture, found"),
        (
            ["-pix_fmt", "yuv444p", "-movflags", "+faststart"],
            "the picture should have yuv420p in limited-range BT.709, found",
        ),
        (
            ["-vf", "setparams=range=pc", "-movflags", "+faststart"],
            "the picture should have yuv420p in limited-range BT.709, found",
        ),
        (["-an", "-movflags", "+faststart"], "the sound should be ['aac (LC) 32000 Hz, stereo']"),
        (
            ["-ac", "1", "-movflags", "+faststart"],
            "the sound should be ['aac (LC) 32000 Hz, stereo']",
        ),
    ],
)
def test_a_video_of_another_kind_is_refused(
    tmp_path: Path, arguments: list[str], clause: str
) -> None:
    path = rewritten(encoded(tmp_path), *arguments)
    with pytest.raises(MediaError) as caught:
        verify_video(Ffmpeg(), path, CLIP)
    assert clause in str(caught.value)


def test_a_truncated_or_damaged_video_is_refused(tmp_path: Path) -> None:
    path = encoded(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(MediaError, match=r"a box at byte [0-9]+ passes its end"):
        verify_video(Ffmpeg(), path, CLIP)
    middle = whole.index(b"mdat") + 800
    path.write_bytes(whole[:middle] + bytes(400) + whole[middle + 400 :])
    with pytest.raises(MediaError, match=r"cannot read the video back|not what was rendered"):
        verify_video(Ffmpeg(), path, CLIP)


def decoded_frames(path: Path, frames: int) -> np.ndarray:
    """rgb24 of a picture file or folder pattern, [frames, 96, 64, 3]."""
    target = path.parent / "decoded.rgb"
    command = ["-v", "error", "-i", path.name, "-f", "rawvideo", "-pix_fmt", "rgb24", target.name]
    Ffmpeg().run("decode", command, folder=path.parent)
    return np.frombuffer(target.read_bytes(), np.uint8).reshape(frames, 96, 64, 3)


def test_png_frames_hold_exactly_the_pixels(folder: Path) -> None:
    made = folder / "frames"
    made.mkdir()
    write_frames(Ffmpeg(), CLIP, [picture(CLIP)], made)
    names = [f"{n:06d}.png" for n in range(1, 23)]
    assert sorted(path.name for path in made.iterdir()) == names
    want = np.frombuffer(picture(CLIP), np.uint8).reshape(22, 96, 64, 3)
    assert (decoded_frames(made / "000007.png", 1)[0] == want[6]).all()


def test_the_poster_shows_the_frame_in_its_colours(folder: Path) -> None:
    """A flat red frame stays red: the matrix written is the one that readers of JPEG assume."""
    red = np.full((96, 64, 3), (230, 40, 20), np.uint8)
    write_poster(Ffmpeg(), CLIP, red.tobytes(), folder / "poster.jpg")
    shutil.copy(folder / "poster.jpg", folder.parent / "poster.jpg")
    shown = decoded_frames(folder.parent / "poster.jpg", 1)[0].astype(int)
    assert np.abs(shown - red).max() <= 4
    assert (folder / "poster.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_the_video_keeps_its_colours(tmp_path: Path) -> None:
    """Decoded by the file's own tags, a flat colour is what it was to within 8-bit YUV."""
    flat = np.full((22, 96, 64, 3), (230, 40, 20), np.uint8)
    encode_video(
        Ffmpeg(), replace(CLIP, samples=None), [flat.tobytes()], None, tmp_path / "video.mp4"
    )
    assert np.abs(decoded_frames(tmp_path / "video.mp4", 22).astype(int) - flat).max() <= 4


# -- when ffmpeg fails -------------------------------------------------------------------------


def program(folder: Path, script: str) -> Path:
    """A stand-in for ffmpeg."""
    path = folder / "ffmpeg"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("script", "kind", "sentence"),
    [
        (
            'echo "av_interleaved_write_frame(): No space left on device" >&2; exit 228',
            DiskFull,
            "cannot encode the video: no space left on the disk",
        ),
        (
            'echo "Unknown encoder" >&2; exit 8',
            MediaError,
            "cannot encode the video: ffmpeg failed (8): Unknown encoder",
        ),
        (
            "kill -9 $$",
            MediaError,
            "cannot encode the video: ffmpeg was ended by SIGKILL",
        ),
        (
            "cat >/dev/null; exit 1",
            MediaError,
            "cannot encode the video: ffmpeg failed (1): it gave no reason",
        ),
        (  # a complaint larger than a pipe holds, while frames still come
            "head -c 300000 /dev/zero | tr '\\0' x >&2; cat >/dev/null; exit 3",
            MediaError,
            f"cannot encode the video: ffmpeg failed (3): {'x' * 600}",
        ),
    ],
    ids=["disk full", "refused", "killed", "silent", "talkative"],
)
def test_a_failing_ffmpeg_gives_its_reason(
    tmp_path: Path, script: str, kind: type[Exception], sentence: str
) -> None:
    ffmpeg = Ffmpeg(program(tmp_path, script))
    clip = replace(CLIP, samples=None)
    with pytest.raises(kind) as caught:
        encode_video(ffmpeg, clip, [picture(clip)] * 4, None, tmp_path / "video.mp4")
    assert str(caught.value) == sentence
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


def test_a_missing_ffmpeg_is_named(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"cannot start .*absent"):
        Ffmpeg(tmp_path / "absent").run("encode the video", [], folder=tmp_path)


def test_a_cancel_kills_ffmpeg_at_once(tmp_path: Path) -> None:
    """Fed without end, it ends because of the cancel alone; the process is gone afterwards."""
    pid_file = tmp_path / "pid"
    ffmpeg = Ffmpeg(program(tmp_path, f'echo $$ >"{pid_file}"; exec cat >/dev/null'))
    started = threading.Event()

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(1 << 16)
            if pid_file.exists() and pid_file.read_text().strip():
                started.set()

    def cancel() -> None:
        if started.wait(20):
            ffmpeg.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    clip = replace(CLIP, samples=None)
    with pytest.raises(Cancelled):
        encode_video(ffmpeg, clip, endless(), None, tmp_path / "video.mp4")
    thread.join(20)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    with pytest.raises(Cancelled):
        ffmpeg.run("go on", ["-version"], folder=tmp_path)
    ffmpeg.clear_cancel()
    with pytest.raises(MediaError):
        verify_video(ffmpeg, _empty_mp4(tmp_path), clip)


def _empty_mp4(folder: Path) -> Path:
    path = folder / "empty.mp4"
    path.write_bytes(struct.pack(">I4s", 8, b"moov") + struct.pack(">I4s", 8, b"mdat"))
    return path


def test_an_error_in_the_frames_ends_ffmpeg(tmp_path: Path) -> None:
    """Whoever makes the frames may fail: the error passes through and no process stays."""

    def failing() -> Iterator[bytes]:
        yield picture(CLIP)[:1000]
        raise RuntimeError("no more frames")

    ffmpeg = Ffmpeg()
    with pytest.raises(RuntimeError, match="no more frames"):
        encode_video(ffmpeg, replace(CLIP, samples=None), failing(), None, tmp_path / "video.mp4")
    assert ffmpeg._process is None
