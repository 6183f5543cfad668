"""Lists of words in files: `wordlists/<name>.txt` in the farm's folder, one entry a line."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from h3farm.worker.queue.template import TemplateError

ENDING = ".txt"
MAX_BYTES = 4 << 20


def lines_of(text: str) -> list[tuple[int, str]]:
    """The entries of a text with the numbers of their lines: one a line, spaces around it dropped.

    Blank lines and lines that begin with `#` are left out; `\\#` begins an entry with `#`.
    """
    entries = []
    # Not splitlines(), which also breaks at characters that belong to a text.
    lines = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            entries.append((number, entry[1:] if entry.startswith("\\#") else entry))
    return entries


class Wordlists:
    """The lists of one folder; each is read once."""

    def __init__(self, folder: Path) -> None:
        """The folder need not exist."""
        self._folder = folder
        self.lines = functools.cache(self._read)

    def names(self) -> list[str]:
        """The lists that there are."""
        found = sorted(self._folder.rglob(f"*{ENDING}"))
        return [path.relative_to(self._folder).as_posix().removesuffix(ENDING) for path in found]

    def _read(self, name: str) -> tuple[str, ...]:
        """The entries of a list; TemplateError says why there are none."""
        path = self._path(name)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise TemplateError(f"the wordlist {name} has more than {MAX_BYTES >> 20} MiB")
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise TemplateError(
                f"the wordlist {name} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise TemplateError(f"the wordlist {name} is not UTF-8 in line {line}") from error
        entries = tuple(entry for _, entry in lines_of(text))
        if not entries:
            raise TemplateError(f"the wordlist {name} has no entries")
        return entries

    def _path(self, name: str) -> Path:
        """Where a list is; nothing outside of the folder is ever opened, links included."""
        root = self._folder.resolve()
        path = (root / f"{name}{ENDING}").resolve()
        if not path.is_relative_to(root):
            raise TemplateError(f"the wordlist {name} leads out of {self._folder}")
        if not path.is_file():
            known = ", ".join(self.names()) or "none"
            raise TemplateError(
                f"there is no wordlist {name} in {self._folder} (there are: {known}); "
                r"write \_\_ for two plain underscores"
            )
        return path
