"""``/docs``: Swagger UI, its files from the installed package ``fastapi-offline``.

FastAPI's own page loads them from a content-delivery network; this one works without internet, and
its Content-Security-Policy lets nothing else be loaded.
"""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)


def add_documents(app: FastAPI) -> None:
    """Serve the page and its files."""

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url="openapi.json",  # relative, so that it works behind a proxy's prefix
            title=app.title,
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},
        )
        page.headers["Content-Security-Policy"] = _POLICY
        return page

    @app.get("/docs/{name}", include_in_schema=False)
    def asset(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        file = resources.files("fastapi_offline") / "static" / name
        headers = {"Cache-Control": "max-age=3600"}
        return Response(file.read_bytes(), media_type=_FILES[name], headers=headers)
