"""Frames and sound in, mp4, poster and PNG files out: the only module that starts ffmpeg.

Files go by names relative to the folder that ffmpeg runs in, or behind `file:`, so that colons,
percent signs and leading dashes in a user's paths mean nothing to it.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import imageio_ffmpeg

from h3farm.engine.errors import Cancelled, DiskError, DiskFull, MediaError
from h3farm.engine.geometry import FPS, SAMPLE_RATE

AAC_FRAME = 1024  # samples; an encoder may round the sound's length up to whole frames
STDERR_TAIL = 600  # characters of ffmpeg's complaint that go into an error

# Limited-range BT.709, converted and tagged. The options -color_primaries and -color_trc alone do
# not reach the stream; setparams in the filter chain does.
TO_BT709 = (
    "scale=out_color_matrix=bt709:out_range=tv,"
    "setparams=color_primaries=bt709:color_trc=bt709:colorspace=bt709:range=tv,format=yuv420p"
)
# JPEG files carry no tags: readers assume full-range BT.601.
TO_JPEG = "scale=out_color_matrix=bt601:out_range=pc,format=yuvj420p"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """What goes into a video: rgb24 frames of one size at 24 frames a second.

    `samples` is the length of the sound per channel at 32 kHz, None when there is none. `comment`
    is stored in the file's metadata.
    """

    width: int
    height: int
    frames: int
    samples: int | None
    comment: str

    @property
    def frame_bytes(self) -> int:
        """Bytes of one rgb24 frame."""
        return self.width * self.height * 3


class Ffmpeg:
    """Starts ffmpeg, one at a time, and can stop it from another thread."""

    def __init__(self, program: Path | None = None) -> None:
        """`program` None: the one that comes with imageio-ffmpeg."""
        self._program = program
        # Re-entrant: a signal's handler may cancel in the thread that holds it.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Kill what runs and refuse what comes, until `clear_cancel`. From any thread."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def clear_cancel(self) -> None:
        """Allow work again."""
        with self._lock:
            self._cancelled = False

    @property
    def version(self) -> str:
        """As it calls itself: "n9.0.2-17-g2a571b6068"."""
        printed, _ = self.run("ask ffmpeg for its version", ["-version"], folder=Path.cwd())
        found = re.match(r"ffmpeg version (\S+)", printed)
        return found[1] if found else "unknown"

    def run(
        self, doing: str, arguments: list[str], *, folder: Path, feed: Iterable[bytes] = ()
    ) -> tuple[str, str]:
        """Run to the end and give what it printed on stdout and stderr.

        doing: what for, for errors ("encode the video"). feed: what it reads on stdin. Raises
        Cancelled, DiskFull when the disk was, MediaError otherwise, with the end of stderr.
        """
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complaints:
            process = self._start(doing, arguments, folder, printed.fileno(), complaints.fileno())
            try:
                _feed(process, feed)
                code = process.wait()
            finally:
                self._end(process)
            complaints.seek(0)
            stderr = complaints.read().decode("utf-8", "replace")
            if self._cancelled:
                raise Cancelled("the render was cancelled")
            if code != 0:
                raise _failure(doing, code, stderr)
            printed.seek(0)
            return printed.read().decode("utf-8"), stderr

    def _start(
        self, doing: str, arguments: list[str], folder: Path, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._cancelled:
                raise Cancelled("the render was cancelled")
            program = self._program or Path(imageio_ffmpeg.get_ffmpeg_exe())
            try:
                self._process = subprocess.Popen(
                    [str(program), "-hide_banner", "-nostdin", "-y", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=folder,
                    env=os.environ | {"LC_ALL": "C"},
                    start_new_session=True,  # a Ctrl-C is ours to pass on
                )
            except OSError as error:
                raise MediaError(f"cannot {doing}: cannot start {program}: {error}") from error
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Leave no process and no descriptor behind, whatever happened."""
        process.kill()
        process.wait()
        with self._lock:
            self._process = None


def _feed(process: subprocess.Popen[bytes], feed: Iterable[bytes]) -> None:
    """Write everything to stdin and close it; why a reader went away, its exit code tells."""
    stdin = cast(BinaryIO, process.stdin)
    with suppress(BrokenPipeError), stdin:
        for block in feed:
            stdin.write(block)


def _failure(doing: str, code: int, stderr: str) -> DiskError | MediaError:
    tail = stderr.strip()[-STDERR_TAIL:]
    if any(os.strerror(number) in stderr for number in (errno.ENOSPC, errno.EDQUOT)):
        return DiskFull(f"cannot {doing}: no space left on the disk")
    if code < 0:
        reason = f"ffmpeg was ended by {signal.Signals(-code).name}"
        return MediaError(f"cannot {doing}: {reason}{': ' if tail else ''}{tail}")
    return MediaError(f"cannot {doing}: ffmpeg failed ({code}): {tail or 'it gave no reason'}")


def encode_video(
    ffmpeg: Ffmpeg,
    clip: Clip,
    frames: Iterable[bytes],
    sound: Path | None,
    target: Path,
) -> None:
    """Encode H.264 (yuv420p, limited-range BT.709) and AAC into the mp4 `target`, moov first.

    frames: rgb24 bytes of clip.frames frames in blocks of any size. sound: a file of interleaved
    little-endian f32 stereo samples, clip.samples of them per channel; None when clip.samples is.
    """
    folder = target.parent
    described = folder / f".{target.name}.metadata"
    described.write_text(_ffmetadata(clip.comment), encoding="utf-8")
    sound_input = [] if sound is None else [*_raw_sound(), "-i", _file(sound)]
    sound_output = [] if sound is None else ["-map", "1:a", "-c:a", "aac", "-b:a", "192k"]
    metadata_input = 1 if sound is None else 2
    try:
        ffmpeg.run(
            "encode the video",
            [
                *("-v", "error"),
                *(*_raw_video(clip), "-i", "pipe:0"),
                *sound_input,
                *("-f", "ffmetadata", "-i", _file(described)),
                *("-map", "0:v", *sound_output, "-map_metadata", str(metadata_input)),
                *("-vf", TO_BT709, "-c:v", "libx264", "-preset", "medium", "-crf", "18"),
                *("-movflags", "+faststart", "-f", "mp4", _file(target)),
            ],
            folder=folder,
            feed=frames,
        )
    finally:
        described.unlink(missing_ok=True)


def write_poster(ffmpeg: Ffmpeg, clip: Clip, frame: bytes, target: Path) -> None:
    """Write one rgb24 frame as a JPEG file."""
    ffmpeg.run(
        "write the poster",
        [
            *("-v", "error", *_raw_video(clip), "-i", "pipe:0"),
            *("-vf", TO_JPEG, "-frames:v", "1", "-q:v", "2"),
            *("-f", "image2", "-update", "1", f"file:{target.name}"),
        ],
        folder=target.parent,
        feed=(frame,),
    )


def write_frames(ffmpeg: Ffmpeg, clip: Clip, frames: Iterable[bytes], folder: Path) -> None:
    """Write rgb24 frames as 000001.png, 000002.png, ... into `folder`, which exists."""
    ffmpeg.run(
        "write the frames",
        [
            *("-v", "error", *_raw_video(clip), "-i", "pipe:0"),
            *("-f", "image2", "-c:v", "png", "%06d.png"),
        ],
        folder=folder,
        feed=frames,
    )


def verify_video(ffmpeg: Ffmpeg, path: Path, clip: Clip) -> None:
    """Read a finished mp4 back, to its last frame; MediaError names what is not as in `clip`."""
    if wrong := list(_differences(ffmpeg, path, clip)):
        raise MediaError(f"{path.name} is not what was rendered: {'; '.join(wrong)}")


def _differences(ffmpeg: Ffmpeg, path: Path, clip: Clip) -> Iterator[str]:
    """A clause for each thing that is wrong with the file; cheap looks come before the decoding."""
    atoms = top_level_atoms(path)
    if "moov" not in atoms or "mdat" not in atoms or atoms.index("moov") > atoms.index("mdat"):
        yield f"its index is not in front of its data (found {', '.join(atoms)})"
    metadata, description = ffmpeg.run(
        "read the video back",
        ["-v", "info", "-i", _file(path), "-f", "ffmetadata", "pipe:1"],
        folder=path.parent,
    )
    if _comment(metadata) != clip.comment:
        yield "the embedded spec is not the one submitted"
    yield from _wrong_streams(description, clip)
    yield from _wrong_length(_decode(ffmpeg, path), clip)


def _wrong_streams(description: str, clip: Clip) -> Iterator[str]:
    """What ffmpeg says of the streams ("Stream #0:0...: Video: h264 (High) ..., 24 fps, ...")."""
    video = re.findall(r"^  Stream #.*: Video: (.*)$", description, re.MULTILINE)
    sound = re.findall(r"^  Stream #.*: Audio: (.*)$", description, re.MULTILINE)
    if len(video) != 1 or not video[0].startswith("h264"):
        yield f"it should have one H.264 picture, found {video}"
        return
    for what, pattern in (
        ("yuv420p in limited-range BT.709", r"yuv420p\(tv, bt709[,)]"),
        (f"a size of {clip.width}x{clip.height}", rf" {clip.width}x{clip.height}\b"),
        (f"a rate of {FPS} frames a second", rf" {FPS} fps\b"),
    ):
        if not re.search(pattern, video[0]):
            yield f"the picture should have {what}, found {video[0]}"
    wanted = [] if clip.samples is None else [f"aac (LC) {SAMPLE_RATE} Hz, stereo"]
    found = [re.sub(r"^(aac \(LC\)).*?(\d+ Hz, \w+).*", r"\1 \2", text) for text in sound]
    if found != wanted:
        yield f"the sound should be {wanted or 'absent'}, found {found or 'none'}"


def _wrong_length(decoded: dict[str, list[tuple[int, int]]], clip: Clip) -> Iterator[str]:
    times = [start for start, _ in decoded.get("video", [])]
    if len(times) != clip.frames:
        yield f"it should have {clip.frames} frames, found {len(times)}"
    elif times != list(range(clip.frames)):
        yield "its frames are not evenly spaced"
    samples = sum(length for _, length in decoded.get("audio", []))
    if clip.samples is not None and abs(samples - clip.samples) > AAC_FRAME:
        yield f"its sound should have {clip.samples} samples, found {samples}"


def _decode(ffmpeg: Ffmpeg, path: Path) -> dict[str, list[tuple[int, int]]]:
    """Decode everything: (start, length) of each frame of picture and sound, in their own units.

    The framecrc format prints "#media_type 0: video" for a stream and then, for each frame,
    "stream, dts, pts, duration, bytes, checksum".
    """
    printed, _ = ffmpeg.run(
        "read the video back",
        [
            *("-v", "error", "-xerror", "-err_detect", "explode", "-i", _file(path)),
            *(
                "-map",
                "0:v?",
                "-map",
                "0:a?",
                "-fps_mode",
                "passthrough",
                "-f",
                "framecrc",
                "pipe:1",
            ),
        ],
        folder=path.parent,
    )
    kinds = dict(re.findall(r"^#media_type (\d+): (\w+)$", printed, re.MULTILINE))
    decoded: dict[str, list[tuple[int, int]]] = {kind: [] for kind in kinds.values()}
    for line in printed.splitlines():
        if not line.startswith("#"):
            stream, _, pts, duration, *_ = (part.strip() for part in line.split(","))
            decoded[kinds[stream]].append((int(pts), int(duration)))
    return decoded


def top_level_atoms(path: Path) -> list[str]:
    """The names of an mp4 file's outermost boxes, in order. MediaError when they do not add up."""
    names = []
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        position = 0
        while position < end:
            file.seek(position)
            head = file.read(16)
            size = int.from_bytes(head[:4], "big")
            if size == 1:
                size = int.from_bytes(head[8:16], "big")
            if size < 8 or position + size > end:
                raise MediaError(f"{path.name} is damaged: a box at byte {position} passes its end")
            names.append(head[4:8].decode("latin-1"))
            position += size
    return names


def read_comment(ffmpeg: Ffmpeg, path: Path) -> str:
    """The comment in a file's metadata, "" when it has none: the spec, in a video of ours."""
    metadata, _ = ffmpeg.run(
        "read the video's metadata",
        ["-v", "error", "-i", _file(path), "-f", "ffmetadata", "pipe:1"],
        folder=path.parent,
    )
    return _comment(metadata)


def _ffmetadata(comment: str) -> str:
    """The file form of metadata: the command line has a limit of 128 KiB an argument on Linux."""
    escaped = re.sub(r"([=;#\\\n])", r"\\\1", comment)
    return f";FFMETADATA1\ncomment={escaped}\n"


def _comment(metadata: str) -> str:
    found = re.search(r"^comment=((?:\\.|[^\\\n])*)$", metadata, re.MULTILINE | re.DOTALL)
    return re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL) if found else ""


def _raw_video(clip: Clip) -> list[str]:
    size = f"{clip.width}x{clip.height}"
    return ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(FPS)]


def _raw_sound() -> list[str]:
    return ["-f", "f32le", "-ar", str(SAMPLE_RATE), "-ch_layout", "stereo"]


def _file(path: Path) -> str:
    return f"file:{path.absolute()}"
