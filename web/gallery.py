"""The gallery: finished renders, to play and to queue again."""

from flask import Blueprint, render_template, request

from h3farm.web.farm import farm

blueprint = Blueprint("gallery", __name__, url_prefix="/gallery")


@blueprint.get("")
def grid() -> str:
    """Newest first; `search` narrows by words of the prompt, `start` pages."""
    search = request.args.get("search", "").strip()
    start = max(0, request.args.get("start", 0, type=int))
    page = farm().outputs.page(search=search, start=start)
    return render_template("gallery/grid.html", page=page, search=search)


@blueprint.get("/<day>/<folder>")
def render(day: str, folder: str) -> str:
    """One render: the video and how it was made."""
    return render_template("gallery/render.html", render=farm().outputs.get(day, folder))
