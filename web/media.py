"""Files of the renders, in ranges."""

from pathlib import Path

from flask import Blueprint, Response, request, send_file

from h3farm.web.farm import farm
from h3farm.web.outputs import FILES

blueprint = Blueprint("media", __name__, url_prefix="/media")


@blueprint.get("/<day>/<folder>/<name>")
def file(day: str, folder: str, name: str) -> Response:
    """A file of a render; `download` in the query offers it for saving."""
    path = farm().outputs.file(day, folder, name)
    response = send_file(
        path,
        mimetype=FILES[name],
        conditional=True,
        as_attachment="download" in request.args,
        download_name=f"{folder}-{name}",
    )
    return _hand_over(response, path) if response.status_code == 206 else response


def _hand_over(response: Response, path: Path) -> Response:
    """Let the server send a range from the file by itself, as it does with whole files.

    A player that is paused stops reading in the middle of a range; a thread that sends it would
    wait for as long, and there are not many. The server cuts at the Content-Length.
    """
    wrap = request.environ.get("wsgi.file_wrapper")
    if wrap is not None:
        response.close()  # the first reader of the file
        file = path.open("rb")
        file.seek(response.content_range.start or 0)
        response.response = wrap(file)
        response.direct_passthrough = True
    return response
