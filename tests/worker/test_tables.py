"""Rows of a batch from files: what is read, and every way in which a file can be broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3farm.engine.spec import FIELDS
from h3farm.worker.queue.faults import BatchError
from h3farm.worker.queue.tables import COLUMNS, decoded, from_csv, from_jsonl, from_prompts


def csv_rows(data: bytes | str) -> list[dict[str, object]]:
    text = decoded(data, "films.csv") if isinstance(data, bytes) else data
    return [dict(row.fields) for row in from_csv(text, "films.csv")]


def fault(read: object) -> str:
    with pytest.raises(BatchError) as caught:
        read()  # type: ignore[operator]
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"prompt\na fox\n", [{"prompt": "a fox"}]),
        (b"prompt\na fox", [{"prompt": "a fox"}]),
        (b"\xef\xbb\xbfprompt\r\na fox\r\n", [{"prompt": "a fox"}]),
        (b"prompt\ra fox\r", [{"prompt": "a fox"}]),
        (b"\n\nprompt\n\na fox\n\n \n", [{"prompt": "a fox"}]),
        (b'prompt,steps\n"a fox, red",9\n', [{"prompt": "a fox, red", "steps": 9}]),
        (b'prompt\n"a\r\nfox"\n', [{"prompt": "a\nfox"}]),
        (b'prompt\n"a ""red"" fox"\n', [{"prompt": 'a "red" fox'}]),
        (b"prompt;seconds\na, b;2.5\n", [{"prompt": "a, b", "seconds": 2.5}]),
        (b"prompt\tseed\na, b\t7\n", [{"prompt": "a, b", "seed": 7}]),
        (b"Prompt, Steps \nfox, 9\n", [{"prompt": "fox", "steps": 9}]),
        (
            b"prompt,steps,seed\nfox,,\n,,\nhare,3,\n",
            [{"prompt": "fox"}, {"prompt": "hare", "steps": 3}],
        ),
        (
            b"prompt,audio\na,no\nb,TRUE\nc,0\n",
            [
                {"prompt": "a", "audio": False},
                {"prompt": "b", "audio": True},
                {"prompt": "c", "audio": False},
            ],
        ),
        (b"prompt,steps\n  two spaces  ,20.0\n", [{"prompt": "  two spaces  ", "steps": 20.0}]),
        ("prompt,model\n狐,h3 \n".encode(), [{"prompt": "狐", "model": "h3"}]),
        # What is no number stays a text, of which the spec says what is wrong.
        (
            b"steps,seed,audio\nmany,1_000,maybe\n",
            [{"steps": "many", "seed": "1_000", "audio": "maybe"}],
        ),
    ],
)
def test_a_csv_file_is_read(data: bytes, expected: list[dict[str, object]]) -> None:
    assert csv_rows(data) == expected


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "films.csv line 1: there is no header"),
        (b"\n\n", "films.csv line 1: there is no header"),
        (b"prompt\n", "films.csv has nothing to render in it"),
        (
            b"prompt,stepps\nfox,3\n",
            "films.csv line 1: stepps is not a field of a spec: did you mean steps?",
        ),
        (b"prompt,cfg\nfox,3\n", "films.csv line 1: cfg has no meaning here"),
        (
            b"prompt,version\nfox,1\n",
            "films.csv line 1: version is written by h3farm: it is no column",
        ),
        (b"prompt,steps,steps\nfox,1,2\n", "films.csv line 1 column steps stands in it twice"),
        (b"prompt,,\nfox,1,2\n", "films.csv line 1 column 2 has no name (and 1 more fault)"),
        (b"a fox in snow\na hare\n", "films.csv line 1: a fox in snow is not a field of a spec"),
        (
            b"prompt,steps\na fox, red, 9\n",
            "films.csv line 2 has 3 cells, the header has 2: a text with the separator",
        ),
        (b"prompt,steps\n\nfox\n", "films.csv line 3 has 1 cell, the header has 2"),
        (
            b'prompt\nfox\n"a hare\nand more\n',
            "films.csv line 3 is not CSV: a quote is opened here and never closed",
        ),
        (b'prompt\n"fox" red\n', "films.csv line 2 is not CSV"),
        (b"prompt\ncaf\xe9\n", "films.csv is not UTF-8 in line 2: save it as UTF-8"),
        ("prompt\nfox\n".encode("utf-16"), "films.csv is not UTF-8 in line 1"),
        (
            b"prompt\n" + b"x" * 200_000,
            "films.csv line 2 is not CSV: field larger than field limit",
        ),
    ],
)
def test_a_broken_csv_file_is_told_with_file_and_line(data: bytes, sentence: str) -> None:
    assert sentence in fault(lambda: csv_rows(data))


def test_the_line_of_a_record_is_the_one_it_begins_on() -> None:
    rows = from_csv('prompt\n"a\nb\nc"\n\nd\n', "x.csv")
    assert [row.place for row in rows] == ["x.csv line 2", "x.csv line 6"]


def test_every_broken_line_is_told_at_once() -> None:
    with pytest.raises(BatchError) as caught:
        csv_rows(b"prompt,steps\n" + b"a,b,c\n" * 30)
    faults = caught.value.faults
    assert len(faults) == 20
    assert [each.place for each in faults[:2]] == ["films.csv line 2", "films.csv line 3"]
    assert str(caught.value).endswith("(and 19 more faults)")


def test_every_field_of_a_spec_is_a_column_but_the_written_ones() -> None:
    assert set(COLUMNS) == {field.name for field in FIELDS if field.group != "record"}


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_a_sentence(data: bytes) -> None:
    for read in (from_csv, from_jsonl, from_prompts):
        try:
            rows = read(decoded(data, "x"), "x")
        except BatchError as error:
            assert str(error)
        else:
            assert rows


def test_json_lines_are_read() -> None:
    text = '\ufeff{"prompt": "a fox", "steps": 9}\r\n\n{"prompt": "b", "seed": null}\n'
    rows = from_jsonl(text, "x.jsonl")
    assert [(row.place, dict(row.fields)) for row in rows] == [
        ("x.jsonl line 1", {"prompt": "a fox", "steps": 9}),
        ("x.jsonl line 3", {"prompt": "b"}),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "x.jsonl has nothing to render in it"),
        ('{"prompt": "a"}\n{prompt}', "x.jsonl line 2 is not JSON: Expecting property name"),
        ('["a"]', "x.jsonl line 1 must be a JSON object"),
        ('{"a": 1, "a": 2}', "x.jsonl line 1 is not JSON: a stands in it twice"),
        ('{"steps": NaN}', "x.jsonl line 1 is not JSON: NaN is no JSON number"),
        ("[" * 100_000, "x.jsonl line 1 is not JSON"),
    ],
)
def test_broken_json_lines_are_told(text: str, sentence: str) -> None:
    assert sentence in fault(lambda: from_jsonl(text, "x.jsonl"))


def test_prompts_are_lines() -> None:
    rows = from_prompts("a fox\n\n# not this\n\\#1 dog\n", "x.txt")
    assert [(row.place, row.fields["prompt"]) for row in rows] == [
        ("x.txt line 1", "a fox"),
        ("x.txt line 4", "#1 dog"),
    ]
    assert fault(lambda: from_prompts("\n#\n", "x.txt")) == "x.txt has nothing to render in it"
