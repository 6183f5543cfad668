"""Reading the log of a job, which is renamed when it becomes long and begun anew."""

import codecs
import os
from pathlib import Path


def older(path: Path) -> Path:
    """Where the lines before those of a log are, if it has become long."""
    return path.with_name(f"{path.name}.1")


class LogReader:
    """Reads a log to its end, again and again, through the renaming of one that became long."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._file: int | None = None
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """What was written since the last call; at first everything that is kept."""
        if self._file is None:
            return self._rest(older(self._path), 0) + self._rest(self._path, 0)
        try:
            renamed = self._path.stat().st_ino != self._file
        except OSError:
            return ""
        if not renamed:
            return self._rest(self._path, self._offset)
        return self._rest(older(self._path), self._offset) + self._rest(self._path, 0)

    def _rest(self, path: Path, offset: int) -> str:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
                self._file, self._offset = os.fstat(file.fileno()).st_ino, offset + len(data)
        except OSError:
            return ""
        return self._decoder.decode(data)
