"""The fields of a render: one table from which options, forms, docs and checks are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FieldType = Literal["text", "integer", "number", "switch", "choice"]
Group = Literal["prompt", "canvas", "length", "sampling", "output", "record"]

MAX_PROMPT = 20_000
MAX_FRAMES = 17 * 85 + 5  # about a minute; longer videos are chains of segments
MAX_SECONDS = 60.0
MAX_AREA = 4096 * 2304
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What is known of one field of a spec.

    `default` None means that a value must be given (prompt, model) or that there may be none.
    `minimum` and `maximum` are inclusive; for texts `maximum` counts characters.
    Fields of the group "record" are written by us and belong in no form.
    """

    name: str
    type: FieldType
    label: str
    help: str
    group: Group
    default: str | int | float | bool | None = None
    unit: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()
    placeholder: str = ""

    @property
    def allowed(self) -> str:
        """The values that may be given, for a sentence: "a whole number from 1 to 200"."""
        if self.type == "choice":
            return " or ".join(self.choices)
        if self.type == "switch":
            return "true or false"
        if self.type == "text":
            return f"a text of 1 to {self.maximum} characters"
        what = "a number" if self.type == "number" else "a whole number"
        if self.multiple_of:
            what = f"a multiple of {self.multiple_of}"
        return f"{what} from {self._shown(self.minimum)} to {self._shown(self.maximum)}"

    @staticmethod
    def _shown(bound: float | None) -> str:
        return f"{bound:.4g}" if isinstance(bound, float) else str(bound)


FIELDS: tuple[Field, ...] = (
    Field(
        name="prompt",
        type="text",
        label="Prompt",
        group="prompt",
        maximum=MAX_PROMPT,
        placeholder="A red fox trots through fresh snow; its paws crunch.",
        help="What is to be seen and heard. It goes to the model word for word, line breaks "
        "included; long structured descriptions give the best pictures.",
    ),
    Field(
        name="model",
        type="text",
        label="Model",
        group="prompt",
        maximum=200,
        help="Name of a model folder, as `h3farm model info` lists them.",
    ),
    Field(
        name="task",
        type="choice",
        label="Task",
        group="prompt",
        default="t2va",
        choices=("t2va",),
        help="What the video is made from; t2va: from text, picture and sound together.",
    ),
    Field(
        name="width",
        type="integer",
        label="Width",
        group="canvas",
        default=864,
        unit="px",
        minimum=32,
        maximum=4096,
        multiple_of=32,
        help="Width of the canvas. The model was trained on areas up to 1344x768.",
    ),
    Field(
        name="height",
        type="integer",
        label="Height",
        group="canvas",
        default=480,
        unit="px",
        minimum=32,
        maximum=4096,
        multiple_of=32,
        help="Height of the canvas.",
    ),
    Field(
        name="frames",
        type="integer",
        label="Frames",
        group="length",
        default=124,
        unit="frames",
        minimum=1,
        maximum=MAX_FRAMES,
        help="Length at 24 frames a second. It goes up to the model's next length: 22, 39, 56 and "
        "on in steps of 17; 107 to 345 frames are the trained 4 to 15 seconds.",
    ),
    Field(
        name="seconds",
        type="number",
        label="Seconds",
        group="length",
        unit="s",
        minimum=0.01,
        maximum=MAX_SECONDS,
        help="Length in seconds, in place of frames; goes up to the model's next length.",
    ),
    Field(
        name="steps",
        type="integer",
        label="Steps",
        group="sampling",
        default=20,
        unit="steps",
        minimum=1,
        maximum=200,
        help="How often the denoiser runs. The reference pipeline counts one more: its "
        "num_inference_steps of 21 is 20 here.",
    ),
    Field(
        name="seed",
        type="integer",
        label="Seed",
        group="sampling",
        default=-1,
        minimum=-1,
        maximum=MAX_SEED,
        help="Start of the noise: the same seed gives the same video. -1 draws one when the render "
        "is submitted. Only the low 32 bits reach the noise, as in the reference.",
    ),
    Field(
        name="video_shift",
        type="number",
        label="Video shift",
        group="sampling",
        default=12.0,
        minimum=0.01,
        maximum=100.0,
        help="Shift of the picture's sigma schedule: higher spends more steps at high noise.",
    ),
    Field(
        name="audio_shift",
        type="number",
        label="Audio shift",
        group="sampling",
        default=3.0,
        minimum=0.01,
        maximum=100.0,
        help="Shift of the sound's sigma schedule.",
    ),
    Field(
        name="preset",
        type="choice",
        label="Speed",
        group="sampling",
        default="reference",
        choices=("reference",),
        help="How exactly the model is computed; reference: as published, nothing left out.",
    ),
    Field(
        name="audio",
        type="switch",
        label="Sound",
        group="output",
        default=True,
        help="Decode the sound and put it into the video.",
    ),
    Field(
        name="keep_frames",
        type="switch",
        label="Keep frames",
        group="output",
        default=False,
        help="Also write every frame as a PNG file.",
    ),
    Field(
        name="keep_latents",
        type="switch",
        label="Keep latents",
        group="output",
        default=False,
        help="Also write the denoised latents of picture and sound (latents.safetensors).",
    ),
    Field(
        name="version",
        type="integer",
        label="Version",
        group="record",
        default=1,
        minimum=1,
        maximum=1,
        help="Version of this format.",
    ),
    Field(
        name="frames_asked",
        type="integer",
        label="Frames asked",
        group="record",
        unit="frames",
        minimum=1,
        maximum=MAX_FRAMES,
        help="The frames that were asked for, when they were not one of the model's lengths.",
    ),
    Field(
        name="seconds_asked",
        type="number",
        label="Seconds asked",
        group="record",
        unit="s",
        minimum=0.01,
        maximum=MAX_SECONDS,
        help="The seconds that were asked for, when the length was given in seconds.",
    ),
)
