"""What the house style asks of templates, scripts and style sheets."""

import re
from pathlib import Path

import pytest
from flask import Flask

import h3farm.web
from h3farm.web import errors

WEB = Path(h3farm.web.__file__).parent
TEMPLATES = sorted(WEB.glob("templates/**/*.html"))
SCRIPTS = sorted(WEB.glob("static/js/*.js"))
SHEETS = sorted(WEB.glob("static/css/*.css"))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_there_are_files_to_look_at() -> None:
    assert min(len(TEMPLATES), len(SCRIPTS), len(SHEETS)) >= 3


@pytest.mark.parametrize("path", TEMPLATES, ids=names(TEMPLATES))
def test_no_template_has_what_the_policy_forbids(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"(?:src|href|action)=\"(?!\{\{|#)", text) == []
    assert "| safe" not in text


@pytest.mark.parametrize("path", TEMPLATES, ids=names(TEMPLATES))
def test_every_form_that_changes_something_carries_the_token(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count('method="post"') == len(re.findall(r"\{\{ csrf\(\) \}\}", text))


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_scripts_are_small_and_make_no_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    assert re.findall(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text) == []


@pytest.mark.parametrize("path", [*SCRIPTS, *SHEETS], ids=names([*SCRIPTS, *SHEETS]))
def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    assert re.findall(r"@import|url\(|//[a-z]+\.", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SHEETS, ids=names(SHEETS))
def test_colours_are_named_in_one_place(path: Path) -> None:
    """Both schemes change them there; pictures are on black in both."""
    rules = re.sub(r":root \{.*?\n\s*\}\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    colours = set(re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])", rules))
    assert colours <= {"#fff"}


def test_the_docs_name_every_route_and_every_kind_of_failure(app: Flask) -> None:
    page = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text(encoding="utf-8")
    inner = {"/live", "/jobs/<job_id>/live", "/jobs/<job_id>/cancel", "/plan"}  # parts of pages
    inner |= {"/batches/<batch_id>/live", "/batches/<batch_id>/<action>"}
    routes = {rule.rule for rule in app.url_map.iter_rules() if "static" not in rule.rule}
    assert {rule for rule in routes - inner if f"{rule}`" not in page} == set()
    own = {each.kind for each in errors.WebError.__subclasses__()}
    kinds = own | {kind for _, _, kind in errors.STATUS}
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()
