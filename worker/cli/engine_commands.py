"""render, model, selftest: the commands that need no farm. The engine is imported when called."""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from h3farm.engine.errors import CheckpointError
from h3farm.engine.progress import Progress
from h3farm.engine.spec import SpecError
from h3farm.worker.cli import exits, words
from h3farm.worker.cli.spec_options import given_fields, make_spec
from h3farm.worker.identity import folder_locked
from h3farm.worker.queue import Settings, quantities


def render(arguments: argparse.Namespace, settings: Settings) -> int:
    """Render without a queue: a spec in, the result as JSON out."""
    from h3farm.engine.checkpoints import find_models, open_tree  # noqa: PLC0415
    from h3farm.engine.render import Engine  # noqa: PLC0415

    if arguments.prompt is None and arguments.spec is None and not sys.stdin.isatty():
        arguments.spec = "-"
    fields = given_fields(arguments)
    models = find_models(settings.models)
    if _is_path(fields.get("model")):
        path = Path(fields["model"]).expanduser()
        fields["model"] = open_tree(path).name
        models = {fields["model"]: path}
    if "model" not in fields and not models:
        raise SpecError("model", None, "none", _no_models(settings))
    spec = make_spec(fields, list(models)).with_seed()
    if spec.model not in models:
        known = ", ".join(models) or "none"
        sentence = f"model must be a folder or one of those in H3FARM_MODELS ({known})"
        raise SpecError("model", spec.model, known, f"{sentence}, got {spec.model!r}")
    for warning in spec.warnings():
        print(f"note: {warning}", file=sys.stderr)
    outputs = arguments.outputs or settings.outputs
    outputs.mkdir(parents=True, exist_ok=True)
    line = words.ProgressLine()

    def follow(now: Progress) -> None:
        line.show(words.progress(now), now)

    try:
        with (
            _ended_like_ctrl_c(),
            tempfile.TemporaryDirectory(prefix=".work-", dir=outputs) as work,
            folder_locked(Path(work)),  # `h3farm clean` leaves it alone for as long as we live
            Engine(threads=settings.threads) as engine,
        ):
            result = engine.render(
                spec,
                model=models[spec.model],
                outputs=outputs,
                work=Path(work) / "render",
                on_progress=follow,
            )
    finally:
        line.end()
    words.print_json({"spec": spec.to_json(), "result": result.to_json()})
    return exits.OK


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """What ends a process at once would leave the work folder in the outputs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_path(model: object) -> bool:
    return isinstance(model, str) and ("/" in model or model in (".", ".."))


def model_list(arguments: argparse.Namespace, settings: Settings) -> int:
    """The models and where they are."""
    from h3farm.engine.checkpoints import find_models  # noqa: PLC0415

    models = find_models(settings.models)
    if arguments.json:
        words.print_json({name: str(path) for name, path in models.items()})
    elif models:
        print("\n".join(words.table(["MODEL", "FOLDER"], [[n, str(p)] for n, p in models.items()])))
    else:
        print(_no_models(settings))
    return exits.OK


def model_info(arguments: argparse.Namespace, settings: Settings) -> int:
    """What models hold; 1 when something is wrong with one of them."""
    from h3farm.engine.checkpoints import describe, find_models  # noqa: PLC0415
    from h3farm.engine.model import tensor_faults  # noqa: PLC0415

    found = find_models(settings.models)
    wanted: list[Path] = [_locate(name, found) for name in arguments.models] or list(found.values())
    infos = [describe(path) for path in wanted]
    for info, path in zip(infos, wanted, strict=True):
        if not info["problems"]:
            info["problems"] = tensor_faults(path)
    if arguments.json:
        words.print_json(infos)
    elif not infos:
        print(_no_models(settings))
    else:
        print("\n\n".join("\n".join(_about(info)) for info in infos))
    return exits.FAILED if any(info["problems"] for info in infos) else exits.OK


def _locate(name: str, found: dict[str, Path]) -> Path:
    if name in found:
        return found[name]
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    known = ", ".join(found) or "none"
    raise CheckpointError(f"{name} is neither a folder nor a model in H3FARM_MODELS ({known})")


def _no_models(settings: Settings) -> str:
    folders = ", ".join(str(folder) for folder in settings.models)
    return f"No models in {folders}: put a checkpoint folder there, or set H3FARM_MODELS."


def _about(info: dict[str, Any]) -> list[str]:
    lines = [
        f"{info['name']}  ({info['layout']} layout, {info['parameters']:,} parameters, "
        f"{quantities.size(info['bytes'])})",
        f"  {info['path']}",
    ]
    rows = [
        [
            f"  {name}",
            f"{part['parameters']:,}",
            quantities.size(part["bytes"]),
            " ".join(f"{kind}:{count}" for kind, count in part["dtypes"].items()),
            f"{part['layers']} layers" if part["layers"] else "",
        ]
        for name, part in info["components"].items()
    ]
    head = ["  PART", "PARAMETERS", "SIZE", "TENSORS", ""]
    problems = [f"  problem: {problem}" for problem in info["problems"]]
    return [*lines, *(line.rstrip() for line in words.table(head, rows)), *problems]


def selftest(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run the cases of a golden folder through the engine."""
    from h3farm.engine import selftest as engine_selftest  # noqa: PLC0415

    return engine_selftest.main(arguments.golden, as_json=arguments.json)
