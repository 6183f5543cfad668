"""Fixtures and helpers: the command line as a process or as a call."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from h3farm.worker.cli import main
from h3farm.worker.queue import Settings

PROGRAM = [sys.executable, "-c", "import sys; from h3farm.worker.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Answer:
    """What a command said. `out` and `err` are its streams."""

    code: int
    out: str
    err: str


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of the test's farm, set here too."""
    variables = {
        "H3FARM_HOME": str(settings.home),
        "H3FARM_MODELS": os.pathsep.join(map(str, settings.models)),
        "COLUMNS": "100",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("REDIS_URL", "H3FARM_OUTPUTS", "H3FARM_PORT", "H3FARM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return dict(os.environ)


@pytest.fixture
def h3farm(environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The command line, called in this process."""

    def call(*arguments: str) -> Answer:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as end:  # how argparse ends
            code = int(end.code or 0)
        return Answer(code, *capfd.readouterr())

    return call


@pytest.fixture
def start_h3farm(environment: dict[str, str]) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """The command line as a process; it is gone when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
