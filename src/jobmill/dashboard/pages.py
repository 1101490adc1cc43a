"""Turns the data of a screen into an answer: a page from its template, or JSON."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from msgspec import Struct
from starlette.responses import Response

from jobmill._version import __version__
from jobmill.core.durations import shown_ms
from jobmill.core.tallies import Tally, added_groups
from jobmill.core.values import CountUpTo
from jobmill.dashboard import charts, shown
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.reads import Checked, Reads
from jobmill.dashboard.view import View

HERE = Path(__file__).parent
STATIC = HERE / "static"

#: Key, path, title, whether it shows the jobs of all tenants.
NAVIGATION: Final = (
    ("o", "", "Overview", True),
    ("j", "jobs", "Jobs", False),
    ("q", "queues", "Queues", True),
    ("e", "errors", "Errors", True),
    ("r", "recurring", "Recurring", False),
    ("f", "flows", "Flows", True),
    ("w", "workers", "Workers", True),
    ("a", "audit", "Audit", True),
    ("s", "system", "System", True),
)


class NavItem(Struct, frozen=True, kw_only=True):
    """One entry of the navigation."""

    key: str
    path: str
    title: str
    count: int | None = None
    is_bad: bool = False


@cache
def environment() -> jinja2.Environment:
    """All templates; every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        number=shown.number,
        count=shown.count,
        duration=shown.duration,
        rate=shown.rate,
        per=shown.per,
        window=shown_ms,
        size=shown.size,
        short_id=shown.short_id,
        json=shown.json_element,
        lines=shown.lines,
        sentence=shown.sentence,
        traceback=shown.traceback_element,
    )
    made.globals.update(charts=charts, HIDDEN=shown.HIDDEN, WINDOWS=shown.WINDOWS)
    return made


@cache
def asset_hash(name: str) -> str:
    """The hash in the URL of a file: a changed file has another URL, so browsers may keep it for ever."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def answer_json(data: Any, status: int = 200) -> Response:
    """Data as JSON; integers that JavaScript would change are texts."""
    content = msgspec.json.encode(shown.exact_integers(msgspec.to_builtins(data)))
    return Response(content, status, media_type="application/json")


def render(view: View, template: str, screen: Any, *, status: int = 200, nav: list[NavItem] | None = None) -> Response:
    """A page."""
    text = (
        environment()
        .get_template(template)
        .render(
            screen=screen,
            view=view,
            can=view.can,
            url=view.url,
            nav=nav or [],
            asset=lambda name: f"{view.base}/static/{asset_hash(name)}/{name}",
            dashboard=view.dashboard,
            version=__version__,
            template=template,
            notice=_notice(view),
        )
    )
    return Response(text, status, media_type="text/html")


def _notice(view: View) -> Done | None:
    """What the last act did, or that a form was refused."""
    if view.mistake is not None:
        return Done(text="Nothing was changed.", level="failed", details=[str(view.mistake.error)])
    return view.dashboard.notices.get(view.param("done") or "")


def navigation(view: View) -> list[NavItem]:
    """The entries that the visitor may open, with the figures that other reads have found: no page reads for them."""
    found = _counts(view.reads) if view.access.tenants is None and view.outage is None else {}
    return [
        NavItem(key=key, path=path, title=title, count=found[path][0], is_bad=found[path][1])
        if path in found
        else NavItem(key=key, path=path, title=title)
        for key, path, title, of_all in NAVIGATION
        if view.access.tenants is None or not of_all
    ]


def _counts(reads: Reads) -> dict[str, tuple[int, bool]]:
    found: dict[str, tuple[int, bool]] = {}
    for path, key in (("queues", "depths"), ("workers", "workers")):
        known = reads.known(key)
        if known is not None:
            found[path] = (len(known), False)
    recurring: CountUpTo | None = reads.known("recurring")
    if recurring is not None and recurring.exact:
        found["recurring"] = (recurring.count, False)
    tallies: list[Tally] | None = reads.known("hour")
    if tallies is not None:
        groups = added_groups(group for tally in tallies for group in tally.error_groups)
        found["errors"] = (len(groups), bool(groups))
    checked: Checked | None = reads.known("checked")
    if checked is not None:
        wrong = sum(one.level != "ok" for one in checked.findings)
        found["system"] = (wrong, wrong > 0)
    return found
