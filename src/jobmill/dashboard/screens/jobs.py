"""Jobs: those that match a search, a page at a time, each with one line that says why it is as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, structs
from starlette.responses import RedirectResponse, Response

from jobmill.core.announcing import WorkerCard
from jobmill.core.changes import CHANGES_FROM
from jobmill.core.cursors import leads_back
from jobmill.core.due import in_lane
from jobmill.core.job import STATES, Job
from jobmill.core.values import (
    DEPTH_LIMIT,
    EVERYTHING,
    PAYLOADS_SEARCHED,
    SEARCHED_PER_PAGE,
    Depth,
    Filter,
    Lane,
    Order,
    Page,
    order_of,
)
from jobmill.dashboard.pages import navigation, render
from jobmill.dashboard.screens.job_rows import JobRow, Lanes, row_of
from jobmill.dashboard.search import TABS, Search, possible_id, search_of, with_words
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue, JobNotFound

#: Acts on many jobs in the order of their buttons.
BULK_ACTS: Final = ("requeue", "cancel", "hold", "release", "reschedule", "reprioritize", "remove")
_ACT_STATES: Final = {kind.__name__.lower(): states for kind, states in CHANGES_FROM.items()}

#: Tabs whose jobs `depths` counts in other tabs: those that are retried are due or later.
_UNCOUNTED: Final = ("retrying",)
#: A count that was not made.
UNKNOWN: Final[tuple[int | None, bool]] = (None, True)


class Tab(Struct, frozen=True, kw_only=True):
    """One tab, and how many jobs it has; None where that was not counted. Not `exact`: at least this number."""

    state: str
    count: int | None = None
    exact: bool = True


class JobsScreen(Struct, frozen=True, kw_only=True):
    """A page of the jobs that match. `next` and `previous` are the `cursor` of the pages beside it."""

    q: str
    state: str
    chips: list[str]
    tabs: list[Tab]
    rows: list[JobRow]
    #: For programs only: the jobs in full, as `jobmill jobs list --json` prints them.
    jobs: list[dict[str, Any]] = []
    next: str | None = None
    previous: str | None = None
    #: How many match; None where that was not counted. Not `exact`: at least this number.
    total: int | None = None
    exact: bool = True
    #: Only the newest jobs were searched, because the search has a field of the payload.
    partial: bool = False
    searched: int = PAYLOADS_SEARCHED
    #: The search has examined `searched_per_page` jobs and is not at its end: the next page continues it.
    unfinished: bool = False
    searched_per_page: int = SEARCHED_PER_PAGE
    order: Order = "own"
    #: What the visitor may do to many jobs of this tab.
    acts: list[str] = []
    #: Whose jobs are shown to a visitor who may see those of some tenants.
    tenant: str | None = None
    #: Why the text in the field cannot be read.
    problem: str | None = None
    written: str = ""


async def jobs(view: View) -> JobsScreen | Response:
    """The jobs that match `q` in the tab `state`, from `cursor` on. `add` has more words for `q`."""
    try:
        q = with_words(view.param("q") or "", view.param("add") or "")
        id = possible_id(q)
        job = None if id is None else await _job(view, id)
        if job is not None and not view.wants_json:
            return RedirectResponse(view.url("jobs", job.id), 303)
        search = search_of(view, "" if job else q, view.param("state"))
    except InvalidValue as error:
        if view.wants_json:
            raise
        text = str(error).removeprefix("q: ")  # the page has no field of this name
        return await _unreadable(view, text[:1].upper() + text[1:])
    if job is not None:
        return _screen(view, search, Page([job]), [], (1, True), None)
    if not view.wants_json and not _is_canonical(view, search):
        state = None if search.state == "all" else search.state
        return RedirectResponse(view.url("jobs", q=search.q or None, state=state, done=view.param("done")), 303)
    return await _read(view, search)


async def _job(view: View, id: str) -> Job | None:
    try:
        return await view.job(id)
    except JobNotFound:
        return None


def _is_canonical(view: View, search: Search) -> bool:
    """Whether the URL has the search as its chips have it: then links and forms can take it over."""
    given = view.request.query_params
    state = given.get("state", "all")
    return "add" not in given and given.get("q", search.q) == search.q and state == search.state


async def _unreadable(view: View, problem: str) -> Response:
    """The page again, with what the visitor has written and what is wrong about it."""
    q, more, tab = view.param("q") or "", view.param("add"), view.param("state") or "all"
    try:
        kept = search_of(view, q, tab)
    except InvalidValue:
        kept, more = search_of(view, "", tab if tab in TABS else "all"), more or q
    screen = structs.replace(
        _screen(view, kept, Page([]), [], UNKNOWN, None), problem=problem, written=more or "", acts=[]
    )
    return render(view, "jobs.html", screen, status=400, nav=navigation(view))


# ---------------------------------------------------------------------------------------------------- reading


async def _read(view: View, search: Search) -> JobsScreen:
    reads, cursor, is_narrowed = view.reads, view.param("cursor"), _is_narrowed(search.filter)
    # The navigation reads depths and workers as well: they cost nothing more.
    page, depths, workers = await asyncio.gather(
        reads.find(search.filter, cursor, PAGE),
        _nothing() if is_narrowed else reads.depths(),
        reads.workers() if view.access.tenants is None else _nothing(),
    )
    if depths is not None:
        of_queue = [one for one in depths if search.filter.queue in (None, one.queue)]
        counts = {tab: _count(of_queue, tab) for tab in TABS if tab not in _UNCOUNTED}
    else:
        counts = {}
    if search.state not in counts:
        counts[search.state] = await _counted(view, search.filter, page)
    lanes = await _lanes(view, page.jobs)
    tabs = [Tab(state=tab, count=n, exact=exact) for tab in TABS for n, exact in [counts.get(tab, UNKNOWN)]]
    return _screen(view, search, page, tabs, counts[search.state], workers, lanes)


async def _nothing() -> None:
    return None


async def _lanes(view: View, jobs: Sequence[Job]) -> dict[tuple[str, str], Lane]:
    """The lanes in which these jobs wait for a slot, by queue and name. One query: those of the queue with the most."""
    held = [job for job in jobs if job.lane is not None and in_lane(job.held)]
    if not held or view.access.tenants is not None:
        return {}
    ((queue, _),) = Counter(job.queue for job in held).most_common(1)
    names = sorted({job.lane for job in held if job.queue == queue and job.lane is not None})
    return {(queue, one.name): one for one in await view.reads.lanes(queue, names, None, len(names))}


async def _counted(view: View, wanted: Filter, page: Page) -> tuple[int | None, bool]:
    """How many jobs match, and whether there are not more."""
    cursor = view.param("cursor")
    if cursor is None and page.next is None:
        return len(page.jobs), not page.partial
    if wanted.payload is not None:
        return UNKNOWN  # a count would read the payloads of all jobs once more
    if is_unfinished(page, cursor):
        # A count would search the same jobs once more.
        return (len(page.jobs), False) if cursor is None and page.jobs else UNKNOWN
    counted = await view.reads.count_up_to(wanted, DEPTH_LIMIT)
    return counted.count, counted.exact


def is_unfinished(page: Page, cursor: str | None) -> bool:
    """Whether a page ended early, because `SEARCHED_PER_PAGE` jobs were examined for it."""
    return len(page.jobs) < PAGE and (page.previous if leads_back(cursor) else page.next) is not None


def _is_narrowed(wanted: Filter) -> bool:
    """Whether more than a queue and a tab narrows it, so that depths do not count it."""
    times: dict[str, Any] = {"due_before_ms": None, "due_after_ms": None}
    return structs.replace(wanted, queue=None, states=None, held=None, errored=None, **times) != EVERYTHING


def _count(depths: Sequence[Depth], tab: str) -> tuple[int | None, bool]:
    """How many jobs of a tab these queues have, and whether there are not more."""
    parts = [part for part in TABS if part not in ("all", *_UNCOUNTED)] if tab == "all" else [tab]
    counts: list[int] = [getattr(depth, part) for depth in depths for part in parts]
    return sum(counts), all(count < DEPTH_LIMIT for count in counts)


def _screen(
    view: View,
    search: Search,
    page: Page,
    tabs: list[Tab],
    total: tuple[int | None, bool],
    workers: Sequence[WorkerCard] | None,
    lanes: Lanes = MappingProxyType({}),
) -> JobsScreen:
    visible = [view.visible(job) for job in page.jobs]
    return JobsScreen(
        q=search.q,
        state=search.state,
        chips=search.chips,
        tabs=tabs or [Tab(state=tab) for tab in TABS],
        rows=[row_of(view, job, workers, lanes) for job in visible],
        jobs=[view.document(job) for job in visible] if view.wants_json else [],
        next=page.next,
        previous=page.previous,
        total=total[0],
        exact=total[1],
        partial=page.partial,
        unfinished=is_unfinished(page, view.param("cursor")),
        order=order_of(search.filter),
        acts=[act for act in BULK_ACTS if view.can(act) and _makes_sense(act, search.state)],
        tenant=None if view.access.tenants is None else search.filter.tenant,
    )


def _makes_sense(act: str, tab: str) -> bool:
    """Whether jobs of a tab can be changed so."""
    if act in ("hold", "release") and tab != "all":
        return tab in (("due", "later", "retrying") if act == "hold" else ("held",))
    return any(state in _ACT_STATES[act] for state in TABS[tab].get("states", STATES))
