"""The files that browsers load: their size, and that nobody has changed what others wrote."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from jobmill.dashboard.pages import HERE, STATIC
from tests.dashboard.visitor import Visitor

# Of npm's htmx.org 4.0.0: dist/htmx.min.js and dist/ext/hx-sse.min.js.
VENDORED = {
    "htmx.min.js": "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f",
    "hx-sse.min.js": "8a834680c4000a9034d79228872372a92e140c810a075cb6d4a76690dfc13085",
}


@pytest.mark.parametrize("name", VENDORED)
def test_vendored_files_are_as_their_project_published_them(name: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == VENDORED[name]
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text("utf-8")


@pytest.mark.parametrize(("name", "limit"), [("jobmill.css", 16_000), ("app.js", 6_000)])
def test_our_own_files_stay_small(name: str, limit: int) -> None:
    assert len((STATIC / name).read_bytes()) <= limit


@pytest.mark.parametrize("path", sorted((HERE / "templates").glob("*.html")), ids=lambda path: path.name)
def test_templates_have_no_inline_script_or_style(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"<style|<script(?! src=)|\sstyle=|\son[a-z]+=|javascript:|\|safe|hx-on|hx-vals=.js", text)


async def test_files_may_be_kept_for_ever_and_change_their_url_when_they_change(visitor: Visitor) -> None:
    page = await visitor.get("/queues")
    urls = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert len(urls) == 5
    for url in urls:
        answer = await visitor.get(url)
        assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
    assert (await visitor.get("/static/000000000000/app.js")).status == 404
