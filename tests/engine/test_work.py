"""The work of a render's units, held against the published totals of the release."""

import pytest

from h3farm.engine.costs import Networks, tiles_of
from h3farm.engine.spec import RenderSpec
from h3farm.engine.work import UNITS, Task, guessed_rows, tasks_of


def spec(width: int, height: int, frames: int, **fields: object) -> RenderSpec:
    sizes = {"width": width, "height": height, "frames": frames}
    return RenderSpec.from_json({"prompt": "fox", "model": "m", "seed": 1} | sizes | fields)


def task(unit: str, networks: Networks, wanted: RenderSpec, rows: int = 256) -> Task:
    return next(task for task in tasks_of(networks, wanted, rows) if task.unit == unit)


@pytest.mark.parametrize(
    ("wanted", "tera"),
    [
        (spec(512, 512, 22), 88.2),
        (spec(864, 480, 124), 954.6),
        (spec(1344, 768, 362), 21345),
    ],
)
def test_the_work_of_a_step_is_that_of_the_published_table(
    release: Networks, wanted: RenderSpec, tera: float
) -> None:
    assert task("step", release, wanted).work / 1e12 == pytest.approx(tera, rel=1e-3)


@pytest.mark.parametrize(
    ("wanted", "tiles", "tera"),
    [(spec(512, 512, 22), 9, 87), (spec(864, 480, 56), 15, 434), (spec(1344, 768, 107), 28, 1600)],
)
def test_the_work_of_decoding_is_that_of_the_published_table(
    release: Networks, wanted: RenderSpec, tiles: int, tera: float
) -> None:
    assert tiles_of(release.video_vae, wanted) == (tiles, 256)
    clips = task("clip", release, wanted)
    assert clips.count * clips.work / 1e12 == pytest.approx(tera, rel=0.05)


@pytest.mark.parametrize(("rows", "tera"), [(256, 12.5), (1400, 70), (7600, 418)])
def test_the_work_of_encoding_is_that_of_the_published_table(
    release: Networks, rows: int, tera: float
) -> None:
    found = task("encode", release, spec(512, 512, 22), rows).work / 1e12
    assert found == pytest.approx(tera, rel=0.05)


def test_preparing_counts_the_tables_and_the_refiner(release: Networks) -> None:
    """0.52 GFLOP a step and block (sound has its own time), 1.54 GFLOP a token."""
    wanted = spec(512, 512, 22, steps=8)
    found = task("prepare", release, wanted).work
    assert found == pytest.approx(8 * 50 * 0.52e9 + 256 * 1.54e9, rel=0.02)


def test_the_sound_of_fifteen_seconds_is_that_of_the_published_table(release: Networks) -> None:
    assert task("sound", release, spec(512, 512, 362)).work / 1e12 == pytest.approx(1.5, rel=0.05)


def test_the_units_come_in_order_and_only_those_that_are_wanted(release: Networks) -> None:
    assert [task.unit for task in tasks_of(release, spec(96, 64, 22))] == list(UNITS)
    silent = [task.unit for task in tasks_of(release, spec(96, 64, 22, audio=False))]
    assert silent == [unit for unit in UNITS if unit != "sound"]
    pictures = task("assemble", release, spec(96, 64, 22, keep_frames=True))
    assert pictures.work == 2 * task("assemble", release, spec(96, 64, 22)).work


def test_without_a_tokenizer_the_rows_are_guessed_from_the_prompt(release: Networks) -> None:
    prompt = "A red fox trots through fresh snow; its paws crunch."
    assert guessed_rows(prompt) == 14
    wanted = spec(96, 64, 22, prompt=prompt)
    assert tasks_of(release, wanted) == tasks_of(release, wanted, 14)


def test_dimensions_survive_json_and_name_a_speed(release: Networks) -> None:
    assert Networks.from_json(release.to_json()) == release
    assert release.signature(10) == Networks.from_json(release.to_json()).signature(10)
    assert release.signature(10) != release.signature(20)
