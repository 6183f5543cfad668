"""The real worker process around an engine that does what the first word of the prompt says.

render: done at once · hold: renders until it is cancelled or told to stop at a resume point · long:
one step of minutes, which only a cancel ends · twice: as hold, and done when it goes on · deaf:
ignores a cancel · wait: until the file `go` is in the home · fail: an engine error · break: an
unexpected exception · die: ends the process · steps: ten steps · full: finds the disk full unless
the file `room` is in the home
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from h3farm.engine.errors import Cancelled, DiskFull, OutOfMemory
from h3farm.engine.limits import Limits
from h3farm.engine.machine import Machine
from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import Settings
from h3farm.worker.queue.process import end_with_parent, log_to
from h3farm.worker.worker import serve


class StandInResult:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def to_json(self) -> dict[str, object]:
        return {"folder": str(self.folder), "video": str(self.folder / "video.mp4")}


class StandInEngine:
    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._to_stop = threading.Event()

    def render(  # noqa: PLR0912 - a case for each word
        self,
        spec: RenderSpec,
        *,
        model: Path,
        outputs: Path,
        work: Path,
        job_id: str | None,
        on_progress: Callable[[Progress], None],
        limits: Limits,
        ahead: Sequence[str],
    ) -> StandInResult:
        self._cancelled.clear()
        self._to_stop.clear()
        on_progress(Progress(phase="denoise", step=0, steps=10))
        match spec.prompt.split()[0]:
            case "hold":
                self._until(self._cancelled, self._to_stop)
            case "long":
                self._until(self._cancelled)
            case "twice" if not (work / "half").exists():
                work.mkdir(parents=True, exist_ok=True)
                (work / "half").touch()
                self._until(self._cancelled, self._to_stop)
            case "deaf":
                threading.Event().wait(60)
            case "wait":
                while not (Settings.from_env().home / "go").exists():
                    time.sleep(0.01)
            case "full":
                if not (Settings.from_env().home / "room").exists():
                    raise DiskFull("cannot write frames.rgb: No space left on device")
            case "fail":
                raise OutOfMemory("the canvas needs 30 GB, the machine has 16")
            case "break":
                raise ZeroDivisionError("a fault of ours")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "steps":
                for step in range(1, 11):
                    on_progress(Progress(phase="denoise", step=step, steps=10))
        return StandInResult(outputs / str(job_id))

    def _until(self, *signs: threading.Event) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(sign.is_set() for sign in signs):
                raise Cancelled("stopped")
            time.sleep(0.01)

    def cancel(self) -> None:
        self._cancelled.set()

    def stop_at_resume_point(self) -> None:
        self._to_stop.set()

    def close_model(self) -> None:
        (Settings.from_env().home / "model-closed").touch()

    def close(self) -> None:
        pass


class StandInMachine(Machine):
    """Its disk has no room until the file `room` is there."""

    def free_disk(self, folder: Path) -> tuple[int, int]:
        return 0, 10**12 if (Settings.from_env().home / "room").exists() else 0


def mark(*_: object) -> None:
    """What somebody with access to the store might want to have called."""
    (Settings.from_env().home / "called").touch()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--heartbeat", type=float, default=30.0)
    parser.add_argument("--grace", type=float, default=60.0)
    arguments = parser.parse_args()
    settings = Settings.from_env()
    log_to("worker", settings.logs)
    end_with_parent()
    sys.exit(
        serve(
            settings,
            StandInEngine,
            lambda folders: {"tiny": folders[0] / "tiny"},
            lambda path: {"path": str(path)},
            heartbeat_s=arguments.heartbeat,
            heartbeat_grace_s=arguments.grace,
            machine=StandInMachine(),
        )
    )
