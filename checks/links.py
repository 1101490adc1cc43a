"""Reads built HTML pages: links and anchors have a target, and nothing is loaded from another host."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes with a URL. `href` of a `link` loads a file, `href` of an `a` does not.
_URLS = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}


class _Page(HTMLParser):
    """The ids of a page, and its URLs with the tags that they are in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.urls: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        if url := values.get(_URLS.get(tag, "")):
            self.urls.append((tag, url))


def broken_links(site: Path) -> Iterator[str]:
    """One line for each URL of the pages of a site that leads nowhere, or loads something from another host."""
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if name == "404.html":  # its URLs begin at the root of the host
            continue
        for tag, url in dict.fromkeys(page.urls):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if tag != "a":
                    yield f"{name}: <{tag}> loads {url} from another host"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{name}: {url} does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: {url}: there is no such anchor"
