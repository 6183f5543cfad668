"""RenderSpec: what is accepted, what is refused in which words, and what its hash names."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine.spec import (
    FIELDS,
    MAX_FRAMES,
    MAX_PROMPT,
    MAX_SEED,
    RenderSpec,
    SpecError,
    draw_seed,
    field_named,
)

BASE: dict[str, object] = {"prompt": "a red fox in snow", "model": "tiny-h3"}


def parsed(**fields: object) -> RenderSpec:
    return RenderSpec.from_json(BASE | fields)


texts = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=300
).filter(str.strip)
names = st.from_regex(r"[\w.+-][\w .+-]{0,40}\w", fullmatch=True).filter(str.isprintable)
sides = st.integers(1, 64).map(lambda n: 32 * n)
shifts = st.floats(0.01, 100.0)
lengths = st.one_of(
    st.fixed_dictionaries({"frames": st.integers(1, MAX_FRAMES)}),
    st.fixed_dictionaries({"seconds": st.floats(0.01, 60.0)}),
    st.just({}),
)


@st.composite
def spec_objects(draw: st.DrawFn) -> dict[str, object]:
    """JSON objects of valid specs, fields left out at will."""
    fields: dict[str, st.SearchStrategy[object]] = {
        "task": st.just("t2va"),
        "width": sides,
        "height": sides,
        "steps": st.integers(1, 200),
        "seed": st.integers(-1, MAX_SEED),
        "video_shift": shifts,
        "audio_shift": shifts,
        "preset": st.just("reference"),
        "audio": st.booleans(),
        "keep_frames": st.booleans(),
        "keep_latents": st.booleans(),
        "version": st.just(1),
    }
    some = draw(st.fixed_dictionaries({}, optional=fields))
    return {"prompt": draw(texts), "model": draw(names), **some, **draw(lengths)}


@given(spec_objects())
def test_a_spec_survives_json_text(obj: dict[str, object]) -> None:
    spec = RenderSpec.from_json(obj)
    again = RenderSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.hash == spec.hash


@given(spec_objects(), st.randoms())
def test_the_hash_does_not_depend_on_the_order_of_keys(obj: dict[str, object], random) -> None:
    items = list(obj.items())
    random.shuffle(items)
    assert RenderSpec.from_json(dict(items)).hash == RenderSpec.from_json(obj).hash


@given(spec_objects())
def test_a_parsed_length_is_one_the_model_makes(obj: dict[str, object]) -> None:
    spec = RenderSpec.from_json(obj)
    assert spec.frames % 17 == 5
    assert 22 <= spec.frames <= MAX_FRAMES
    if "frames" in obj:
        assert 0 <= spec.frames - int(str(obj["frames"])) < 22
    if "seconds" in obj:
        assert spec.duration_s >= float(str(obj["seconds"])) - 1e-6


def test_the_hash_is_the_same_in_another_process() -> None:
    spec = parsed(seed=7, seconds=2)
    code = (
        "import json, sys; from h3farm.engine.spec import RenderSpec; "
        "print(RenderSpec.from_json(json.load(sys.stdin)).hash)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(spec.to_json()),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.strip() == spec.hash


def test_the_hash_changes_with_every_field_that_changes_the_work() -> None:
    """task, preset and version have one value each so far."""
    changes: dict[str, object] = {
        "prompt": "a red fox in snow ",
        "model": "other",
        "width": 896,
        "height": 512,
        "frames": 73,
        "steps": 21,
        "seed": 0,
        "video_shift": 12.000001,
        "audio_shift": 2.0,
        "audio": False,
        "keep_frames": True,
        "keep_latents": True,
    }
    hashes = {name: parsed(**{name: value}).hash for name, value in changes.items()}
    assert len({parsed().hash, *hashes.values()}) == len(changes) + 1
    fields = {item.name for item in dataclasses.fields(RenderSpec)}
    assert fields - set(changes) == {"task", "preset", "version", "frames_asked", "seconds_asked"}


def test_the_hash_names_the_work_not_the_words_it_was_asked_in() -> None:
    same = {
        parsed(frames=56).hash,
        parsed(frames=50).hash,
        parsed(seconds=2.2).hash,
        parsed(frames=56.0, steps=20.0, video_shift=12).hash,
    }
    assert len(same) == 1


@pytest.mark.parametrize(
    ("given_length", "frames", "frames_asked", "seconds_asked"),
    [
        ({}, 124, None, None),
        ({"frames": 1}, 22, 1, None),
        ({"frames": 5}, 22, 5, None),
        ({"frames": 22}, 22, None, None),
        ({"frames": 23}, 39, 23, None),
        ({"frames": 120}, 124, 120, None),
        ({"frames": 1450}, 1450, None, None),
        ({"frames": 1434}, 1450, 1434, None),
        ({"seconds": 0.5}, 22, None, 0.5),
        ({"seconds": 5}, 124, None, 5.0),
        ({"seconds": 60}, 1450, None, 60.0),
        ({"frames": None, "seconds": 2}, 56, None, 2.0),
        ({"frames": 56, "frames_asked": 50}, 56, 50, None),
        ({"frames": 124, "seconds_asked": 5.0, "frames_asked": None}, 124, None, 5.0),
    ],
)
def test_lengths_go_up_to_the_grid_and_keep_what_was_asked(
    given_length: Mapping[str, object],
    frames: int,
    frames_asked: int | None,
    seconds_asked: float | None,
) -> None:
    spec = parsed(**given_length)
    made = (spec.frames, spec.frames_asked, spec.seconds_asked)
    assert made == (frames, frames_asked, seconds_asked)


def test_a_prompt_is_kept_word_for_word() -> None:
    prompt = "  <d>‹Scene›\r\n(S1) 狐狸 🦊 \t«»\n\n" + "long\u2028 ؟ " * 800 + "\x07 "
    assert (
        RenderSpec.from_json(json.loads(json.dumps(parsed(prompt=prompt).to_json()))).prompt
        == prompt
    )


ALL = (
    "prompt, model, task, width, height, frames, seconds, steps, seed, video_shift, audio_shift, "
    "preset, audio, keep_frames, keep_latents"
)
WIDTH = "width must be a multiple of 32 from 32 to 4096"
REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"width": 850}, "width", f"{WIDTH}, got 850: nearest are 832 and 864"),
    ({"width": 33}, "width", f"{WIDTH}, got 33: nearest are 32 and 64"),
    ({"width": 16}, "width", f"{WIDTH}, got 16"),
    ({"width": 0}, "width", f"{WIDTH}, got 0"),
    ({"width": -64}, "width", f"{WIDTH}, got -64"),
    ({"width": 4128}, "width", f"{WIDTH}, got 4128"),
    ({"width": True}, "width", f"{WIDTH}, got true"),
    ({"width": "864"}, "width", f'{WIDTH}, got "864"'),
    ({"width": 864.5}, "width", f"{WIDTH}, got 864.5"),
    ({"width": None}, "width", f"{WIDTH}, got null"),
    ({"width": [864]}, "width", f"{WIDTH}, got an array"),
    ({"width": math.nan}, "width", f"{WIDTH}, got NaN"),
    ({"width": 10**5000}, "width", f"{WIDTH}, got a number of more than 60 digits"),
    (
        {"width": 4096, "height": 4096},
        "width",
        "width x height must be at most 9437184 pixels (4096x2304), got 4096x4096, "
        "which is 16777216",
    ),
    ({"frames": 0}, "frames", "frames must be a whole number from 1 to 1450, got 0"),
    ({"frames": 1451}, "frames", "frames must be a whole number from 1 to 1450, got 1451"),
    ({"frames": False}, "frames", "frames must be a whole number from 1 to 1450, got false"),
    ({"seconds": 61}, "seconds", "seconds must be a number from 0.01 to 60, got 61"),
    ({"seconds": 0}, "seconds", "seconds must be a number from 0.01 to 60, got 0"),
    ({"seconds": math.inf}, "seconds", "seconds must be a number from 0.01 to 60, got Infinity"),
    (
        {"frames": 56, "seconds": 2},
        "seconds",
        "a spec must have frames or seconds, not both, got seconds 2",
    ),
    (
        {"frames": 56, "frames_asked": 50, "seconds_asked": 2.0},
        "seconds_asked",
        "a spec must have frames_asked or seconds_asked, not both, got seconds_asked 2.0",
    ),
    (
        {"frames": 56, "frames_asked": 60},
        "frames",
        "frames must be 73, the model's length for what was asked, got 56",
    ),
    ({"steps": 0}, "steps", "steps must be a whole number from 1 to 200, got 0"),
    ({"steps": 201}, "steps", "steps must be a whole number from 1 to 200, got 201"),
    ({"seed": -2}, "seed", f"seed must be a whole number from -1 to {MAX_SEED}, got -2"),
    (
        {"seed": 2**63},
        "seed",
        f"seed must be a whole number from -1 to {MAX_SEED}, got 9223372036854775808",
    ),
    ({"video_shift": 0}, "video_shift", "video_shift must be a number from 0.01 to 100, got 0"),
    ({"audio_shift": "3"}, "audio_shift", 'audio_shift must be a number from 0.01 to 100, got "3"'),
    (
        {"audio_shift": math.nan},
        "audio_shift",
        "audio_shift must be a number from 0.01 to 100, got NaN",
    ),
    ({"audio": 1}, "audio", "audio must be true or false, got 1"),
    ({"audio": "yes"}, "audio", 'audio must be true or false, got "yes"'),
    ({"prompt": ""}, "prompt", "prompt must not be empty or only spaces"),
    ({"prompt": " \n\u3000\t"}, "prompt", "prompt must not be empty or only spaces"),
    ({"prompt": 5}, "prompt", "prompt must be a text of 1 to 20000 characters, got 5"),
    (
        {"prompt": "x" * 20_001},
        "prompt",
        "prompt must have at most 20000 characters, got 20001",
    ),
    (
        {"prompt": "fox\0"},
        "prompt",
        "prompt must be plain text, got a NUL character at position 3",
    ),
    (
        {"prompt": "\ud83e fox"},
        "prompt",
        "prompt must be plain text, got half a surrogate pair (U+D83E) at position 0",
    ),
    ({"model": ""}, "model", "model must not be empty or only spaces"),
    (
        {"model": "../weights"},
        "model",
        'model must be the name of a model folder, not a path, got "../weights"',
    ),
    (
        {"model": "a\nb"},
        "model",
        'model must be the name of a model folder, not a path, got "a\\nb"',
    ),
    ({"version": 2}, "version", "version must be a whole number from 1 to 1, got 2"),
    ({"task": "v2v"}, "task", 'task must be t2va, got "v2v"'),
    ({"task": "fl2va"}, "task", "task fl2va is not in this version yet: it has t2va"),
    ({"preset": "draft"}, "preset", "preset draft is not in this version yet: it has reference"),
    ({"loras": []}, "loras", "loras is not in this version yet: it renders from text alone"),
    (
        {"first_frame": "a.png"},
        "first_frame",
        "first_frame is not in this version yet: it renders from text alone",
    ),
    (
        {"cfg": 7},
        "cfg",
        "cfg has no meaning here: the model is guidance-distilled, it has neither a guidance scale "
        "nor a negative prompt",
    ),
    (
        {"negative_prompt": ""},
        "negative_prompt",
        "negative_prompt has no meaning here: the model is guidance-distilled, it has neither a "
        "guidance scale nor a negative prompt",
    ),
    ({"widht": 864}, "widht", "widht is not a field of a spec: did you mean width?"),
    ({"zoom": 1}, "zoom", f"zoom is not a field of a spec: known are {ALL}"),
    ({"\ud800": 1}, "\ud800", f"\\ud800 is not a field of a spec: known are {ALL}"),
]


@pytest.mark.parametrize(("change", "field", "sentence"), REFUSED)
def test_a_wrong_value_is_refused_in_one_sentence(
    change: dict[str, object], field: str, sentence: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(**change)
    assert (str(caught.value), caught.value.field) == (sentence, field)
    assert caught.value.allowed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["prompt", "model"])
def test_a_missing_text_is_named(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        RenderSpec.from_json({k: v for k, v in BASE.items() if k != name})
    assert str(caught.value) == f"{name} is missing: a spec must have one"


@pytest.mark.parametrize(
    ("obj", "shown"), [(None, "null"), ([], "an array"), ("{}", '"{}"'), (3, "3")]
)
def test_only_an_object_is_a_spec(obj: object, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        RenderSpec.from_json(obj)
    assert str(caught.value) == f"a spec must be a JSON object, got {shown}"


def test_the_constructor_holds_the_same_rules() -> None:
    """A spec object is valid however it was made; off-grid frames are for from_json alone."""
    with pytest.raises(SpecError, match="frames must be 73"):
        RenderSpec(prompt="fox", model="m", frames=60)
    with pytest.raises(SpecError, match="width must be"):
        dataclasses.replace(parsed(), width=850)
    with pytest.raises(SpecError, match="frames must be a whole number"):
        RenderSpec(prompt="fox", model="m", frames=None)  # type: ignore[arg-type]


@given(
    st.dictionaries(
        st.text(max_size=12),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    ),
    st.sampled_from([field.name for field in FIELDS]),
    st.none() | st.floats() | st.text(max_size=9),
)
def test_any_json_object_gives_a_spec_or_a_sentence(
    obj: dict[str, object], name: str, value: object
) -> None:
    for candidate in (obj, BASE | obj, BASE | {name: value}):
        try:
            spec = RenderSpec.from_json(candidate)
        except SpecError as error:
            str(error).encode("utf-8")
            assert len(str(error)) < 400
        else:
            assert RenderSpec.from_json(spec.to_json()) == spec


def test_a_seed_of_minus_one_is_drawn_once() -> None:
    assert parsed().with_seed(lambda: 12345).seed == 12345
    assert parsed(seed=0).with_seed(lambda: 12345) == parsed(seed=0)
    assert all(0 <= draw_seed() < 2**32 for _ in range(50))


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({"frames": 107}, ()),
        ({"frames": 345, "width": 1344, "height": 768}, ()),
        (
            {"frames": 22},
            ("22 frames (0.9 s) are shorter than the 4 to 15 seconds the model was trained on",),
        ),
        (
            {"frames": 362, "width": 1376, "height": 768},
            (
                "362 frames (15.1 s) are longer than the 4 to 15 seconds the model was trained on",
                "a canvas of 1376x768 is larger than the 1344x768 the model was trained on",
            ),
        ),
        (
            {"frames": 107, "width": 64, "height": 288},
            ("a canvas of 64x288 is narrower than the 1:4 the model was trained on",),
        ),
    ],
)
def test_what_the_model_was_not_trained_on_is_a_warning(
    fields: dict[str, object], warnings: tuple[str, ...]
) -> None:
    assert parsed(**fields).warnings() == warnings


def test_the_table_of_fields_and_the_spec_agree() -> None:
    """Options, forms and docs are made from the table."""
    items = {item.name: item for item in dataclasses.fields(RenderSpec)}
    assert {field.name for field in FIELDS} == set(items) | {"seconds"}
    for name, item in items.items():
        if item.default is not dataclasses.MISSING:
            assert field_named(name).default == item.default, name
    for field in FIELDS:
        assert field.help.endswith("."), field.name
        assert field.label, field.name
    assert field_named("prompt").maximum == MAX_PROMPT
