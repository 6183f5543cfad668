"""Prompt templates and wordlists: what they stand for, and what is refused."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3farm.worker.queue.template import MAX_DEPTH, Parser, Template, TemplateError, escape
from h3farm.worker.queue.wordlists import Wordlists, lines_of

LISTS = {"size": ["tall", "small"], "animal": ["fox", "{arctic |}hare"], "deep": ["__animal__"]}


def parse(source: str) -> Template:
    return Parser(lookup).parse(source)


def lookup(name: str) -> list[str]:
    if name not in LISTS:
        raise TemplateError(f"there is no wordlist {name}")
    return LISTS[name]


def texts(source: str) -> list[str]:
    template = parse(source)
    return [template.text(number) for number in range(template.count)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", [""]),
        ("a fox", ["a fox"]),
        ("a {red|grey} fox", ["a red fox", "a grey fox"]),
        ("{a|b}{c|d}", ["ac", "ad", "bc", "bd"]),
        ("a {very |}big fox", ["a very big fox", "a big fox"]),
        ("{a|{b|c}d|}", ["a", "bd", "cd", ""]),
        (
            "__size__ __animal__",
            [
                f"{size} {animal}"
                for size in ("tall", "small")
                for animal in ("fox", "arctic hare", "hare")
            ],
        ),
        ("{__size__|x}", ["tall", "small", "x"]),
        ("__deep__", ["fox", "arctic hare", "hare"]),
        (r"\{a\|b\} \_\_size\_\_ \\", ["{a|b} __size__ \\"]),
        (r"C:\new \ end\q", [r"C:\new \ end\q"]),
        ("a | b", ["a | b"]),
        ("snake_case __ and _x_", ["snake_case __ and _x_"]),
        ("{日|本}語", ["日語", "本語"]),
        ("line\n{a|b}", ["line\na", "line\nb"]),
    ],
)
def test_a_template_stands_for_its_texts_in_order(source: str, expected: list[str]) -> None:
    """The last choice changes fastest."""
    assert texts(source) == expected


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("a {red|grey fox", "{ has no } behind it, at character 3 (“{red|grey fox”)"),
        ("a red} fox", "} has no { before it, at character 6 (“} fox”)"),
        ("a {red} fox", r"{...} has no | in it: write \{ for a plain brace, at character 3"),
        ("{}", "{...} has no | in it"),
        ("{2::red|blue}", "2:: is not known here: options have no weights and no numbers"),
        ("{0.5::red|blue}", "0.5:: is not known here"),
        ("{2$$red|blue}", "2$$ is not known here"),
        ("{red|3::blue}", "3:: is not known here"),
        ("a __thing__", "there is no wordlist thing, at character 3"),
        ("{" * (MAX_DEPTH + 1), f"choices go deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(source: str, sentence: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse(source)
    assert sentence in str(caught.value)


def test_wordlists_that_lead_back_to_themselves_are_told() -> None:
    lists = {"a": ["x __b__"], "b": ["__c__"], "c": ["{1|__b__}"]}
    with pytest.raises(TemplateError, match=r"leads back to itself \(b → c → b\)"):
        Parser(lists.__getitem__).parse("__a__")


def test_wordlists_may_not_nest_without_end() -> None:
    """Also when the deep ones were read before: nothing then recurses deeper than the limit."""
    lists = {f"l{number}": [f"__l{number + 1}__"] for number in range(100)} | {"l100": ["x"]}
    parser = Parser(lists.__getitem__)
    assert parser.parse(f"__l{101 - MAX_DEPTH}__").count == 1
    with pytest.raises(TemplateError, match="deeper than"):
        parser.parse(f"__l{100 - MAX_DEPTH}__")


def test_a_list_of_lists_of_lists_costs_one_reading_each() -> None:
    """A thousand lines that name a list of a thousand lines that name one: counted, not written."""
    reads: list[str] = []
    lists = {"a": ["__b__"] * 1000, "b": ["__c__"] * 1000, "c": ["x", "y"] * 500}

    def read(name: str) -> list[str]:
        reads.append(name)
        return lists[name]

    template = Parser(read).parse("__a__ {__a__|__b__}")
    assert template.count == 1000**3 * (1000**3 + 1000**2)
    assert template.text(template.count - 1) == "y y"
    assert reads == ["a", "b", "c"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(TEXT)
def test_an_escaped_text_stands_for_itself_alone(text: str) -> None:
    assert texts(escape(text)) == [text]


# A template as a tree: a text, a choice of templates, or a row of them.
TREES = st.recursive(
    TEXT,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda options: ("choice", options)),
        st.lists(inner, max_size=3).map(lambda parts: ("row", parts)),
    ),
    max_leaves=8,
)


def written(tree: object) -> str:
    if isinstance(tree, str):
        return escape(tree)
    kind, parts = tree  # type: ignore[misc]
    inner = [written(part) for part in parts]
    return "{" + "|".join(inner) + "}" if kind == "choice" else "".join(inner)


def meant(tree: object) -> list[str]:
    """All texts, by the naive way."""
    if isinstance(tree, str):
        return [tree]
    kind, parts = tree  # type: ignore[misc]
    if kind == "choice":
        return [text for part in parts for text in meant(part)]
    found = [""]
    for part in parts:
        found = [before + text for before in found for text in meant(part)]
    return found


def is_foreign(tree: object) -> bool:
    return "::" in written(tree) or "$$" in written(tree)


@given(TREES.filter(lambda tree: not is_foreign(tree)))
def test_every_text_of_a_written_template_comes_once_and_in_order(tree: object) -> None:
    assert texts(written(tree)) == meant(tree)


@given(st.lists(st.integers(2, 5), max_size=6))
def test_counts_multiply(sizes: list[int]) -> None:
    source = " ".join("{" + "|".join(map(str, range(size))) + "}" for size in sizes)
    assert parse(source).count == math.prod(sizes)
    assert len(set(texts(source))) == math.prod(sizes)


@settings(max_examples=300)
@given(st.text("{}|_\\a $:2", max_size=40))
def test_any_text_is_read_or_refused_in_a_sentence(source: str) -> None:
    try:
        template = parse(source)
    except TemplateError as error:
        assert str(error)
        return
    assert template.text(template.count - 1) is not None


def test_a_wordlist_is_a_file_with_comments_and_blank_lines(tmp_path: Path) -> None:
    content = "\ufeff# animals\r\nfox\r\n\r\n  hare  \n#gone\n\\#1 dog\rend".encode()
    (tmp_path / "animal.txt").write_bytes(content)
    assert Wordlists(tmp_path).lines("animal") == ("fox", "hare", "#1 dog", "end")
    assert lines_of("a\n\n#b\nc\u2028d") == [(1, "a"), (4, "c\u2028d")]


def test_a_wordlist_may_be_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "places").mkdir()
    (tmp_path / "places" / "cold-ones.txt").write_text("snow\nice\n")
    lists = Wordlists(tmp_path)
    assert Parser(lists.lines).parse("__places/cold-ones__").count == 2
    assert lists.names() == ["places/cold-ones"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "link", "nope", ""])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "wordlists"
    (folder / "a").mkdir(parents=True)
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(TemplateError, match=r"leads out of|there is no wordlist"):
        Wordlists(folder).lines(name)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the wordlist x has no entries"),
        (b"# only\n\n", "the wordlist x has no entries"),
        (b"good\nbad \xff\n", "the wordlist x is not UTF-8 in line 2"),
        (b"a{\n", "in the wordlist x: { has no } behind it"),
    ],
)
def test_a_wordlist_that_cannot_be_used_is_told(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(TemplateError) as caught:
        Parser(Wordlists(tmp_path).lines).parse("__x__")
    assert sentence in str(caught.value)


def test_a_missing_wordlist_is_told_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "animal.txt").write_text("fox")
    with pytest.raises(TemplateError) as caught:
        Parser(Wordlists(tmp_path).lines).parse("a __thing__")
    assert "there is no wordlist thing in" in str(caught.value)
    assert "(there are: animal)" in str(caught.value)
