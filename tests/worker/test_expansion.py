"""From the description of a batch to its specs."""
# ruff: noqa: E501 - tables of sentences

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.description import MAX_JOBS, Description
from h3farm.worker.queue.expansion import expand
from h3farm.worker.queue.faults import BatchError
from h3farm.worker.queue.ranges import values_of
from h3farm.worker.queue.tables import from_csv
from h3farm.worker.queue.template import TemplateError

LISTS = {"place": ("snow", "sand", "reeds")}


def wordlist(name: str) -> tuple[str, ...]:
    if name not in LISTS:
        raise TemplateError(f"there is no wordlist {name}")
    return LISTS[name]


def specs(draw: Callable[[], int] = lambda: 7, **parts: object) -> list[RenderSpec]:
    defaults = {"model": "tiny"} | dict(parts.pop("defaults", {}))  # type: ignore[call-overload]
    return expand(Description.from_json({"defaults": defaults} | parts, draw=draw), wordlist)


def fault(**parts: object) -> str:
    with pytest.raises(BatchError) as caught:
        specs(**parts)
    return str(caught.value)


def test_the_order_is_rows_then_texts_then_fields_then_seeds() -> None:
    made = specs(
        prompts=["a {red|grey} fox", "hare"],
        vary={"steps": [1, 2], "width": [64, 96]},
        seeds=[5, 6],
    )
    seen = [(spec.prompt, spec.steps, spec.width, spec.seed) for spec in made]
    assert seen == [
        (prompt, steps, width, seed)
        for prompt in ("a red fox", "a grey fox", "hare")
        for steps in (1, 2)
        for width in (64, 96)
        for seed in (5, 6)
    ]


def test_rows_win_over_defaults_and_what_is_varied_over_both() -> None:
    made = specs(
        defaults={"steps": 5, "width": 64, "seed": 1},
        rows=[{"prompt": "a", "steps": 9}, {"prompt": "b"}],
        vary={"width": "32..96..32"},
    )
    assert [(spec.prompt, spec.steps, spec.width) for spec in made] == [
        *(("a", 9, width) for width in (32, 64, 96)),
        *(("b", 5, width) for width in (32, 64, 96)),
    ]


@pytest.mark.parametrize(
    ("defaults", "row", "vary", "frames"),
    [
        ({"frames": 22}, {"seconds": 2}, {}, [56]),
        ({"seconds": 2}, {"frames": 22}, {}, [22]),
        ({"seconds": 2}, {}, {"frames": [22, 39]}, [22, 39]),
        ({"frames": 22, "frames_asked": 20}, {}, {"seconds": "2,4"}, [56, 107]),
    ],
)
def test_a_length_takes_the_place_of_any_other_length(
    defaults: dict[str, object],
    row: dict[str, object],
    vary: dict[str, object],
    frames: list[int],
) -> None:
    made = specs(defaults={"prompt": "a", **defaults}, rows=[row], vary=vary)
    assert [spec.frames for spec in made] == frames


def test_a_batch_without_rows_is_made_of_the_defaults() -> None:
    made = specs(defaults={"prompt": "a __place__ fox"})
    assert [spec.prompt for spec in made] == ["a snow fox", "a sand fox", "a reeds fox"]


def test_without_expansion_a_prompt_is_taken_word_for_word() -> None:
    assert specs(prompts=["{x} __y__"], expand="none")[0].prompt == "{x} __y__"


def test_a_number_of_texts_is_drawn_and_all_are_different() -> None:
    prompt = "{a|b|c|d|e} {1|2|3|4|5} __place__"
    drawn = [spec.prompt for spec in specs(prompts=[prompt], expand=10)]
    assert len(set(drawn)) == 10
    assert drawn == [spec.prompt for spec in specs(prompts=[prompt], expand=10)]
    assert drawn != [spec.prompt for spec in specs(lambda: 8, prompts=[prompt], expand=10)]
    # More than there are: all of them, in their order.
    assert len(specs(prompts=["{a|b}", "c"], expand=10)) == 3
    # Of more texts than could ever be written.
    assert len(specs(prompts=["{a|b|c}" * 200], expand=4)) == 4


def test_two_rows_with_one_template_draw_differently() -> None:
    made = specs(prompts=["{a|b|c|d|e|f|g|h} {1|2|3|4|5|6|7|8}"] * 2, expand=3)
    assert [spec.prompt for spec in made[:3]] != [spec.prompt for spec in made[3:]]


def test_drawn_seeds_are_the_same_for_all_texts() -> None:
    made = specs(prompts=["a", "b"], count=3)
    first, second = [spec.seed for spec in made[:3]], [spec.seed for spec in made[3:]]
    assert first == second
    assert len(set(first)) == 3
    assert all(0 <= seed < 2**32 for seed in first)


def test_without_seeds_each_text_has_its_own_and_keeps_it_over_the_grid() -> None:
    made = specs(prompts=["a", "{b|c}"], vary={"steps": [1, 2]})
    seeds = [spec.seed for spec in made]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 3


def test_what_is_drawn_depends_on_the_draw_seed_alone() -> None:
    """A plan that was looked at and what is queued later are the same to the last seed."""
    made = [spec.seed for spec in specs(prompts=["a", "b"])]
    assert made == [spec.seed for spec in specs(lambda: 99, prompts=["a", "b"], draw_seed=7)]
    # For ever: what a batch was made from can be made again by a later version.
    assert made == [714842332, 1022469046]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("20", (20,)),
        ("20,30", (20, 30)),
        ("20..40..10", (20, 30, 40)),
        ("40..20..10", (40, 30, 20)),
        ("40..20..-10", (40, 30, 20)),
        ("20..45..10", (20, 30, 40)),
        ("1..3", (1, 2, 3)),
        ("5..5", (5,)),
        ("0.1..0.4..0.1", (0.1, 0.2, 0.3, 0.4)),
        ("-1..1", (-1, 0, 1)),
        ("1, 5..6 ,9", (1, 5, 6, 9)),
        ([1, "3..4", 2.5], (1, 3, 4, 2.5)),
        (7, (7,)),
    ],
)
def test_values_are_lists_and_ranges(given: object, expected: tuple[object, ...]) -> None:
    assert values_of("video_shift", given) == expected


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 7))
def test_a_range_of_tenths_has_no_rounding(first: int, length: int, step: int) -> None:
    text = f"{first / 10}..{(first + length) / 10}..{step / 10}"
    wanted = tuple(number / 10 for number in range(first, first + length + 1, step))
    assert values_of("video_shift", text) == wanted


CSV = "prompt,steps\nfox,0\nhare,9\nowl,many\n"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"rows": [{"prompt": "a", "steps": 0}]},
            "row 1: steps must be a whole number from 1 to 200, got 0",
        ),
        ({"prompts": ["a", 5]}, "prompt 2: prompt must be a text of 1 to 20000 characters, got 5"),
        ({"prompts": ["a {b"]}, "prompt 1: prompt: { has no } behind it, at character 3"),
        ({"prompts": ["__x__"]}, "prompt 1: prompt: there is no wordlist x"),
        ({"rows": [{"steps": 3}]}, "row 1: prompt is missing: a spec must have one"),
        ({"rows": ["a"]}, "row 1 must be a JSON object"),
        ({"prompts": "a"}, 'prompts must be a list, got "a"'),
        (
            {"prompts": ["a"], "vary": {"steps": "0,1"}},
            "vary: steps must be a whole number from 1 to 200, got 0",
        ),
        (
            {"prompts": ["a"], "vary": {"steps": "1..x"}},
            'vary: steps must be numbers and ranges like 20..40..10, separated by commas, got "1..x"',
        ),
        (
            {"prompts": ["a"], "vary": {"steps": "1..9..0"}},
            "vary: steps must be varied in steps above 0, got 1..9..0",
        ),
        ({"prompts": ["a"], "vary": {"steps": []}}, "vary: steps is varied, but over no values"),
        (
            {"prompts": ["a"], "vary": {"prompt": [1]}},
            "vary must be a numeric field: width, height",
        ),
        ({"prompts": ["a"], "vary": {"frames_asked": [22]}}, "vary must be a numeric field"),
        (
            {"prompts": ["a"], "vary": {"seed": "0..99999999999"}},
            "vary: seed is varied over more than 10000 values",
        ),
        ({"prompts": ["a"], "seeds": ["x"]}, "seeds: seed must be numbers and ranges"),
        (
            {"prompts": ["a"], "seeds": [1], "count": 2},
            "count must be absent when there are seeds, got 2",
        ),
        (
            {"prompts": ["a"], "seeds": [1], "vary": {"seed": [1]}},
            "seeds must be absent when seed is varied",
        ),
        ({"prompts": ["a"], "count": 0}, "count must be a whole number from 1 to 10000, got 0"),
        (
            {"prompts": ["a"], "expand": "some"},
            'expand must be all, none or a whole number from 1 to 10000, got "some"',
        ),
        ({"prompts": ["a"], "draw_seed": -1}, "draw_seed must be a whole number from 0 to"),
        (
            {"prompts": ["a"], "name": "x" * 101},
            "name must be a text of at most 100 characters on one line",
        ),
        (
            {"prompts": ["a"], "name": "a\nb"},
            "name must be a text of at most 100 characters on one line",
        ),
        ({"prompts": ["a"], "colour": 1}, "colour is no part of a batch: one of name, defaults"),
        (
            {"rows": [{"prompt": "a", "steps": 3}], "vary": {"steps": [1]}},
            "row 1: steps is given here, and steps is varied for all: leave one of them out",
        ),
        (
            {"rows": [{"prompt": "a", "seconds": 3}], "vary": {"frames": [22]}},
            "row 1: seconds is given here, and frames is varied for all",
        ),
        (
            {"rows": [{"prompt": "a", "seed": 3}], "count": 2},
            "row 1: seed is given here, and seed is varied for all",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(parts: dict[str, object], sentence: str) -> None:
    assert sentence in fault(**parts)


def test_every_wrong_row_is_told_at_once_with_file_line_field_and_value() -> None:
    rows = from_csv(CSV, "films.csv")
    description = Description.build(rows=rows, draw_seed=1, defaults={"model": "tiny"})
    with pytest.raises(BatchError) as caught:
        expand(description, wordlist)
    assert [each.to_json() for each in caught.value.faults] == [
        {
            "place": f"films.csv line {line}",
            "field": "steps",
            "given": given,
            "allowed": "a whole number from 1 to 200",
            "message": f"films.csv line {line}: steps must be a whole number from 1 to 200, "
            f"got {shown}",
        }
        for line, given, shown in ((2, 0, "0"), (4, "many", '"many"'))
    ]


def test_a_wrong_value_of_the_grid_is_told_once() -> None:
    with pytest.raises(BatchError) as caught:
        specs(prompts=["a", "b", "c"], vary={"steps": [0], "width": [64, 96]})
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("parts", "jobs"),
    [
        ({"prompts": ["a"] * 101, "count": 100}, "10 100"),
        ({"prompts": ["{a|b}" * 14]}, "16 384"),
        ({"prompts": ["{a|b|c}" * 300]}, "far too many"),
    ],
)
def test_too_many_jobs_are_refused_before_they_are_made(
    parts: dict[str, object], jobs: str
) -> None:
    sentence = fault(**parts)
    assert sentence.startswith(f"the batch would have {jobs} jobs, and at most {MAX_JOBS} go into")


def test_as_many_as_are_allowed_are_made() -> None:
    assert len(specs(prompts=["a"] * 100, count=100)) == MAX_JOBS


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_the_count_is_the_product_and_the_order_that_of_nested_loops(
    choices: list[int], steps: int, widths: int, seeds: int
) -> None:
    made = specs(
        prompts=["{" + "|".join([*(f"{row}{n}" for n in range(count)), "x"]) + "}"
                 for row, count in enumerate(choices)],
        vary={"steps": f"1..{steps}", "width": [32 * (n + 1) for n in range(widths)]},
        seeds=f"1..{seeds}",
    )  # fmt: skip
    assert [(spec.prompt, spec.steps, spec.width, spec.seed) for spec in made] == [
        (prompt, step, width, seed)
        for row, count in enumerate(choices)
        for prompt in [*(f"{row}{n}" for n in range(count)), "x"]
        for step in range(1, steps + 1)
        for width in range(32, 32 * widths + 1, 32)
        for seed in range(1, seeds + 1)
    ]
