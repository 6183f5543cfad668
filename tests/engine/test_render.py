"""Whole renders of the tiny checkpoint: what comes out, what is left when they end early."""

import contextlib
import hashlib
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from h3farm.engine._native import VideoVae
from h3farm.engine.errors import (
    Cancelled,
    CheckpointError,
    DiskError,
    DiskFull,
    EngineError,
    MediaError,
    MemoryShort,
    NumericError,
    OutOfMemory,
)
from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.engine.media import Ffmpeg, read_comment
from h3farm.engine.progress import PHASES, Progress
from h3farm.engine.render import Engine, RenderResult, in_thread
from h3farm.engine.safetensors import read_header
from h3farm.engine.spec import RenderSpec

pytestmark = pytest.mark.slow  # whole renders and encodings

TINY = Path(__file__).parent.parent / "golden" / "tiny-h3"
PROMPT = "A fox ‹S1› says <b>hi</b>\nand goes – 狐狸 \"'=;#\\"


def spec(**changes: Any) -> RenderSpec:
    base = {
        "prompt": PROMPT,
        "model": "tiny-h3",
        "width": 96,
        "height": 64,
        "frames": 22,
        "steps": 2,
        "seed": 7,
    }
    return RenderSpec.from_json(base | changes)


Render = Callable[..., RenderResult]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(threads=1) as opened:
        yield opened


@pytest.fixture
def render(engine: Engine, tmp_path: Path) -> Render:
    def run(wanted: RenderSpec | None = None, model: Path = TINY, **options: Any) -> RenderResult:
        return engine.render(
            wanted or spec(),
            model=model,
            outputs=tmp_path / "outputs",
            work=tmp_path / "work",
            **options,
        )

    return run


def leftovers(folder: Path) -> list[str]:
    """Everything that an unsuccessful render left below the test's folder."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def frames_of(result: RenderResult) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((result.folder / "frames").iterdir()))


def test_a_render_leaves_video_poster_sidecar_and_log(render: Render) -> None:
    result = render(job_id="1130-1842-3f2a")
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "log.txt",
        "poster.jpg",
        "render.json",
        "video.mp4",
    ]
    record = json.loads(result.sidecar.read_text(encoding="utf-8"))
    assert RenderSpec.from_json(record["spec"]) == spec()
    assert record["job_id"] == "1130-1842-3f2a"
    assert record["resolved"]["frames"] == 22
    assert len(record["resolved"]["video_sigmas"]) == 3
    assert sorted(record["timings"]) == sorted(PHASES)
    assert record["resolved"]["audio_samples"] == round(22 / 24 * 32_000)
    assert record["resolved"]["audio_samples_decoded"] == 37 * 800
    assert record["warnings"][: len(spec().warnings())] == list(spec().warnings())
    assert re.search(r"\d+\.\d+", record["versions"]["ffmpeg"])
    assert "step 2 of 2" in (result.folder / "log.txt").read_text(encoding="utf-8")


def test_the_sidecar_tells_a_model_from_any_other(render: Render) -> None:
    """Small files by their sha256, weights by the sha256 of their header."""
    record = json.loads(render().sidecar.read_text(encoding="utf-8"))["model"]
    assert (record["name"], record["layout"]) == ("tiny-h3", "official")
    files = {item["file"]: item for item in record["files"]}
    config = (TINY / "FL2VA" / "transformer" / "config.json").read_bytes()
    assert files["transformer/config.json"] == {
        "file": "transformer/config.json",
        "bytes": len(config),
        "sha256": hashlib.sha256(config).hexdigest(),
    }
    assert "tokenizer/tokenizer.json" in files
    weights = [name for name in files if name.endswith(".safetensors")]
    assert len(weights) == 6
    assert all(len(files[name]["header_sha256"]) == 64 for name in weights)


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        (Limits(one_network=True), ["one network at a time"]),
        (Limits(one_network=True, threads=2), ["2 threads", "one network at a time"]),
    ],
)
def test_limits_change_no_bit_and_stand_in_the_sidecar(
    render: Render, limits: Limits, names: list[str]
) -> None:
    kept = spec(keep_frames=True, keep_latents=True)
    plain, limited = render(kept), render(kept, limits=limits)
    assert frames_of(limited) == frames_of(plain)
    latents = [(each.folder / "latents.safetensors").read_bytes() for each in (plain, limited)]
    assert latents[0] == latents[1]
    record = json.loads(limited.sidecar.read_text(encoding="utf-8"))["engine"]
    assert record["limits"] == names
    assert record["threads"] == (limits.threads or 1)
    again = json.loads(render(kept).sidecar.read_text(encoding="utf-8"))["engine"]
    assert (again["limits"], again["threads"]) == ([], 1)


def test_a_seed_of_minus_one_is_drawn_and_recorded(render: Render) -> None:
    record = json.loads(render(spec(seed=-1)).sidecar.read_text(encoding="utf-8"))
    assert 0 <= record["spec"]["seed"] < 2**32


def test_the_same_job_twice_overwrites_nothing(render: Render) -> None:
    first, second = (render(job_id="1130-1842-3f2a") for _ in range(2))
    assert first.folder != second.folder
    assert first.video.exists()


def test_the_video_carries_the_spec_that_made_it(render: Render) -> None:
    comment = read_comment(Ffmpeg(), render().video)
    assert RenderSpec.from_json(json.loads(comment)) == spec()


def test_the_same_spec_gives_the_same_frames_with_any_number_of_threads(
    render: Render, tmp_path: Path
) -> None:
    """Bit for bit: work is split by shape, never by thread count."""
    first = frames_of(render(spec(keep_frames=True)))
    with Engine(threads=2) as other:
        again = other.render(
            spec(keep_frames=True),
            model=TINY,
            outputs=tmp_path / "outputs",
            work=tmp_path / "work2",
        )
    assert frames_of(again) == first


def test_another_prompt_or_seed_gives_other_frames(render: Render) -> None:
    base = frames_of(render(spec(keep_frames=True)))
    assert frames_of(render(spec(keep_frames=True, seed=8))) != base
    assert frames_of(render(spec(keep_frames=True, prompt="waves"))) != base


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The F32 and U8 tensors of a safetensors file."""
    data = path.read_bytes()
    found = {}
    for name, entry in read_header(path).items():
        if entry.dtype in ("F32", "U8"):
            kind = np.float32 if entry.dtype == "F32" else np.uint8
            found[name] = np.frombuffer(data[entry.start : entry.end], kind).reshape(entry.shape)
    return found


class GivenNoise:
    """The draws of a golden case in place of a seed's."""

    def __init__(self, draws: list[np.ndarray]) -> None:
        self._draws = draws

    @contextlib.contextmanager
    def opened(self, context: object, seed: int) -> Iterator["GivenNoise"]:
        yield self

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        drawn = self._draws.pop(0)
        assert drawn.shape == shape
        return drawn


def test_a_render_is_the_references_render(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From prompt and noise to latents and frames, within the tolerances of the golden case.

    The manifest counts grid points: its 8 are 7 steps. The picture's noise is drawn first.
    """
    golden = TINY.parent
    cases = json.loads((golden / "manifest.json").read_text(encoding="utf-8"))["cases"]
    (case,) = [c for c in cases if (c["stage"], c["name"]) == ("end_to_end", "t2va")]
    config, want = case["config"], tensors(golden / case["file"])
    audio_rows = want["t2va/audio_noise"].transpose(0, 2, 1).reshape(-1, 4).copy()
    noise = GivenNoise([want["t2va/video_noise"].copy(), audio_rows])
    monkeypatch.setattr("h3farm.engine._phases.Noise", noise.opened)
    fields = {name: config[name] for name in ("prompt", "width", "height", "frames")}
    result = render(spec(**fields, steps=config["steps"] - 1, keep_latents=True, keep_frames=True))
    kept = tensors(result.folder / "latents.safetensors")
    for ours, name in (("video", "final_latent"), ("audio", "final_audio_latent")):
        difference = np.abs(kept[ours] - want[f"t2va/{name}"]).max()
        assert difference <= case["outputs"][name]["atol"], name
    decode = ["-v", "error", "-i", "%06d.png", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    raw = tmp_path / "frames.rgb"
    Ffmpeg().run("decode", [*decode, str(raw)], folder=result.folder / "frames")
    frames = np.frombuffer(raw.read_bytes(), np.uint8).reshape(want["t2va/frames"].shape)
    assert np.abs(frames.astype(int) - want["t2va/frames"]).max() <= 1


def test_the_model_stays_open_between_renders(render: Render, engine: Engine) -> None:
    render()
    render(spec(prompt="waves"))
    assert engine.models_opened == 1


def test_another_model_takes_the_place_of_the_open_one(
    render: Render, engine: Engine, tmp_path: Path
) -> None:
    other = tmp_path / "models" / "wörk dir"
    shutil.copytree(TINY, other)
    render()
    render(model=other)
    render(model=other)
    assert engine.models_opened == 2


def test_a_model_whose_weights_were_replaced_is_opened_again(
    render: Render, engine: Engine, tmp_path: Path
) -> None:
    """What is mapped would be the old file, what the sidecar names the new one."""
    model = tmp_path / "models" / "FL2VA"
    shutil.copytree(TINY / "FL2VA", model)
    render(model=model)
    weights = model / "audio_vae" / "model.safetensors"
    replaced = weights.with_name("new")
    replaced.write_bytes(weights.read_bytes())
    replaced.replace(weights)
    render(model=model)
    assert engine.models_opened == 2


def test_sound_can_be_left_out(render: Render) -> None:
    result = render(spec(audio=False))
    record = json.loads(result.sidecar.read_text(encoding="utf-8"))
    assert record["resolved"]["audio_samples"] is None
    assert result.video.exists()


def test_kept_latents_are_in_a_file_of_their_own(render: Render) -> None:
    result = render(spec(keep_latents=True))
    data = (result.folder / "latents.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header["video"]["shape"] == [8, 7, 4, 6]
    assert header["audio"]["shape"] == [2, 4, 37]
    assert header["__metadata__"]["spec_hash"] == spec(keep_latents=True).hash


@pytest.mark.parametrize("keep_frames", [False, True])
def test_progress_goes_through_the_phases_and_never_back(render: Render, keep_frames: bool) -> None:
    seen: list[Progress] = []
    render(spec(keep_frames=keep_frames), on_progress=seen.append)
    places = [(PHASES.index(item.phase), item.step, item.block) for item in seen]
    assert places == sorted(places)
    assert {item.phase for item in seen} == set(PHASES)
    assert max(item.step for item in seen if item.phase == "denoise") == 2
    assert [item.elapsed_s for item in seen] == sorted(item.elapsed_s for item in seen)
    assert all(item.step <= item.steps or not item.steps for item in seen)
    assert seen[-1].step == seen[-1].steps
    assert seen[0].remaining_s is None
    assert seen[-1].remaining_s is not None


@pytest.mark.parametrize("phase", PHASES)
def test_cancel_in_any_phase_leaves_nothing(
    phase: str, render: Render, engine: Engine, tmp_path: Path
) -> None:
    def cancel(progress: Progress) -> None:
        if progress.phase == phase:
            other = threading.Thread(target=engine.cancel)
            other.start()
            other.join()

    with pytest.raises(Cancelled):
        render(on_progress=cancel)
    assert leftovers(tmp_path) == []
    assert render().video.exists(), "the engine renders the next job"


def refuse_work(progress: Progress) -> None:
    assert progress.phase == "check", "the render went on"


def test_an_outputs_folder_that_is_none_is_said_before_the_work(
    engine: Engine, tmp_path: Path
) -> None:
    """Not when the video is to appear, hours later."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "else")
    for outputs in (tmp_path / "file", tmp_path / "link", tmp_path / ("x" * 300)):
        with pytest.raises(DiskError, match="cannot write into"):
            engine.render(
                spec(),
                model=TINY,
                outputs=outputs,
                work=tmp_path / "work",
                on_progress=refuse_work,
            )


def test_a_missing_ffmpeg_is_said_before_the_work(tmp_path: Path) -> None:
    with (
        Engine(threads=1, ffmpeg=Ffmpeg(tmp_path / "ffmpeg")) as engine,
        pytest.raises(MediaError, match=r"cannot start .*No such file"),
    ):
        engine.render(
            spec(),
            model=TINY,
            outputs=tmp_path / "outputs",
            work=tmp_path / "work",
            on_progress=refuse_work,
        )


@pytest.mark.parametrize("shift", [0.01, 0.3, 100.0])
def test_every_shift_that_a_spec_allows_renders(render: Render, shift: float) -> None:
    """Below 0.5 the first sigma is above 1 by a rounding, as in the reference."""
    assert render(spec(video_shift=shift, audio_shift=shift, steps=4)).video.exists()


def test_cancel_without_a_render_does_not_hit_the_next_one(render: Render, engine: Engine) -> None:
    engine.cancel()
    assert render().video.exists()


def test_what_the_progress_callback_raises_ends_the_render(render: Render, tmp_path: Path) -> None:
    def refuse(progress: Progress) -> None:
        if progress.phase == "denoise":
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        render(on_progress=refuse)
    assert leftovers(tmp_path) == []
    assert render().video.exists()


class Small(Machine):
    """A machine with little of something."""

    def __init__(self, *, memory: int = 1 << 40, free: int = 1 << 40, disk: int = 1 << 40) -> None:
        self._memory, self._free, self._disk = memory, free, disk

    def total_memory(self) -> int:
        return self._memory

    def available_memory(self) -> int:
        return self._free

    def free_disk(self, folder: Path) -> tuple[int, int]:
        return 0, self._disk


@pytest.mark.parametrize(
    ("machine", "error", "sentence"),
    [
        (Small(memory=1000), OutOfMemory, r"needs .* GB of memory .* in all: choose a smaller"),
        (Small(free=1000), MemoryShort, r"needs .* GB of memory .* 0\.0 GB are free now: close"),
        (Small(disk=1000), DiskFull, r"needs .* MB of disk at .*, and 0\.0 MB are free"),
    ],
)
def test_what_the_machine_lacks_is_said_before_the_work(
    machine: Machine, error: type[EngineError], sentence: str, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    with (
        Engine(threads=1, machine=machine) as engine,
        pytest.raises(error, match=sentence) as caught,
    ):
        engine.render(
            spec(),
            model=TINY,
            outputs=tmp_path / "out",
            work=tmp_path / "work",
            on_progress=seen.append,
        )
    assert type(caught.value) is error
    assert {progress.phase for progress in seen} == {"check"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("filled", "reached"), [("denoise", "denoise"), ("decode_video", "decode_audio")]
)
def test_a_disk_that_fills_meanwhile_is_noticed_before_the_next_phase_writes(
    filled: str, reached: str, tmp_path: Path
) -> None:
    machine, seen = Small(), []

    def follow(now: Progress) -> None:
        seen.append(now.phase)
        if now.phase == filled:
            machine._disk = 1000

    with Engine(threads=1, machine=machine) as engine, pytest.raises(DiskFull, match="of disk at"):
        engine.render(
            spec(),
            model=TINY,
            outputs=tmp_path / "out",
            work=tmp_path / "work",
            on_progress=follow,
        )
    assert seen[-1] == reached


def test_an_array_that_finds_no_memory_is_want_of_memory_too(
    render: Render, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not only the C engine allocates."""

    def refuse(*_: object) -> None:
        raise MemoryError("Unable to allocate 60.0 MiB for an array")

    monkeypatch.setattr(VideoVae, "new_carry", refuse)
    with pytest.raises(OutOfMemory, match="does not suffice: Unable to allocate 60"):
        render()
    monkeypatch.undo()
    assert render().video.exists()


def test_a_model_that_is_no_model_is_named(render: Render, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty: no model here"):
        render(model=tmp_path / "empty")


def copy_with_nan(target: Path, tensor: str) -> Path:
    """The tiny model with the first weight of a tensor not a number."""
    shutil.copytree(TINY / "FL2VA", target)
    for path in sorted((target / "transformer").glob("*.safetensors")):
        if entry := read_header(path).get(tensor):
            data = bytearray(path.read_bytes())
            data[entry.start : entry.start + 4] = np.float32(np.nan).tobytes()
            path.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        ("blocks.1.mlp.fc2.weight", "step 1 of 2: NaN or infinity after transformer block 1"),
        ("final_layer.audio_out.weight", "step 1 of 2: NaN or infinity in the predicted velocity"),
        ("final_layer.video_out.weight", "step 1 of 2: NaN or infinity in the predicted velocity"),
    ],
)
def test_not_a_number_in_the_weights_stops_the_render_by_name(
    tensor: str, sentence: str, render: Render, tmp_path: Path
) -> None:
    model = copy_with_nan(tmp_path / "nan" / "FL2VA", tensor)
    with pytest.raises(NumericError, match=sentence):
        render(model=model)
    assert leftovers(tmp_path / "outputs") == []
    assert leftovers(tmp_path / "work") == []


def test_a_video_that_does_not_read_back_as_rendered_does_not_appear(tmp_path: Path) -> None:
    """An encoder that drops frames without a word: the job is not done."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        f"""#!{sys.executable}
import os, sys
arguments = sys.argv[1:]
if "libx264" in arguments:
    place = arguments.index("-c:v")
    arguments[place:place] = ["-frames:v", "20"]
os.execv({imageio_ffmpeg.get_ffmpeg_exe()!r}, ["ffmpeg", *arguments])
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    with (
        Engine(threads=1, ffmpeg=Ffmpeg(program)) as engine,
        pytest.raises(MediaError, match="it should have 22 frames, found 20"),
    ):
        engine.render(spec(), model=TINY, outputs=tmp_path / "outputs", work=tmp_path / "work")
    assert leftovers(tmp_path) == ["ffmpeg"]


@pytest.mark.parametrize(
    ("script", "error", "reason"),
    [
        ("cat >/dev/null; echo 'no such codec' >&2; exit 3", MediaError, "no such codec"),
        ("head -c 9 >video.mp4; kill -9 $$", MediaError, "ended by SIGKILL"),
        ("echo 'No space left on device' >&2; exit 228", DiskFull, "no space left on the disk"),
    ],
    ids=["refused", "killed", "disk full"],
)
def test_an_ffmpeg_that_fails_leaves_no_output(
    script: str, error: type[EngineError], reason: str, tmp_path: Path
) -> None:
    program = tmp_path / "ffmpeg"
    checked_first = 'case "$*" in *-version) exit 0;; esac'
    program.write_text(f"#!/bin/sh\n{checked_first}\n{script}\n")
    program.chmod(0o755)
    with (
        Engine(threads=1, ffmpeg=Ffmpeg(program)) as engine,
        pytest.raises(error, match=reason),
    ):
        engine.render(spec(), model=TINY, outputs=tmp_path / "outputs", work=tmp_path / "work")
    assert leftovers(tmp_path) == ["ffmpeg"]


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_while_waiting_ends_the_work_first(interrupts: int) -> None:
    """Ctrl-C, and an impatient second one, arrive in the main thread: both wait for the work."""
    main = threading.main_thread().ident
    told, never, ended = threading.Event(), threading.Event(), threading.Event()
    assert main is not None

    def work() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        assert told.wait(10)
        for _ in range(interrupts - 1):
            signal.pthread_kill(main, signal.SIGINT)
        never.wait(0.3)  # the rest of a tile
        ended.set()
        raise Cancelled("stopped")

    with pytest.raises(KeyboardInterrupt):
        in_thread(work, on_interrupt=told.set)
    assert ended.is_set()


def test_closing_beside_a_render_that_was_left_behind_frees_nothing(tmp_path: Path) -> None:
    """The worker's last resort: the process ends while the engine computes."""
    engine, stages, errors = Engine(threads=1), threading.Event(), []

    def left_behind() -> None:
        try:
            engine.render(
                spec(frames=345, steps=200),
                model=TINY,
                outputs=tmp_path / "outputs",
                work=tmp_path / "work",
                on_progress=lambda now: stages.set() if now.phase == "denoise" else None,
            )
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=left_behind)
    thread.start()
    assert stages.wait(30)
    engine.close()
    engine.cancel()
    thread.join(30)
    engine.close()
    assert len(errors) == 1


LONG_RENDER = """
import sys
from pathlib import Path
from h3farm.engine.render import Engine
from h3farm.engine.spec import RenderSpec

folder, model = Path(sys.argv[1]), Path(sys.argv[2])
spec = RenderSpec(prompt="fox", model="tiny-h3", width=256, height=256, frames=345, steps=200)
with Engine(threads=1) as engine:
    engine.render(
        spec, model=model, outputs=folder / "outputs", work=folder / "work",
        on_progress=lambda progress: print(progress.phase, flush=True),
    )
"""


def test_ctrl_c_ends_a_render_and_leaves_nothing(tmp_path: Path) -> None:
    """The signal's handler runs in the main thread at once, in the midst of a step."""
    with subprocess.Popen(
        [sys.executable, "-c", LONG_RENDER, str(tmp_path), str(TINY)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.strip() == "denoise":
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
        complaint = process.stderr.read()
        process.wait(30)
    assert complaint.strip().endswith("KeyboardInterrupt")
    assert leftovers(tmp_path) == []


def test_the_work_folder_goes_when_the_render_is_done(render: Render, tmp_path: Path) -> None:
    render()
    assert not (tmp_path / "work").exists()


def test_a_work_folder_that_holds_something_else_stays(render: Render, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.txt").write_text("kept", encoding="utf-8")
    render()
    assert leftovers(tmp_path / "work") == ["mine.txt"]
