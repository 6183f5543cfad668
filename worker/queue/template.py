"""Prompt templates: `{red|blue} fox` and `__place__`, and every text that they stand for.

    template  = (text | choice | wordlist)*
    choice    = "{" template "|" template ("|" template)* "}"      an option may be empty
    wordlist  = "__" name "__"                                     one of the lines of the list
    name      = letters, digits, "-", "_" (not two in a row), "/" for a folder of lists

A backslash takes the meaning from `{ } | _` and from itself; before anything else it is a
backslash. `|` outside of braces is text. Lines of wordlists are templates too.

Texts are numbered, the last choice changing fastest: of millions, any one can be had at once.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_DEPTH = 20  # of braces and lists within each other: far more than a person can read

_NAME = re.compile(r"__([A-Za-z0-9](?:[A-Za-z0-9/-]|_(?!_))*)__")
_SPECIAL = "{}|_\\"
# Of other programs' templates: read as words they would go into the prompt.
_FOREIGN = re.compile(r"\d+(\.\d+)?::|\d*(-\d+)?\$\$")


class TemplateError(ValueError):
    """A template that cannot be read; `str()` is a sentence."""


class Template(Protocol):
    """Something that stands for `count` texts, numbered from 0; `height` is how deep it nests."""

    @property
    def count(self) -> int:
        """How many texts; they need not all be different."""

    @property
    def height(self) -> int:
        """How many choices are within each other at most."""

    def text(self, number: int) -> str:
        """The text of a number, 0 <= number < count."""


@dataclass(frozen=True, slots=True)
class Words:
    """A piece of text as it stands."""

    words: str
    count: int = 1
    height: int = 0

    def text(self, number: int) -> str:
        """The one text."""
        return self.words


class Choice:
    """One of the options, those of the first option first."""

    def __init__(self, options: Sequence[Template]) -> None:
        """At least one option."""
        self._options = options
        self._starts = [0, *itertools.accumulate(option.count for option in options)]
        self.count = self._starts.pop()
        self.height = 1 + max(option.height for option in options)

    def text(self, number: int) -> str:
        """The text of a number."""
        place = bisect.bisect_right(self._starts, number) - 1
        return self._options[place].text(number - self._starts[place])


class Row:
    """All parts behind one another, the last one changing fastest."""

    def __init__(self, parts: Sequence[Template]) -> None:
        """No parts: the empty text."""
        self._parts = parts
        self.count = math.prod(part.count for part in parts)
        self.height = max((part.height for part in parts), default=0)

    def text(self, number: int) -> str:
        """The text of a number."""
        texts = []
        for part in reversed(self._parts):
            number, own = divmod(number, part.count)
            texts.append(part.text(own))
        return "".join(reversed(texts))


Lookup = Callable[[str], Sequence[str]]


class Parser:
    """Reads templates. `lookup` gives the lines of a wordlist, or raises TemplateError."""

    def __init__(self, lookup: Lookup) -> None:
        """A wordlist is looked up when a template first names it, and parsed once."""
        self._lookup = lookup
        self._lists: dict[str, Choice] = {}

    def parse(self, source: str) -> Template:
        """The template that a text is; TemplateError."""
        return _Reader(source, self, (), 0).row(0)

    def wordlist(self, name: str, inside: tuple[str, ...], level: int) -> Choice:
        """A wordlist as a choice; `inside` are the lists that lead to it."""
        if name in inside:
            way = " → ".join((*inside[inside.index(name) :], name))
            raise TemplateError(f"the wordlist {name} leads back to itself ({way})")
        if name not in self._lists:
            options = []
            for line in self._lookup(name):
                try:
                    options.append(_Reader(line, self, (*inside, name), level).row(0))
                except TemplateError as error:
                    raise TemplateError(f"in the wordlist {name}: {error}") from error
            self._lists[name] = Choice(options)
        return self._lists[name]


def escape(text: str) -> str:
    """The template that stands for exactly this text."""
    return re.sub(r"[{}|_\\]", r"\\\g<0>", text)


class _Reader:
    """Reads one template from left to right. `level`: the choices around it."""

    def __init__(self, source: str, parser: Parser, inside: tuple[str, ...], level: int) -> None:
        self._source = source
        self._parser = parser
        self._inside = inside
        self._level = level
        self._at = 0

    def row(self, depth: int) -> Row:
        """Parts up to the end of the template, or of the option when depth is not 0."""
        parts: list[Template] = []
        words: list[str] = []
        while (char := self._peek()) and not (depth and char in "|}"):
            if char == "}":
                raise self._fault("} has no { before it")
            part = self._choice(depth) if char == "{" else self._wordlist(depth)
            if part is None:
                words.append(self._character())
                continue
            parts += [Words("".join(words)), part] if words else [part]
            words.clear()
        if words:
            parts.append(Words("".join(words)))
        return Row(parts)

    def _choice(self, depth: int) -> Choice:
        start = self._at
        self._check_depth(self._level + depth + 1, start)
        options: list[Template] = []
        while self._peek() != "}" or not options:
            self._at += 1  # the brace or the bar
            if foreign := _FOREIGN.match(self._source, self._at):
                raise self._fault(
                    f"{foreign[0]} is not known here: options have no weights and no numbers"
                )
            options.append(self.row(depth + 1))
            if not self._peek():
                raise self._fault("{ has no } behind it", start)
        self._at += 1
        if len(options) == 1:
            raise self._fault(r"{...} has no | in it: write \{ for a plain brace", start)
        return Choice(options)

    def _wordlist(self, depth: int) -> Choice | None:
        """The lines of the list that is named here; None when no list is."""
        match = _NAME.match(self._source, self._at)
        if match is None:
            return None
        start, self._at = self._at, match.end()
        level = self._level + depth + 1
        self._check_depth(level, start)
        try:
            found = self._parser.wordlist(match[1], self._inside, level)
        except TemplateError as error:
            raise self._fault(str(error), start) from error
        self._check_depth(self._level + depth + found.height, start)
        return found

    def _check_depth(self, level: int, start: int) -> None:
        if level > MAX_DEPTH:
            raise self._fault(f"choices go deeper than {MAX_DEPTH} levels", start)

    def _character(self) -> str:
        char = self._source[self._at]
        self._at += 1
        if char == "\\" and self._peek() and self._peek() in _SPECIAL:
            char = self._source[self._at]
            self._at += 1
        return char

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _fault(self, what: str, at: int | None = None) -> TemplateError:
        place = self._at if at is None else at
        near = " ".join(self._source[place : place + 20].split())
        return TemplateError(f"{what}, at character {place + 1} (“{near}”)")
