"""The site: what leads nowhere is found, the reference has every public name, and a browser shows the pages.

Set JOBMILL_TEST_SHOTS to a folder to have a picture of each.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

import pytest
from starlette.staticfiles import StaticFiles

from checks.links import broken_links
from checks.site import Site
from tests.docs.pages import DOCS, ROOT, section, table
from tests.kit.browser import PHONE, WIDE, Tabs, shot

SETTINGS = """
[project]
site_name = "x"
docs_dir = "docs"
site_dir = "html"
use_directory_urls = false
nav = [{ "Home" = "index.md" }]
[project.theme]
font = false
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.pymdownx.highlight]
"""


def site_of(root: Path, **pages: str) -> Site:
    (root / "docs").mkdir()
    (root / "zensical.toml").write_text(SETTINGS)
    for name, text in pages.items():
        (root / f"docs/{name}.md").write_text(text)
    return Site(root)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](b.md)", "docs/index.md: docs/b.md does not exist"),
        ("[a](../b.py)", "docs/index.md: b.py does not exist"),
        ("[a](#nothing)", "anchor does not exist"),
        ("![a](b.png)", "docs/index.md: docs/b.png does not exist"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in "\n".join(site_of(tmp_path, index=f"# Home\n\n{text}\n").problems())


@pytest.mark.extended
def test_a_page_outside_of_the_navigation_is_found(tmp_path: Path) -> None:
    site = site_of(tmp_path, index="# Home\n", lost="# Lost\n")
    assert list(site.problems()) == ["docs/lost.md: not in the navigation of zensical.toml"]


@pytest.mark.extended
def test_a_page_without_a_file_is_found(tmp_path: Path) -> None:
    site = site_of(tmp_path, start="# Home\n")
    problems = list(site.problems())
    assert problems[0] == "zensical.toml: docs/index.md does not exist"


@pytest.mark.extended
def test_files_outside_of_docs_become_pages_and_words_for_tests_become_titles(tmp_path: Path) -> None:
    block = "```python file=shop.py\nprint('[a](nothing.md)')\n```\n\n```console\n$ jobmill queues\n```\n"
    site = site_of(tmp_path, index=f"# Home\n\n[the example](../examples/a.py)\n\n{block}")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/a.py").write_text("x = 17\n")
    assert list(site.problems()) == []
    assert "17" in (site.html / "repository/examples/a.py.html").read_text()
    home = (site.html / "index.html").read_text()
    assert "repository/examples/a.py.html" in home
    assert re.search(r'class="filename">shop\.py<', home)
    assert "jobmill" in home
    assert "$" not in home[home.index("<article") : home.index("</article")]


def test_broken_links_and_other_hosts_are_found_in_html(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/index.html").write_text('<h1 id="top"></h1>')
    (tmp_path / "index.html").write_text(
        '<a href="b/#top"></a><a href="b/#end"></a><a href="c.html"></a><a href="https://example.com"></a>'
        '<img src="d.png"><script src="https://example.com/e.js"></script>'
    )
    assert list(broken_links(tmp_path)) == [
        "index.html: b/#end: there is no such anchor",
        "index.html: c.html does not exist",
        "index.html: d.png does not exist",
        "index.html: <script> loads https://example.com/e.js from another host",
    ]


# ---------------------------------------------------------------------------------------------------- reference


@pytest.mark.parametrize(
    "module",
    ["jobmill", "jobmill.testing", "jobmill.django", "jobmill.bullmq", "jobmill.crontab", "jobmill.compat.celery"],
)
def test_the_reference_has_every_public_name(module: str) -> None:
    described = {
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"(?m)^::: (.+)$", page.read_text())
    }
    source = (ROOT / "src" / module.replace(".", "/") / "__init__.py").read_text()
    (names,) = re.findall(r"^__all__ = \[(.*?)\]", source, re.MULTILINE | re.DOTALL)
    public = {f"{module}.{name}" for name in re.findall(r'"(\w+)"', names) if name != "__version__"}
    assert public
    assert public - described == set()


def test_the_names_of_the_reference_exist() -> None:
    for page in (DOCS / "api").glob("*.md"):
        for path in re.findall(r"^::: (.+)$", page.read_text(), re.MULTILINE):
            if not path.startswith("jobmill.django."):  # whose import needs the settings of a project
                module, _, name = path.rpartition(".")
                assert hasattr(import_module(module), name), path


# ---------------------------------------------------------------------------------------------------- figures

LEAN = "jobmill, lean indexes"

#: For each row of the table on docs/choosing-a-store.md: the column of docs/performance.md, the end of the headings of
#: the sections there, and the run.
FIGURES = {
    "jobs per second, 50 at once": ("jobs/s", "drain", "50 slots"),
    "jobs per second, one at a time": ("jobs/s", "drain", "1 slot"),
    "enqueued per second, one by one": ("jobs/s", "enqueue", "one by one"),
    "enqueued per second, 1,000 in a call": ("jobs/s", "enqueue", "1,000 a call"),
    "from `enqueue` to the start in an idle worker, median": ("p50 ms", "pickup", "since the call"),
    "until a job of a killed worker runs again": ("s until it started again", "recovery", "after kill -9"),
    "memory of an idle worker": ("MB", "memory", "idle"),
}


def measured(store: str, column: str, measure: str, how: str) -> str:
    """The median of one figure on docs/performance.md."""
    who = LEAN if store == "MongoDB" else "jobmill"
    if measure in ("recovery", "memory"):
        heading, who = f"All stores: {measure}", f"{who} on {store}"
    elif store == "SQLite":
        heading = {"drain": "SQLite and memory: drain"}.get(measure, f"SQLite: {measure}")
        how = f"another process, {how}" if measure == "pickup" else how
    else:
        heading = f"{store}: {measure}"
    rows = table(DOCS / "performance.md", heading, "who")
    (figure,) = [row[column] for row in rows if (row["who"], row["how"]) == (who, how)]
    return figure.split()[0]


def test_the_figures_for_choosing_a_store_are_the_measured_ones() -> None:
    rows = {row[""]: row for row in table(DOCS / "choosing-a-store.md", "Measured", "")}
    assert rows.keys() == FIGURES.keys()
    for label, figure in FIGURES.items():
        for column, shown in list(rows[label].items())[1:]:
            assert shown.split()[0] == measured(column.split(",")[0], *figure), (label, column)
    again = table(DOCS / "performance.md", "MongoDB: drain, measured again", "who")
    (faster,) = [row["jobs/s"].split()[0] for row in again if (row["who"], row["how"]) == (LEAN, "50 slots")]
    assert f"ran {faster} jobs per second" in section(DOCS / "choosing-a-store.md", "Measured")


# ---------------------------------------------------------------------------------------------------- browser

SHOWN = {"home": "index", "tutorial": "tutorial", "reference": "api/jobmill", "store": "choosing-a-store", "faq": "faq"}


@pytest.mark.extended
async def test_a_browser_shows_the_pages_and_finds_words(tabs: Tabs, serving: Callable[..., Awaitable[str]]) -> None:
    site = Site()
    assert list(site.problems()) == []
    url = await serving(StaticFiles(directory=site.html, html=True))
    for width, screen in {"wide": WIDE, "phone": PHONE}.items():
        page = await tabs.open(f"{url}/index.html", screen)
        for name, path in SHOWN.items():
            await page.goto(f"{url}/{path}.html")
            await page.locator("article h1").first.wait_for()
            overflow = await page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, (name, width)
            await shot(page, f"{name}-{width}")
        await page.goto(f"{url}/index.html")
        found = page.locator("a[href*='faq.html'][href*='visibility-timeout']")
        assert await found.count() == 0
        await page.locator(".md-search__button:visible, label[for=__search]:visible").last.click()
        await page.keyboard.type("visibility timeout")
        await found.first.wait_for()
        await shot(page, f"search-{width}")
