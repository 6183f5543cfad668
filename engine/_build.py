"""Builds the C engine into h3farm.engine._h3f.

setup.py builds through the `ffi` below; `python engine/_build.py` rebuilds in place, when a source
is newer than the library.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from cffi import FFI

MODULE = "h3farm.engine._h3f"
# -ffp-contract=off: results must not depend on whether a compiler fuses a product into a sum.
COMPILE_FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-pthread",
]
CALLBACKS = """
extern "Python" {
    void h3f_python_progress(void *user, const char *stage, int64_t done, int64_t total);
    void h3f_python_tap(void *user, const char *name, int64_t row, int64_t rows,
                        int64_t total_rows, int64_t cols, const float *data);
}
"""

# cffi runs this file in setup.py's folder, where setuptools wants relative paths.
IN_SETUP = __name__ == "__cffi__"
ROOT = Path() if IN_SETUP else Path(__file__).resolve().parent.parent


def sources() -> list[Path]:
    """The C files of the engine, in a fixed order."""
    return sorted(ROOT.glob("csrc/*.c"))


def headers() -> list[Path]:
    """The headers of the engine, in a fixed order."""
    return sorted(ROOT.glob("csrc/*.h"))


def declarations() -> str:
    """The public header as cffi reads it: no preprocessor lines, no export attribute."""
    text = (ROOT / "csrc/h3f.h").read_text(encoding="utf-8")
    plain = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)
    return plain.replace("H3F_API ", "") + CALLBACKS


def builder() -> FFI:
    """The description of the extension module."""
    made = FFI()
    made.cdef(declarations())
    made.set_source(
        MODULE,
        '#include "h3f.h"',
        sources=[str(path) for path in sources()],
        depends=[str(path) for path in headers()],
        include_dirs=[str(ROOT / "csrc")],
        libraries=[] if sys.platform == "darwin" else ["m"],
        extra_compile_args=COMPILE_FLAGS,
        extra_link_args=["-pthread"],
        py_limited_api=True,
    )
    return made


def build_in_place() -> Path:
    """Compile beside this file if anything changed; the library's path."""
    library = ROOT / "engine/_h3f.abi3.so"
    newest = max(f.stat().st_mtime_ns for f in [*sources(), *headers(), Path(__file__)])
    if library.exists() and library.stat().st_mtime_ns >= newest:
        return library
    (ROOT / "build").mkdir(exist_ok=True)
    # A folder of its own: two builds at once must not write each other's objects, and a running
    # engine keeps the library it has mapped.
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        Path(builder().compile(tmpdir=scratch)).replace(library)
    os.utime(library, ns=(newest, newest))  # older than a source that was saved meanwhile
    return library


if IN_SETUP:
    ffi = builder()
elif __name__ == "__main__":
    sys.stdout.write(f"{build_in_place()}\n")
