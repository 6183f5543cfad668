"""The commands, their options and help, and what happens around all of them."""

import argparse
import contextlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from h3farm.worker.cli import (
    batch_commands,
    engine_commands,
    exits,
    job_commands,
    upkeep_commands,
)
from h3farm.worker.cli.batch_options import add_batch_options
from h3farm.worker.cli.control_commands import add_control
from h3farm.worker.cli.spec_options import add_spec_options
from h3farm.worker.queue import Priority, Settings, State
from h3farm.worker.queue.process import bound
from h3farm.worker.supervisor import run as run_farm

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
FINISHED_SHOWN = 20
DESCRIPTION = "A render farm for one machine: MiniMax-H3 videos from a queue."
EXAMPLES = """\
examples:
  h3farm run                                      start the farm; the dashboard's address is printed
  h3farm submit "A red fox in snow" --seconds 5   queue a render
  h3farm submit --prompts night.txt --plan        see what a whole night would be
  h3farm list                                     what was, what runs, what comes
"""

Command = Callable[[argparse.Namespace, Settings], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. A user never sees a traceback."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return exits.OK
    try:
        code: int = arguments.command(arguments, Settings.from_env())
        sys.stdout.flush()
    except BrokenPipeError:
        # `h3farm list | head` has seen enough; Python must not complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except KeyboardInterrupt as error:
        return exits.tell(error, "interrupted", as_json=False)
    except Exception as error:  # noqa: BLE001 - the outermost of the process
        return exits.tell(error, _sentence(error), as_json=arguments.json)
    return code


def _sentence(error: Exception) -> str:
    _, kind = exits.classify(error)
    if kind == "system" and isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if kind != "internal":
        return str(error)
    log = "the details could not be written"
    with contextlib.suppress(Exception):
        path = Settings.from_env().logs / "shell.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        bound(path)
        with path.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        log = f"the details are in {path}"
    return f"an unexpected {type(error).__name__}: {error} ({log})"


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="h3farm",
        description=DESCRIPTION,
        epilog=f"{EXAMPLES}\n{exits.EXPLAINED}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("h3farm")
    parser.add_argument("--version", action="version", version=f"h3farm {version}")
    parser.set_defaults(command=None, json=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    _add_submit(commands)
    _add_batch(commands)
    _add_list(commands)
    _add_show(commands)
    _add_cancel(commands)
    _add_retry(commands)
    add_control(commands, _command)
    _add_status(commands)
    _add_logs(commands)
    _add_clean(commands)
    _add_render(commands)
    _add_model(commands)
    _add_selftest(commands)
    return parser


Commands = argparse._SubParsersAction


def _command(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    call: Command,
    help_: str,
    *,
    more: str = "",
    examples: str = "",
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=help_,
        description=f"{help_[0].upper()}{help_[1:]}. {more}".strip(),
        epilog=f"examples:\n{examples}\n{exits.EXPLAINED}" if examples else exits.EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, errors included")
    parser.set_defaults(command=call)
    return parser


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    return run_farm(settings)


def _add_run(commands: "Commands[argparse.ArgumentParser]") -> None:
    _command(
        commands,
        "run",
        _run,
        "start the farm and keep it running",
        more="Store, worker and dashboard\nare started, and started again when one of them dies. "
        "Ctrl-C ends them in\norder; the job that runs goes back to the front of the queue.",
        examples="  h3farm run\n  H3FARM_PORT=8700 h3farm run\n",
    )


def _add_submit(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "submit",
        job_commands.submit,
        "queue a render, or many as a batch; prints the id",
        examples='  h3farm submit "A red fox in snow" --seconds 5 --wait\n'
        "  h3farm submit --spec fox.json --seed 7 --priority urgent\n"
        '  h3farm submit "a {red|grey} fox" --expand all --vary steps=10..30..10 --plan\n'
        "  h3farm submit --csv films.csv --count 3 --name night --key night-1\n",
    )
    parser.add_argument(
        "--priority",
        choices=[str(priority) for priority in Priority],
        default=str(Priority.NORMAL),
        help="behind all jobs of the same or a higher priority (default: normal)",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="show the progress and exit by the result; Ctrl-C does not cancel the job",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also when the disk has no room for all that waits; the render waits for room then",
    )
    add_batch_options(parser)
    add_spec_options(parser)


def _add_batch(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("batch", help="look at batches, and control them as a whole")
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(
        actions,
        "list",
        batch_commands.list_batches,
        "list the batches, newest last",
        examples="  h3farm batch list\n",
    )
    show = _command(
        actions,
        "show",
        batch_commands.show_batch,
        "show a batch's progress and its jobs",
        examples="  h3farm batch show foxes\n",
    )
    cancel = _command(
        actions,
        "cancel",
        batch_commands.cancel_batch,
        "cancel what is not over of a batch",
        examples="  h3farm batch cancel foxes\n",
    )
    pause = _command(
        actions,
        "pause",
        batch_commands.pause_batch,
        "pause what is not over of a batch",
        examples="  h3farm batch pause foxes\n  h3farm batch pause foxes --until 22:00\n",
    )
    pause.add_argument(
        "--until", metavar="WHEN", help="a moment, e.g. 22:00, +8h or 2026-12-24 22:00"
    )
    resume = _command(
        actions,
        "resume",
        batch_commands.resume_batch,
        "let what is paused of a batch go on",
        examples="  h3farm batch resume foxes\n",
    )
    retry = _command(
        actions,
        "retry",
        batch_commands.retry_batch,
        "queue what failed of a batch once more",
        more="Each starts\nover. The other jobs stay as they are.",
        examples="  h3farm batch retry foxes --failed\n",
    )
    retry.add_argument(
        "--failed", action="store_true", help="those that failed: the default, said out loud"
    )
    for parser in (show, cancel, pause, resume, retry):
        parser.add_argument("batch", metavar="BATCH", help="the batch's id or name")


def _add_list(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "list",
        job_commands.list_jobs,
        "list the jobs: those that are over, then those that run, then the queue in its order",
        examples="  h3farm list\n  h3farm list --state failed --json\n",
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=[str(state) for state in State],
        help="only jobs in this state; may be given more than once",
    )
    parser.add_argument(
        "--limit",
        type=_count,
        default=FINISHED_SHOWN,
        metavar="N",
        help=f"of the jobs that are over only the newest N (default: {FINISHED_SHOWN})",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _add_show(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "show",
        job_commands.show,
        "show everything about a job: where its video is, or why there is none",
        examples="  h3farm show 1130-1842-3f2a\n",
    )
    parser.add_argument("job", metavar="JOB", help="the job's id")


def _add_cancel(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "cancel",
        job_commands.cancel,
        "cancel jobs that wait or run",
        more="A running one stops within a second\nand leaves nothing in the outputs.",
        examples="  h3farm cancel 1130-1842-3f2a\n",
    )
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="the job's id")


def _add_retry(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "retry",
        job_commands.retry,
        "queue jobs that failed once more",
        more="Each starts over,\nbefore the others of its priority.",
        examples="  h3farm retry 1130-1842-3f2a\n",
    )
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="the job's id")


def _add_status(commands: "Commands[argparse.ArgumentParser]") -> None:
    _command(
        commands,
        "status",
        job_commands.status,
        "show whether the farm runs, what its worker does, and where the dashboard is",
        examples="  h3farm status\n",
    )


def _add_logs(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "logs",
        upkeep_commands.logs,
        "print what a job's log says; the farm need not run",
        examples="  h3farm logs 1130-1842-3f2a\n  h3farm logs 1130-1842-3f2a --follow\n",
    )
    parser.add_argument("job", metavar="JOB", help="the job's id")
    parser.add_argument(
        "--follow", action="store_true", help="go on with what comes, until the job is over"
    )


def _add_clean(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "clean",
        upkeep_commands.clean,
        "delete what is past its time: work files of jobs that are over, records without a video",
        more="Videos are never\ntouched. Work files of a failed job are kept 7 days (H3FARM_KEEP), "
        "records of\njobs that have no video (any more) 90 days. What renders that were killed "
        "have left\ngoes too.",
        examples="  h3farm clean --dry-run\n  h3farm clean --work --failed --older-than 0\n",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only list what would go, with sizes"
    )
    parser.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="instead of 7 and 90 days since the job's end; 0: whatever is over",
    )
    parser.add_argument("--work", action="store_true", help="no records: work files only")
    parser.add_argument(
        "--failed", action="store_true", help="only what failed and cancelled jobs have left"
    )


def _days(text: str) -> float:
    if not text.isdecimal() or len(text) > 5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of days from 0 up")
    return float(text)


def _add_render(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "render",
        engine_commands.render,
        "render here and now, without a queue",
        more="The spec comes from a file, from\nstandard input or from options; the result is "
        "printed as one line of JSON,\nprogress goes to standard error.",
        examples='  h3farm render "A red fox in snow" --model ~/models/h3 --frames 22\n'
        "  h3farm render --spec fox.json --outputs .\n  h3farm render < fox.json\n",
    )
    parser.add_argument(
        "--outputs", type=Path, metavar="DIR", help="where the video goes (default: the farm's)"
    )
    add_spec_options(parser)


def _add_model(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("model", help="list models, and show what they hold")
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(
        actions,
        "list",
        engine_commands.model_list,
        "list the models in H3FARM_MODELS",
        examples="  h3farm model list\n",
    )
    info = _command(
        actions,
        "info",
        engine_commands.model_info,
        "show a model's parts, files, types and sizes, and what is wrong with it",
        examples="  h3farm model info\n  h3farm model info ~/models/h3 --json\n",
    )
    info.add_argument(
        "models", metavar="MODEL", nargs="*", help="a name or a folder (default: all)"
    )


def _add_selftest(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "selftest",
        engine_commands.selftest,
        "compare the engine with reference tensors, stage by stage",
        examples="  h3farm selftest --golden tests/golden\n",
    )
    here = GOLDEN.is_dir()
    parser.add_argument(
        "--golden",
        type=Path,
        metavar="DIR",
        required=not here,
        default=GOLDEN if here else None,
        help="a folder with a manifest.json (default: the one of the repository)",
    )
