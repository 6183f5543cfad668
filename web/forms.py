"""The submit form: made from the table of fields, read back into a spec.

A form speaks strings, and two of its fields are not fields of a spec: `canvas` is a preset that
stands for width and height, and `length` with `unit` stands for frames or seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from h3farm.engine.spec import FIELDS, Field, RenderSpec, SpecError, field_named
from h3farm.web import words
from h3farm.web.outputs import Sidecar
from h3farm.worker.queue import Priority, RenderJob
from h3farm.worker.queue.errors import NotEnoughDisk

CUSTOM = "custom"
UNITS = ("frames", "seconds")
PRIORITIES = {
    Priority.URGENT: "Urgent: before the others",
    Priority.NORMAL: "Normal",
    Priority.IDLE: "Idle: when nothing else waits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """A preset of the canvas; `shape` names the little picture of it."""

    width: int
    height: int
    shape: str
    hint: str

    @property
    def value(self) -> str:
        """As the form sends it."""
        return f"{self.width}x{self.height}"


CANVASES = (
    Canvas(width=864, height=480, shape="wide", hint="wide, for work"),
    Canvas(width=1344, height=768, shape="wide", hint="wide, for finals"),
    Canvas(width=512, height=512, shape="square", hint="square, quick"),
    Canvas(width=768, height=768, shape="square", hint="square, for finals"),
    Canvas(width=480, height=864, shape="tall", hint="tall"),
)

# A spec's field and the form field beside which its fault is shown.
SHOWN_AT = {
    "frames": "length",
    "seconds": "length",
    "frames_asked": "length",
    "seconds_asked": "length",
}
SWITCHES = tuple(field.name for field in FIELDS if field.type == "switch")
NUMBERS = tuple(
    field.name
    for field in FIELDS
    if field.type in ("integer", "number") and field.group in ("canvas", "sampling")
)
IN_FORM = ("prompt", "model", *NUMBERS, *SWITCHES)


@dataclass(slots=True, kw_only=True)
class SubmitForm:
    """What the form shows: values as strings, switches as booleans, faults by form field."""

    values: dict[str, Any]
    errors: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    no_room: bool = False
    queued: RenderJob | None = None

    def field(self, name: str) -> Field:
        """The row of the table that a form field is made from."""
        return field_named(name)

    def fail(self, error: Exception) -> None:
        """Show a failure beside the field it names, or above the form."""
        self.no_room = isinstance(error, NotEnoughDisk)
        name = getattr(error, "field", "")
        name = SHOWN_AT.get(name, name)
        if name in self.values:
            self.errors[name] = str(error)
        else:
            self.failure = str(error)


def blank(model: str = "") -> SubmitForm:
    """The form with every default."""
    values: dict[str, Any] = {name: field_named(name).default for name in IN_FORM}
    values.update(prompt="", model=model, length=field_named("frames").default, unit="frames")
    values["priority"] = str(Priority.NORMAL)
    return _with_canvas(values)


def of_spec(spec: Mapping[str, Any], model: str = "") -> SubmitForm:
    """The form filled with a spec's JSON, what it does not have left at the default."""
    form = blank(model)
    values = form.values
    for name in IN_FORM:
        if spec.get(name) is not None:
            values[name] = spec[name]
    if spec.get("seconds_asked") is not None:
        values.update(length=spec["seconds_asked"], unit="seconds")
    elif (asked := spec.get("frames_asked") or spec.get("frames")) is not None:
        values.update(length=asked, unit="frames")
    return _with_canvas(values)


def of_render(sidecar: Sidecar) -> SubmitForm:
    """The form filled from a finished render, as far as its sidecar can be read."""
    return of_spec(sidecar.spec.to_json() if sidecar.spec else {"prompt": sidecar.prompt})


def posted(sent: Mapping[str, str]) -> SubmitForm:
    """The form as it came back, to be parsed and, if need be, shown again."""
    form = blank()
    values = form.values
    for name in values:
        if name not in SWITCHES:
            values[name] = sent.get(name, values[name])
    for name in SWITCHES:
        values[name] = name in sent
    # A browser sends line breaks as CR LF; the prompt goes to the model with the user's own.
    values["prompt"] = str(values["prompt"]).replace("\r\n", "\n").replace("\r", "\n")
    preset = next((canvas for canvas in CANVASES if canvas.value == sent.get("canvas")), None)
    if preset is None:
        values["canvas"] = CUSTOM
    else:
        values.update(canvas=preset.value, width=preset.width, height=preset.height)
    return form


def spec_of(form: SubmitForm) -> RenderSpec:
    """The spec that a posted form describes; SpecError as everywhere."""
    return RenderSpec.from_json(fields_of(form))


def fields_of(form: SubmitForm) -> dict[str, object]:
    """The fields of a spec that a posted form has, as far as they can be read."""
    values = form.values
    unit = values["unit"] if values["unit"] in UNITS else UNITS[0]
    wanted: dict[str, object] = {"prompt": values["prompt"], "model": values["model"]}
    wanted.update({name: _number(values[name]) for name in NUMBERS})
    wanted.update({name: values[name] for name in SWITCHES})
    wanted[unit] = _number(values["length"])
    return wanted


def priority_of(given: object) -> str:
    """A priority as the queue knows it; SpecError otherwise."""
    if given not in list(PRIORITIES):  # a list: what is given may not be hashable
        raise SpecError("priority", given, " or ".join(PRIORITIES))
    return str(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be made of a form, whatever its prompt: a length, warnings, or one fault."""

    made: str = ""
    warnings: tuple[str, ...] = ()
    fault: str = ""


def plan_of(form: SubmitForm) -> Plan:
    """What the form's settings lead to."""
    try:
        spec = spec_of(SubmitForm(values=form.values | {"prompt": "any", "model": "any"}))
    except SpecError as error:
        return Plan(fault=str(error))
    return Plan(made=words.length(spec.frames), warnings=spec.warnings())


def _number(text: object) -> object:
    """The number that a text holds; the text itself when it is none, for the spec to refuse."""
    for parse in (int, float):
        try:
            return parse(str(text).strip())
        except ValueError:
            continue
    return text


def _with_canvas(values: dict[str, Any]) -> SubmitForm:
    size = f"{values['width']}x{values['height']}"
    known = any(canvas.value == size for canvas in CANVASES)
    values["canvas"] = size if known else CUSTOM
    return SubmitForm(values=values)
