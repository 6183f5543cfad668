"""The door: who may ask for what. Every request passes `check`, every answer gets `harden`.

There are no logins and no cookies. Three rules keep other sites' pages out: the Host header must be
ours (a name pointed at this machine is refused), what a browser says comes from elsewhere is
refused unless it is a plain link, and a change needs the token that only this farm's pages hold.
"""

import hmac
import os
import secrets
from pathlib import Path

from flask import Flask, Request, Response, current_app, request
from werkzeug.exceptions import UnsupportedMediaType

from h3farm.web.errors import CrossSiteError, ForeignHostError, StaleTokenError

OUR_NAMES = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_FIELD = "csrf_token"  # noqa: S105 (the name of a form field)
TOKEN_HEADER = "X-CSRF-Token"  # noqa: S105 (the name of a header)

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "media-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a form would be posted with `Origin: null`, which is refused here.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def install(app: Flask, port: int, token_file: Path) -> None:
    """Put the door in front of every route of `app`."""
    app.config["HOSTS"] = frozenset(f"{name}:{port}" for name in OUR_NAMES)
    app.config["CSRF_TOKEN"] = farm_token(token_file)
    app.before_request(check)
    app.after_request(harden)
    app.jinja_env.globals["csrf_token"] = lambda: current_app.config["CSRF_TOKEN"]


def farm_token(path: Path) -> str:
    """The token of this farm's pages, kept on disk so that open pages survive a restart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600)
    try:
        temporary.write_text(secrets.token_urlsafe(32))
        os.link(temporary, path)  # the first process to get here decides
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text().strip()


def check() -> None:
    """Refuse what must not come in, by raising the error that says why."""
    host = request.environ.get("HTTP_HOST", "").lower()
    if host not in current_app.config["HOSTS"]:
        raise ForeignHostError("The dashboard answers to 127.0.0.1 and localhost only.")
    if request.method in SAFE_METHODS:
        _check_reader(request)
    else:
        _check_writer(request, host)


def _check_reader(request: Request) -> None:
    """A plain link from elsewhere works; embedding, framing and fetching from elsewhere do not."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    link = (
        request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )
    if site not in ("none", "same-origin") and not link:
        raise CrossSiteError("Other sites may link to the dashboard, but not embed or read it.")


def _check_writer(request: Request, host: str) -> None:
    """Same origin to the letter (another port is another program), and the token.

    A program (curl, a script) sends neither header of a browser; the JSON API takes it without a
    token, since no page can make a browser leave them out and send JSON.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    if origin not in (None, f"http://{host}") or site not in (None, "none", "same-origin"):
        raise CrossSiteError("Only the dashboard's own pages may change something.")
    if request.path.startswith("/api/") and origin is None and site is None:
        if request.content_length and not request.is_json:
            raise UnsupportedMediaType
        return
    given = request.headers.get(TOKEN_HEADER) or request.form.get(TOKEN_FIELD, "")
    if not hmac.compare_digest(given.encode(), current_app.config["CSRF_TOKEN"].encode()):
        raise StaleTokenError("This page is not of the running farm: reload it, try again.")


def harden(response: Response) -> Response:
    """The headers that every answer carries."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-cache")
    return response
