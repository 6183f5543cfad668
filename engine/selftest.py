"""`h3farm selftest`: every case of a golden folder through the engine, one line per output.

What a case needs is read off its inputs and config, not off its name. A case passes only by being
computed: what this version cannot do yet is listed as such, and what it does not know is a failure.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from h3farm.engine import _golden_networks as networks
from h3farm.engine import _golden_plain as plain
from h3farm.engine._golden_networks import Models, Part, Results, holds
from h3farm.engine._native import Context
from h3farm.engine.checkpoints import Tree
from h3farm.engine.errors import EngineError
from h3farm.engine.golden import Array, Case, Golden, Output

PASS, FAIL, NOT_YET, UNKNOWN, INPUTS = "PASS", "FAIL", "not yet", "unknown", "inputs only"
# What a damaged folder can make the code below raise; anything else is a bug and may show itself.
FAULTS = (EngineError, ValueError, KeyError, IndexError, TypeError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one output on one tree; `output` and `tree` are "" where there is none."""

    stage: str
    case: str
    verdict: str
    tree: str = ""
    output: str = ""
    difference: float | None = None
    atol: float | None = None
    note: str = ""

    def __str__(self) -> str:
        """The line as it is printed."""
        tree = f" [{self.tree}]" if self.tree else ""
        numbers = ""
        if self.difference is not None:
            numbers = f"  max|d| {self.difference:.3g}  atol {self.atol:.3g}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.stage} {self.case}{tree} {self.output}{numbers}  {self.verdict}{note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to compute a case: on every tree that holds `part`, or once, without one."""

    compute: Callable[[Models, Any], Results]
    part: Part | None = None


class NotYetError(Exception):
    """The case needs what this version does not do; the message says what."""


class UnknownError(Exception):
    """The case is of no kind known here."""


def once(compute: Callable[[Case], Results], case: Case) -> Plan:
    """A case that needs neither tree nor C library."""
    return Plan(compute=lambda _models, _tree: compute(case))


def native(compute: Callable[[Context, Case], Results], case: Case) -> Plan:
    """A case that needs the C library, but no tree."""
    return Plan(compute=lambda models, _tree: compute(models.context, case))


def on(part: Part, compute: Callable[[Models, Tree, Case], Results], case: Case) -> Plan:
    """A case that runs on every tree with that part."""
    return Plan(part=part, compute=lambda models, tree: compute(models, tree, case))


def plan_geometry(case: Case) -> Plan:
    """Frame counts or canvas sizes."""
    if "asked" in case.inputs:
        return once(plain.frame_counts, case)
    if "aspect_width_height" in case.inputs:
        return once(plain.canvases, case)
    raise UnknownError


def plan_scheduler(case: Case) -> Plan:
    """Grids, trajectories, or the noise of a condition."""
    if not case.inputs:
        return native(plain.schedule, case)
    if "velocities" in case.inputs:
        return native(plain.euler, case)
    if "clean" in case.inputs:
        return once(plain.condition_noise, case)
    raise UnknownError


def plan_tokenizer(case: Case) -> Plan:
    """Token ids."""
    return on("tokenizer", lambda _, tree, case: plain.token_ids(tree.tokenizer, case), case)


def plan_text_encoder(case: Case) -> Plan:
    """Hidden states of a text."""
    if "resized" in case.inputs or "grid_thw" in case.inputs:
        raise NotYetError("a picture in the text")
    return on("text_encoder", networks.encode_text, case)


def plan_transformer(case: Case) -> Plan:
    """A layout, or a pass; the rows of passes are no case of their own."""
    if "timestep" in case.inputs:
        return on("transformer", networks.transform, case)
    if "position_ids" in case.outputs:
        return once(plain.layout, case)
    if not case.outputs and "video_rows" in case.inputs:
        return once(lambda _: {}, case)
    raise UnknownError


def plan_video_vae(case: Case) -> Plan:
    """Decoding or encoding, as a whole or one call."""
    if "frames" in case.inputs:
        return on("video_vae", networks.encode_video, case)
    if "image" in case.inputs:
        return on("video_vae", networks.encode_picture, case)
    if "latent" in case.inputs:
        whole = "kept_frames" in case.config
        return on("video_vae", networks.decode_video if whole else networks.decode_raw, case)
    raise UnknownError


def plan_audio_vae(case: Case) -> Plan:
    """Decoding, or the activation alone."""
    if "waveform" in case.inputs:
        raise NotYetError("encoding")
    if "latent" in case.inputs:
        return on("audio_vae", networks.decode_audio, case)
    if "signal" in case.inputs:
        return on("audio_vae", networks.activate, case)
    raise UnknownError


def plan_end_to_end(case: Case) -> Plan:
    """Whole renders."""
    if case.config.get("keyframes") or case.config.get("references"):
        raise NotYetError("keyframes and references")
    return on("transformer", networks.render, case)


def later(what: str, _case: Case) -> Plan:
    """A stage of a later version."""
    raise NotYetError(what)


PLANS: dict[str, Callable[[Case], Plan]] = {
    "geometry": plan_geometry,
    "random": partial(native, plain.random_numbers),
    "scheduler": plan_scheduler,
    "tokenizer": plan_tokenizer,
    "image": partial(later, "keyframes"),
    "vision": partial(later, "the vision tower"),
    "text_encoder": plan_text_encoder,
    "transformer": plan_transformer,
    "video_vae": plan_video_vae,
    "audio_vae": plan_audio_vae,
    "end_to_end": plan_end_to_end,
}


def run_case(golden: Golden, models: Models, stage: str, name: str) -> Iterator[Line]:
    """All lines of one case."""
    at = partial(Line, stage=stage, case=name)
    try:
        if stage not in PLANS:
            raise UnknownError
        case = golden.case(stage, name)
        plan = PLANS[stage](case)
    except UnknownError:
        yield at(verdict=UNKNOWN, note="no case of a kind that is known here")
        return
    except NotYetError as reason:
        for output in case.outputs:
            yield at(output=output, verdict=NOT_YET, note=str(reason))
        return
    except FAULTS as error:
        yield at(verdict=FAIL, note=_sentence(error))
        return
    if not case.outputs:
        yield at(verdict=INPUTS)
        return
    if plan.part is None:
        yield from run_on(case, plan, models, None)
        return
    trees = [tree for tree in golden.trees if holds(tree, plan.part)]
    if not trees:
        yield at(verdict=FAIL, note=f"no tree of the folder has a {plan.part}")
    for tree in trees:
        yield from run_on(case, plan, models, tree)


def run_on(case: Case, plan: Plan, models: Models, tree: Tree | None) -> Iterator[Line]:
    """The lines of a case on one tree."""
    label = f"{tree.name}/{tree.layout}" if tree else ""
    at = partial(Line, stage=case.stage, case=case.name, tree=label)
    try:
        results = plan.compute(models, tree)
    except FAULTS as error:
        yield at(verdict=FAIL, note=_sentence(error))
        return
    for key, output in case.outputs.items():
        if key not in results:
            yield at(output=key, verdict=UNKNOWN, note="the engine makes no such output")
            continue
        difference, note = compare(results[key], output)
        passed = note == "" and difference <= output.atol
        yield at(
            output=key,
            difference=difference,
            atol=output.atol,
            verdict=PASS if passed else FAIL,
            note=note,
        )


def compare(got: Array, output: Output) -> tuple[float, str]:
    """The largest difference, and what is wrong besides; NaN is never near anything."""
    want = output.want
    if got.size == want.size and got.shape != want.shape and got.ndim == 2:
        got = got.reshape(want.shape)  # a tap has rows and columns only
    if got.shape != want.shape:
        return float("inf"), f"shape {list(got.shape)}, not {list(want.shape)}"
    if want.dtype.kind in "iu" and got.dtype.kind not in "iu":
        return float("inf"), f"type {got.dtype.name}, not {want.dtype.name}"
    if not want.size:
        return 0.0, ""
    difference = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
    return difference, "not a number" if np.isnan(difference) else ""


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def main(golden: Path, *, as_json: bool = False) -> int:
    """Run every case of a golden folder and print what came out; 0 when nothing failed.

    Prints a line per output and a summary, or with `as_json` one JSON object at the end.
    """
    lines: list[Line] = []
    try:
        folder = Golden(golden)
        with Context() as context, Models(context, folder) as models:
            for stage, name in folder.names():
                for line in run_case(folder, models, stage, name):
                    lines.append(line)
                    if not as_json:
                        sys.stdout.write(f"{line}\n")
    except EngineError as error:
        lines.append(Line(stage="selftest", case=str(golden), verdict=FAIL, note=str(error)))
        if not as_json:
            sys.stdout.write(f"{lines[-1]}\n")
    counts = Counter(line.verdict for line in lines)
    failed = counts[FAIL] + counts[UNKNOWN]
    summary = {"passed": counts[PASS], "failed": failed, "not_yet": counts[NOT_YET]}
    if as_json:
        sys.stdout.write(json.dumps({**summary, "lines": [_plain(line) for line in lines]}) + "\n")
    else:
        sys.stdout.write(f"{counts[PASS]} passed, {failed} failed, {counts[NOT_YET]} not yet\n")
    # A folder of which nothing passed proves nothing.
    return 0 if not failed and counts[PASS] else 1


def _plain(line: Line) -> dict[str, object]:
    """A line as JSON values; JSON knows neither infinity nor NaN."""
    values = asdict(line)
    if line.difference is not None and not np.isfinite(line.difference):
        values["difference"] = None
    return values
