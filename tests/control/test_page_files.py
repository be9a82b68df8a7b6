"""The page's files: the same for everybody, and nothing in them comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

Serve = Callable[..., Any]

FILES = sorted(
    entry.name
    for entry in (resources.files("verl_core.control.page") / "static").iterdir()
    if entry.name.endswith((".js", ".css", ".svg", ".html"))
)


def test_the_page_and_its_files_need_no_token_and_its_figures_do(serve: Serve) -> None:
    client = serve(token="s3cret").client
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/ui/main.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/ui/page.css").status_code == 200
    for path in ("", "/series", "/samples", "/correlation"):
        assert client.get(f"/api/v1/reward/run{path}").status_code == 401
    shown = client.get("/api/v1/reward/run", headers={"Authorization": "Bearer s3cret"})
    assert shown.json()["run_id"] == "demo"


def test_its_policy_lets_nothing_in(serve: Serve) -> None:
    client = serve().client
    for path in ("/", "/ui/main.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_an_address_elsewhere(name: str) -> None:
    text = (resources.files("verl_core.control.page") / "static" / name).read_text("utf-8")
    namespaces = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= namespaces
    assert not re.search(r"""(?:href|src|from)\s*=?\s*["']/""", text)  # relative: behind a prefix


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_script_makes_markup_or_code_of_a_string(name: str) -> None:
    text = (resources.files("verl_core.control.page") / "static" / name).read_text("utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in text


def test_what_is_not_its_file_is_not_served(serve: Serve) -> None:
    client = serve().client
    for path in (
        "/ui/",
        "/ui/index.html",
        "/ui/none.js",
        "/ui/%2e%2e%2f__init__.py",
        "/ui/x/main.js",
    ):
        assert client.get(path).status_code == 404


def test_a_file_that_is_known_is_not_sent_again(serve: Serve) -> None:
    client = serve().client
    first = client.get("/ui/main.js")
    again = client.get("/ui/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == "no-cache"
    assert client.head("/").headers["etag"] == client.get("/").headers["etag"]


def test_the_page_has_the_reports_colours(serve: Serve) -> None:
    from verl_core.look import DARK, LIGHT

    sheet = serve().client.get("/ui/page.css").text
    for colour in (*LIGHT.values(), *DARK.values()):
        assert colour in sheet


def test_it_is_no_part_of_the_api(serve: Serve) -> None:
    paths = serve().client.get("/openapi.json").json()["paths"]
    assert "/" not in paths
    assert not any(path.startswith("/ui") for path in paths)
