"""`make demo`: start the farm, render a sample through the queue, say where the video is.

A farm that already runs is used and left running; one that was started here is shut down at the end
unless --keep is given. Exit code: that of the render (0 done), or of what went wrong before it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

H3FARM = str(Path(sys.executable).with_name("h3farm"))
FARM_NOT_RUNNING = 3  # exit code of the h3farm commands
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
SAMPLE = [
    "A magenta square moves down on a yellow background.",
    "--model=h3-demo",
    "--width=128",
    "--height=128",
    "--frames=39",
    "--steps=12",
    "--seed=7",
]


def farm_status() -> dict[str, Any] | None:
    """What `h3farm status` says; None when no farm runs. SystemExit when it cannot tell."""
    asked = subprocess.run([H3FARM, "status", "--json"], capture_output=True, check=False)
    if asked.returncode not in (0, FARM_NOT_RUNNING):
        sys.stderr.buffer.write(asked.stderr)
        raise SystemExit(asked.returncode)
    return json.loads(asked.stdout) if asked.returncode == 0 else None


def wait_until_ready(farm: subprocess.Popen[bytes]) -> None:
    """Until the new farm has a worker; SystemExit when it ended or took too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (status := farm_status()) or not status["worker"]:
        if farm.poll() is not None:
            raise SystemExit(farm.returncode or 1)
        if time.monotonic() > deadline:
            raise SystemExit(f"the farm did not start within {START_TIMEOUT_S} s")
        time.sleep(0.2)


@contextmanager
def running_farm(keep: bool) -> Iterator[None]:
    """A farm for the duration of the block: the one that runs, or one of our own."""
    if farm_status():
        print("A farm is running already: using it.")
        yield
        return
    print("Starting the farm ...")
    with tempfile.TemporaryFile() as log:
        farm = subprocess.Popen([H3FARM, "run"], start_new_session=True, stdout=log, stderr=log)
        try:
            wait_until_ready(farm)
            yield
        except BaseException:
            keep = False
            log.seek(0)
            sys.stderr.buffer.write(log.read())
            raise
        finally:
            if not keep:
                farm.terminate()
                farm.wait(timeout=STOP_TIMEOUT_S)
    if keep:
        print(f"The farm goes on running (process {farm.pid}); `kill {farm.pid}` ends it.")


def render_sample() -> int:
    """Submit the sample, show its progress, and print where it is; the command's exit code."""
    submitted = subprocess.run(
        [H3FARM, "submit", *SAMPLE, "--wait", "--json"], stdout=subprocess.PIPE, check=False
    )
    if submitted.returncode == 0:
        job, status = json.loads(submitted.stdout), farm_status()
        print(f"\nVideo:     {job['result']['video']}")
        print(f"Dashboard: {status['dashboard'] if status else 'gone'}")
    else:
        sys.stdout.buffer.write(submitted.stdout)
    return submitted.returncode


def main() -> int:
    """Render the sample; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the farm running afterwards")
    with running_farm(keep=parser.parse_args().keep):
        return render_sample()


if __name__ == "__main__":
    sys.exit(main())
