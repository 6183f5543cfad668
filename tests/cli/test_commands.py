"""Help, versions, settings, and the commands that need no farm."""

import argparse
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clitest import Answer
from farmtest import BOUND_S, eventually

from h3farm.engine.spec import FIELDS
from h3farm.worker.cli import build_parser, entry
from h3farm.worker.queue import Settings

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "golden" / "tiny-h3"
H3farm = Callable[..., Answer]
Process = Callable[..., "subprocess.Popen[str]"]

SMALL = ["--width", "64", "--height", "96", "--frames", "22", "--steps", "2"]


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every command of the line, by its words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield (*path, name)
                yield from commands(child, (*path, name))


GROUPS = {("model",), ("batch",)}  # of commands: they do nothing themselves
ALL = [path for path in commands(build_parser()) if path not in GROUPS]


def test_the_commands_of_the_design_are_there() -> None:
    named = {" ".join(path) for path in ALL}
    assert named >= {
        "run", "submit", "list", "show", "cancel", "render", "model info", "model list", "selftest",
    }  # fmt: skip


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_examples_and_exit_codes(
    h3farm: H3farm, path: tuple[str, ...]
) -> None:
    answer = h3farm(*path, "--help")
    assert answer.code == 0
    for part in (f"usage: h3farm {' '.join(path)}", "examples:", "exit codes:", "--json"):
        assert part in answer.out


@pytest.mark.parametrize("command", ["submit", "render"])
def test_every_field_of_a_spec_is_an_option(h3farm: H3farm, command: str) -> None:
    text = h3farm(command, "--help").out
    for field in FIELDS:
        if field.group != "record" and field.name != "prompt":
            assert f"--{field.name.replace('_', '-')}" in text


def test_without_arguments_it_prints_help(h3farm: H3farm) -> None:
    assert h3farm() == h3farm("--help")


def test_it_has_a_version(h3farm: H3farm) -> None:
    assert h3farm("--version") == Answer(0, "h3farm 0.1.0\n", "")


def test_wrong_usage_is_code_2(h3farm: H3farm) -> None:
    assert h3farm("sbmit").code == 2
    assert h3farm("list", "--limit", "-1").code == 2


def test_a_wrong_setting_is_named(h3farm: H3farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H3FARM_PORT", "http")
    sentence = "H3FARM_PORT is 'http': it must be a whole number from 1 to 65535."
    assert h3farm("list") == Answer(2, "", f"h3farm: {sentence}\n")


def test_a_user_never_sees_a_traceback(
    h3farm: H3farm, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(entry.job_commands, "list_jobs", fault)
    log = home / "state" / "logs" / "shell.log"
    answer = h3farm("list")
    assert answer == Answer(
        1, "", f"h3farm: an unexpected ZeroDivisionError: oops (the details are in {log})\n"
    )
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_models_are_listed(h3farm: H3farm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert h3farm("model", "list").out.startswith("No models in ")
    monkeypatch.setenv("H3FARM_MODELS", str(TINY))
    assert str(TINY) in h3farm("model", "list").out
    assert json.loads(h3farm("model", "list", "--json").out) == {"tiny-h3": str(TINY)}


def test_a_model_is_described_by_name_or_path(
    h3farm: H3farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_path = h3farm("model", "info", str(TINY), "--json")
    monkeypatch.setenv("H3FARM_MODELS", str(TINY))
    assert (
        by_path == h3farm("model", "info", "tiny-h3", "--json") == h3farm("model", "info", "--json")
    )
    assert json.loads(by_path.out)[0]["name"] == "tiny-h3"
    assert "transformer" in h3farm("model", "info").out


def test_a_tensor_that_does_not_fit_is_told_before_a_render_is_tried(
    h3farm: H3farm, tmp_path: Path
) -> None:
    """The configs agree with each other, and one tensor has a name that is no one's."""
    model = tmp_path / "odd"
    shutil.copytree(TINY / "FL2VA", model)
    path = model / "audio_vae" / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dec_in_proj.bias"', b'"dec_in_proj.bios"', 1))
    answer = h3farm("model", "info", str(model))
    assert answer.code == 1
    assert "problem: " in answer.out
    assert "dec_in_proj.bios" in answer.out


def test_an_unknown_model_is_one_sentence(h3farm: H3farm) -> None:
    answer = h3farm("model", "info", "nope")
    assert answer.code == 1
    assert answer.err.startswith("h3farm: nope is neither a folder nor a model in H3FARM_MODELS")


@pytest.mark.slow
def test_render_needs_no_farm(h3farm: H3farm, home: Path) -> None:
    outputs = home / "elsewhere"
    answer = h3farm("render", "a fox", "--model", str(TINY), "--outputs", str(outputs), *SMALL)
    assert answer.code == 0
    made = json.loads(answer.out)
    assert made["spec"]["seed"] >= 0
    assert Path(made["result"]["video"]).is_file()
    assert Path(made["result"]["folder"]).is_relative_to(outputs)
    assert "denoising, step 2 of 2" in answer.err
    assert [path.name for path in outputs.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_render_takes_a_spec_from_standard_input(
    start_h3farm: Process, environment: dict[str, str]
) -> None:
    environment["H3FARM_MODELS"] = str(TINY)
    spec = {"prompt": "piped", "width": 64, "height": 96, "frames": 22, "steps": 1, "seed": 3}
    process = start_h3farm("render")
    out, _ = process.communicate(json.dumps(spec), timeout=BOUND_S)
    assert process.returncode == 0
    made = json.loads(out)["spec"]
    assert (made["prompt"], made["seed"], made["model"]) == ("piped", 3, "tiny-h3")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_render_and_leaves_nothing(
    start_h3farm: Process, home: Path, number: int
) -> None:
    process = start_h3farm(
        "render", "long", f"--model={TINY}", "--steps=200", "--width=512", "--height=512"
    )
    assert process.stderr is not None
    while "denoising, step 1" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("h3farm: interrupted\n")
    assert "Traceback" not in err
    outputs = home / "outputs"
    assert [path for path in outputs.rglob("*") if path.is_file()] == []
    assert [path.name for path in outputs.iterdir() if path.name.startswith(".")] == []


def test_render_refuses_an_unknown_model(h3farm: H3farm) -> None:
    answer = h3farm("render", "a fox", "--model", "nope", *SMALL)
    assert answer.code == 2
    assert "model must be a folder or one of those in H3FARM_MODELS (none)" in answer.err


def test_render_says_when_there_is_no_model_at_all(h3farm: H3farm, settings: Settings) -> None:
    answer = h3farm("render", "a fox", *SMALL)
    assert answer.code == 2
    assert f"No models in {settings.models[0]}: put a checkpoint folder there" in answer.err


def test_selftest_passes_on_the_exit_code(
    h3farm: H3farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, bool]] = []

    def stand_in(golden: Path, *, as_json: bool) -> int:
        asked.append((golden, as_json))
        return 1

    monkeypatch.setattr("h3farm.engine.selftest.main", stand_in)
    assert h3farm("selftest", "--golden", str(tmp_path)).code == 1
    assert h3farm("selftest", "--json").code == 1
    assert asked == [(tmp_path, False), (ROOT / "tests" / "golden", True)]


@pytest.mark.slow
def test_run_runs_until_ctrl_c(
    start_h3farm: Process, environment: dict[str, str], h3farm: H3farm
) -> None:
    """The real three processes, the dashboard included."""
    from test_supervisor import free_port

    environment["H3FARM_PORT"] = str(free_port())
    farm = start_h3farm("run")
    assert farm.stderr is not None
    for line in farm.stderr:
        if "the farm runs; dashboard: http://127.0.0.1:" in line:
            break
    eventually(lambda: json.loads(h3farm("status", "--json").out).get("worker"))
    assert f":{environment['H3FARM_PORT']}/" in h3farm("status").out
    second = start_h3farm("run")
    _, err = second.communicate(timeout=BOUND_S)
    assert second.returncode == 1
    assert f"The farm already runs (process {farm.pid})" in err
    farm.send_signal(signal.SIGINT)
    _, err = farm.communicate(timeout=BOUND_S)
    assert farm.returncode == 0
    assert err.rstrip().endswith("the farm has ended")
    assert h3farm("list").code == 3
