"""What the docs say of fields, commands, settings, routes and states is what the code has."""

import json
import re
import sys
from pathlib import Path

import pytest

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.states import State

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import reference  # noqa: E402 - a script beside the packages, not an installed module

ALL_DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make reference` writes them again."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == reference.PAGES[name]()


def test_the_example_spec_is_valid() -> None:
    text = (ROOT / "docs/spec.md").read_text(encoding="utf-8")
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example
    assert RenderSpec.from_json(json.loads(example[1])).frames == 56


def test_every_environment_variable_is_explained() -> None:
    used = {
        name
        for folder in ("engine", "worker", "web", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(
            r"\b(?:H3FARM_[A-Z]+|REDIS_URL|PLAYWRIGHT_[A-Z]+)\b", path.read_text()
        )
    }
    explained = set(
        re.findall(r"^\| `([A-Z0-9_]+)`", (ROOT / "docs/settings.md").read_text(), re.M)
    )
    assert used - {"H3FARM_"} == explained


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {
        target
        for page in ALL_DOCS
        for target in re.findall(r"\bmake ([a-z][a-z0-9-]+)\b", page.read_text(encoding="utf-8"))
        if f"`make {target}" in page.read_text(encoding="utf-8")
        or f"    make {target}" in page.read_text(encoding="utf-8")
    }
    assert named <= targets


def test_every_link_between_the_docs_leads_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in ALL_DOCS
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_job_state_is_in_the_architecture_page() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert [state for state in State if state.value not in text] == []
