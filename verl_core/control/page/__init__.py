"""The page at ``/``: files as they are, and a style sheet that has the house's colours.

Nothing is built and nothing comes from elsewhere: plain HTML, one style sheet, ES modules. The page
is the same for every run and open to everybody, as ``/docs`` is; what it shows it asks of the API,
with the token that its reader types in. Its Content-Security-Policy allows no script, style or
connection but this server's own, and no markup from strings (Trusted Types): what a model wrote is
only ever text.

All addresses in it are relative, so that it works behind a proxy's prefix.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from verl_core.look import style_sheet

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for anew each time, answered with 304 while it is the same: after an update of the
    # package no old module talks to a new server.
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the page and its files."""

    @app.get("/", include_in_schema=False)
    def page(request: Request) -> Response:
        return _answer(request, "index.html", "text/html")

    @app.get("/ui/{name}", include_in_schema=False)
    def part(name: str, request: Request) -> Response:
        kind = next((kind for end, kind in _KINDS.items() if name.endswith(end)), None)
        if kind is None or name not in _files():
            raise HTTPException(404)
        return _answer(request, name, kind)


def _answer(request: Request, name: str, kind: str) -> Response:
    body = _files()[name]
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {**_HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


@functools.cache
def _files() -> dict[str, bytes]:
    """Name -> content."""
    folder = resources.files("verl_core.control.page") / "static"
    found = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}
    found["page.css"] = style_sheet().encode() + found["page.css"]
    return found
