"""The phases of a render: check, encode, denoise, decode, assemble.

Each takes what the one before left; between decoding and assembling that is on disk (raw frames
and sound in the job's work folder), so that memory does not grow with the length of the video.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3farm.engine import _sidecar, _sound, media, packing
from h3farm.engine._checks import check_disk, check_memory, check_outputs
from h3farm.engine._estimate import Estimate
from h3farm.engine._latents import Latents, denormalised
from h3farm.engine._native import Context, Noise, euler_step, pixels_to_rgb, sigmas, version
from h3farm.engine.durable import disk_errors, write_durably
from h3farm.engine.embeddings import Embeddings, key_of
from h3farm.engine.errors import Cancelled, NumericError
from h3farm.engine.geometry import (
    AUDIO_CHANNELS,
    FPS,
    audio_latents,
    latent_size,
    samples_for,
    video_latents,
)
from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.engine.media import Clip, Ffmpeg
from h3farm.engine.model import Model
from h3farm.engine.output import OutputFolder, write_latents
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec

READ_BYTES = 8 << 20  # of the raw frames at once, on their way into ffmpeg
Floats = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One render: what is wanted, and where it goes. The spec's seed is drawn.

    ahead: prompts of renders that come next, to be encoded along when memory is short.
    """

    spec: RenderSpec
    outputs: Path
    work: Path
    job_id: str
    started: datetime
    on_progress: Callable[[Progress], None]
    limits: Limits
    embeddings: Embeddings | None
    ahead: Sequence[str]
    estimate: Callable[[Model, int, float], Estimate]  # of model, prompt's tokens, monotonic start


@dataclass(slots=True)
class Clock:
    """Seconds by phase, from the monotonic clock."""

    timings: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Since the render began."""
        return time.monotonic() - self.begun

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.timings[name] = round(time.monotonic() - start, 3)


def render_job(
    job: Job,
    *,
    open_model: Callable[[], Model],
    context: Context,
    ffmpeg: Ffmpeg,
    machine: Machine,
) -> dict[str, Any]:
    """All phases; the fields of a RenderResult."""
    render = _Render(job, context, ffmpeg, machine)
    try:
        return render.run(open_model)
    finally:
        context.on_progress(None)
        shutil.rmtree(render.work, ignore_errors=True)
        with suppress(OSError):  # not empty: something in it is the caller's
            job.work.rmdir()


class _Render:
    """One render on its way."""

    def __init__(self, job: Job, context: Context, ffmpeg: Ffmpeg, machine: Machine) -> None:
        self.job = job
        self.spec = job.spec
        self.context = context
        self.ffmpeg = ffmpeg
        self.machine = machine
        self.clock = Clock()
        self.work = job.work / "render"
        self.latent = (video_latents(self.spec.frames), *latent_size(*self._canvas()))
        self.samples = samples_for(self.spec.frames) if self.spec.audio else None
        self.grids: tuple[Floats, Floats] = (np.empty(0, np.float32), np.empty(0, np.float32))
        self.log: list[str] = []
        self.estimate: Estimate | None = None
        self.said: dict[str, Any] = {}
        self.decoded_samples: int | None = None
        self.warnings: list[str] = []
        self.ffmpeg_version = ""
        self.saved = {"opens": 0, "bytes": 0}

    def _note(self, text: str) -> None:
        """A line of the render's own log, which goes into its output folder."""
        logger.info("%s: %s", self.job.job_id, text)
        self.log.append(f"{self.clock.elapsed_s:9.2f} s  {text}\n")

    def _summary(self) -> str:
        """What is rendered with what, for a log that is read without the sidecar."""
        spec, tree = self.spec, self.model.tree
        return (
            f"{spec.width}x{spec.height}, {spec.frames} frames, {spec.steps} steps, "
            f"seed {spec.seed}; model {tree.name} ({tree.layout} layout); "
            f"engine {version()}, {self.context.isa}, {self.context.threads} threads"
        )

    def _canvas(self) -> tuple[int, int]:
        return self.spec.width, self.spec.height

    def run(self, open_model: Callable[[], Model]) -> dict[str, Any]:
        """Check, then encode, denoise, decode and assemble."""
        with self.clock.phase("check"):
            self._report("check")
            self.model = open_model()
            self.ids, _ = self.model.tokenizer.present(self.spec.prompt)
            self._note(self._summary())
            networks = self.model.networks
            self.estimate = self.job.estimate(self.model, len(self.ids), self.clock.begun)
            self.said = self.estimate.whole.to_json()
            self._note(check_memory(self.machine, networks, self.spec, len(self.ids)))
            self.ffmpeg_version = self.ffmpeg.version
            check_outputs(self.job.outputs)
            self._check_disk()
            with disk_errors(f"cannot write into {self.work}"):
                self.work.mkdir(parents=True, exist_ok=True)
        with self.clock.phase("encode"):
            text = self._encode()
        with self.clock.phase("denoise"):
            latents = self._denoise(text)
        self._check_disk()
        with self.clock.phase("decode_video"):
            self._decode_video(latents)
        with self.clock.phase("decode_audio"):
            self._decode_audio(latents)
        self._check_disk()
        return self._assemble(latents)

    def _check_disk(self) -> None:
        """Before the phases that write much: the hours of denoising are long enough to fill it."""
        check_disk(self.machine, self.spec, work=self.work, outputs=self.job.outputs)

    # ---- progress and cancel ----

    def _report(
        self, phase: str, step: int = 0, steps: int = 0, block: int = 0, blocks: int = 0
    ) -> None:
        """Tell the caller, and look whether it has had enough."""
        if self.context.cancelled:
            raise Cancelled("the render was cancelled")
        elapsed = self.clock.elapsed_s
        left = self.estimate.at(phase, step, steps, block, blocks) if self.estimate else None
        self.job.on_progress(
            Progress(
                phase=phase,
                step=step,
                steps=steps,
                block=block,
                blocks=blocks,
                elapsed_s=round(elapsed, 3),
                remaining_s=left.p50_s if left else None,
                remaining_p90_s=left.p90_s if left else None,
                unit_p90_s=self.estimate.unit_p90_s if self.estimate else None,
            )
        )

    def _follow(self, phase: str, step: int = 0, steps: int = 0) -> None:
        """Report from inside the next C call; blocks are layers or tiles."""

        def follow(stage: str, done: int, total: int) -> None:
            # The modulation tables come before the first step: no block of it is done yet.
            blocks = (0, 0) if stage == "adaln" else (done, total)
            self._report(phase, step, steps, *blocks)

        self._report(phase, step, steps)
        self.context.on_progress(follow)

    # ---- encode ----

    def _encode(self) -> Floats:
        """The prompt's embedding [tokens, text_dim]."""
        key = key_of(self.model, self.context.isa, self.ids)
        # With pictures in the prompt its ids alone do not tell what is encoded.
        embeddings = self.job.embeddings if self.spec.task == "t2va" else None
        kept = embeddings.find(key) if embeddings else None
        if kept is not None:
            self._note(f"prompt: {len(self.ids)} tokens, encoded before")
            self.saved = {"opens": 1, "bytes": self.model.weight_bytes("text_encoder")}
            return kept
        self._note(f"prompt: {len(self.ids)} tokens")
        self._follow("encode")
        text = self.model.encoder.encode(self.ids)
        if embeddings:
            embeddings.keep(key, text)
            self._encode_ahead(embeddings)
        return text

    def _encode_ahead(self, embeddings: Embeddings) -> None:
        """While the text encoder is in memory, and memory is short: the prompts that come next."""
        if not self.model.one_network:
            return
        self.context.on_progress(None)
        if self.estimate:
            self.estimate.finish()  # the prompt of this render is encoded, and no part of the rest
        prompts = list(dict.fromkeys(self.job.ahead))
        for number, prompt in enumerate(prompts):
            if self.context.cancelled:
                raise Cancelled("the render was cancelled")
            elapsed = round(self.clock.elapsed_s, 3)
            now = Progress(phase="encode", step=number, steps=len(prompts), elapsed_s=elapsed)
            self.job.on_progress(now)
            ids, _ = self.model.tokenizer.present(prompt)
            key = key_of(self.model, self.context.isa, ids)
            if embeddings.find(key) is None:
                embeddings.keep(key, self.model.encoder.encode(ids))
        self._note(f"{len(prompts)} prompts of jobs that wait encoded too")

    # ---- denoise ----

    def _denoise(self, text: Floats) -> Latents:
        """Noise to latents, one engine call a step."""
        spec = self.spec
        sequence = packing.build_t2va(len(text), self.latent, audio_latents(spec.frames))
        video_grid = sigmas(self.context, spec.video_shift, spec.steps + 1)
        audio_grid = sigmas(self.context, spec.audio_shift, spec.steps + 1)
        self.grids = (video_grid, audio_grid)
        steps = spec.steps  # within a spec's bounds no two sigmas of a grid are equal
        state = self._noise()
        times, indices = packing.run_times(
            sequence, (1 - video_grid[:steps]).tolist(), (1 - audio_grid[:steps]).tolist()
        )
        self._follow("denoise", 0, steps)
        with self.model.dit.begin(sequence, text, times) as run:
            for step in range(steps):
                self._follow("denoise", step, steps)
                with _naming(f"step {step + 1} of {steps}"):
                    velocities = run.step(indices[step], state.video, state.audio)
                    euler_step(video_grid, step, velocities[0], state.video)
                    euler_step(audio_grid, step, velocities[1], state.audio)
                self._note(f"step {step + 1} of {steps}")
        self._report("denoise", steps, steps)
        return state

    def _noise(self) -> Latents:
        """The seed's draws in the reference's order: the video latent, then the audio rows."""
        networks = self.model.networks
        channels = networks.video_vae.latent_channels
        rows = AUDIO_CHANNELS * audio_latents(self.spec.frames)
        with Noise(self.context, self.spec.seed) as noise:
            video = noise.draw((channels, *self.latent))
            audio = noise.draw((rows, networks.transformer.audio_dim))
            return Latents(video=packing.patchify(video), audio=audio)

    # ---- decode ----

    def _decode_video(self, latents: Latents) -> None:
        """Latents to rgb24 frames in the work folder, clip by clip."""
        vae = self.model.video_vae
        latent = denormalised(
            packing.unpatchify(latents.video, self.latent), self.model.video_normalization
        )
        clips, frames, _ = vae.plan(self.latent[0])
        carry = vae.new_carry(*self.latent[1:])
        written = 0
        with disk_errors(f"cannot write {self._frames}"), self._frames.open("wb") as file:
            for clip in range(clips):
                self._follow("decode_video", clip, clips)
                rgb = pixels_to_rgb(self.context, vae.decode_clip(latent, clip, carry))
                file.write(rgb.tobytes())
                written += len(rgb)
                self._note(f"clip {clip + 1} of {clips} decoded")
        if written != frames or frames != self.spec.frames:
            raise NumericError(f"the decoder made {written} frames instead of {self.spec.frames}")
        self._report("decode_video", clips, clips)

    def _decode_audio(self, latents: Latents) -> None:
        """Latents to interleaved f32 samples in the work folder, as long as the picture."""
        if self.samples is None:
            return
        self._follow("decode_audio", 0, 1)
        latent = denormalised(
            packing.rows_to_audio(latents.audio), self.model.audio_normalization, axis=1
        )
        wave = self.model.audio_vae.decode(latent)
        for warning in _sound.faults(wave):
            self.warnings.append(warning)
            self._note(warning)
        self.decoded_samples = wave.shape[1]
        fitted = _sound.fitted(wave, self.samples)
        write_durably(self._sound_file, fitted.T.astype("<f4").tobytes())
        self._report("decode_audio", 1, 1)

    @property
    def _frames(self) -> Path:
        return self.work / "frames.rgb"

    @property
    def _sound_file(self) -> Path:
        return self.work / "sound.f32"

    # ---- assemble ----

    def _assemble(self, latents: Latents) -> dict[str, Any]:
        """Make everything in a hidden folder, read the video back, and let it appear."""
        spec = self.spec
        started = self.job.started.astimezone()
        with (
            OutputFolder(
                self.job.outputs, prompt=spec.prompt, job_id=self.job.job_id, started=started
            ) as folder,
            disk_errors("cannot write the output"),
        ):
            with self.clock.phase("assemble"):
                self._write_media(folder.path)
                self._keep(folder.path, latents)
            self._write_sidecar(folder.path)
            self._report("assemble", self._frames_to_write, self._frames_to_write)
            final = folder.appear()
        if self.estimate:
            self.estimate.finish()
        return {
            "folder": final,
            "video": final / "video.mp4",
            "poster": final / "poster.jpg",
            "sidecar": final / "render.json",
            "frames": spec.frames,
            "width": spec.width,
            "height": spec.height,
            "duration_s": round(spec.frames / FPS, 3),
            "timings": self.clock.timings,
            "estimate": self.said,
            "peak_bytes": self.context.memory_peak,
            "saved": self.saved,
        }

    def _write_media(self, folder: Path) -> None:
        """The mp4, read back, and its poster: the frame in the middle."""
        spec = self.spec
        clip = Clip(
            width=spec.width,
            height=spec.height,
            frames=spec.frames,
            samples=self.samples,
            comment=_sidecar.embedded(spec),
        )
        video = folder / "video.mp4"
        sound = None if self.samples is None else self._sound_file
        media.encode_video(self.ffmpeg, clip, self._raw_frames(), sound, video)
        media.verify_video(self.ffmpeg, video, clip)
        with self._frames.open("rb") as file:
            file.seek(spec.frames // 2 * clip.frame_bytes)
            media.write_poster(
                self.ffmpeg, clip, file.read(clip.frame_bytes), folder / "poster.jpg"
            )
        if spec.keep_frames:
            pictures = folder / "frames"
            pictures.mkdir()
            media.write_frames(self.ffmpeg, clip, self._raw_frames(spec.frames), pictures)
        self._note("video encoded, and read back to its last frame")

    @property
    def _frames_to_write(self) -> int:
        """Frames that go through ffmpeg: into the video, and once more as pictures when kept."""
        return self.spec.frames * (2 if self.spec.keep_frames else 1)

    def _raw_frames(self, before: int = 0) -> Iterator[bytes]:
        """The decoded frames from the work folder, in blocks; reports, `before` frames ahead."""
        frame = self.spec.width * self.spec.height * 3
        done = 0
        with self._frames.open("rb") as file:
            while block := file.read(READ_BYTES):
                yield block
                done += len(block)
                self._report("assemble", before + done // frame, self._frames_to_write)

    def _keep(self, folder: Path, latents: Latents) -> None:
        """The latents as the decoders' input has them, still normalised, and the log."""
        if self.spec.keep_latents:
            tensors = {
                "video": packing.unpatchify(latents.video, self.latent),
                "audio": packing.rows_to_audio(latents.audio),
            }
            about = {"spec_hash": self.spec.hash, "format": "h3farm latents 1, normalised"}
            write_latents(folder / "latents.safetensors", tensors, about)
        log = "".join(self.log)  # may name a path that is no text
        (folder / "log.txt").write_text(log, encoding="utf-8", errors="backslashreplace")

    def _write_sidecar(self, folder: Path) -> None:
        text = _sidecar.text(
            _sidecar.Facts(
                spec=self.spec,
                job_id=self.job.job_id,
                started=self.job.started,
                ended=self.job.started + timedelta(seconds=self.clock.elapsed_s),
                model=self.model,
                tokens=len(self.ids),
                latent=self.latent,
                grids=self.grids,
                timings=self.clock.timings,
                estimate=self.said,
                peak_bytes=self.context.memory_peak,
                process_peak_bytes=self.machine.process_peak(),
                isa=self.context.isa,
                threads=self.context.threads,
                limits=self.job.limits.names(),
                samples=self.samples,
                decoded_samples=self.decoded_samples,
                warnings=self.warnings,
                ffmpeg=self.ffmpeg_version,
            )
        )
        (folder / "render.json").write_text(text, encoding="utf-8")


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Say in which step a number went wrong; the engine knows only the block."""
    try:
        yield
    except NumericError as error:
        raise NumericError(f"{place}: {error}", status=error.status) from error
