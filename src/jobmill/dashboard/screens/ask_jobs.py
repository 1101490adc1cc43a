"""The question before an act on jobs: how many will be changed, how many not and why.

What the core would decide about each job is known beforehand. Only the unique keys of live jobs are in the store; they
are compared with the keys of at most 1,000 jobs. The page says how many jobs it has examined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from jobmill.core.changes import NO_SUCH_JOB, Change, Hold, Patch, Release, Requeue, Subject, decide
from jobmill.core.durations import to_ms
from jobmill.core.job import LIVE, Job
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.values import DEPTH_LIMIT, PAYLOADS_SEARCHED, SEARCHED_PER_PAGE, Filter, Page
from jobmill.dashboard.refusals import KEY_TAKEN, RefusalGroup, Refusals
from jobmill.dashboard.screens.queues import ended
from jobmill.dashboard.search import Search
from jobmill.dashboard.selection import VERBS, candidates, chips_of, jobs_text, left_out, selection_of
from jobmill.dashboard.shown import count, number
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue

#: Jobs that are read to know what would be refused.
EXAMINED: Final = 1_000
#: Matching jobs are counted up to this number.
COUNTED: Final = DEPTH_LIMIT
#: From this number of jobs on, a requeue is spread unless the visitor chooses otherwise.
SPREAD_FROM: Final = 1_000
#: Choices for `spread`, and their words.
SPREADS: Final = {"0s": "at once", "10m": "10 minutes", "1h": "1 hour"}
_RATE_MINUTES: Final = 10
#: A page makes at most this many calls to the store; where they are used up, it does not say when the jobs will end.
MAX_CALLS: Final = 5


class AskJobsScreen(Struct, frozen=True, kw_only=True):
    """What an act would do."""

    act: str
    heading: str
    #: The label of the button that does it.
    confirm: str
    will: str
    advice: str | None
    chips: list[str]
    #: What the form sends: these jobs, or all that match.
    ids: list[str]
    q: str
    state: str
    all: bool
    back: str
    matching: int
    changed: int
    #: `changed` may be too small: a count stops at 10,000, or when it has searched 10,000 jobs.
    is_cut: bool
    #: Known of all that match, or of all jobs that were chosen.
    refused: list[RefusalGroup]
    #: Known of the examined jobs only, if these are not all: there may be more.
    refused_examined: list[RefusalGroup] = []
    #: How many jobs were examined; None if all are known.
    examined: int | None = None
    #: How many of the examined jobs have a unique key that could not be looked up.
    unknown_keys: int = 0
    #: More sentences.
    notes: list[str] = []
    spread: str | None = None
    spread_text: str | None = None


class _Preview:
    """Counts what an act would do."""

    def __init__(self, view: View, change: Change) -> None:
        self.view = view
        self.change = change
        self.refused = Refusals()
        self.refused_examined = Refusals()
        self.matching = 0
        self.changed = 0
        #: How many jobs have a state that allows the change, and how many of them were examined; None: all.
        self.candidates = 0
        self.examined: int | None = None
        self.unknown_keys = 0
        self.queues: set[str] = set()
        #: Whether more jobs may exist than were counted: jobs that can be changed, and all jobs that match.
        self.is_cut = self.is_all_cut = False
        self.calls = 0
        #: Of the jobs to hold: how many are held already.
        self.held = 0
        self.by_payload = False
        self.is_searched_in_part = False

    async def of_ids(self, ids: list[str]) -> None:
        """Examine jobs by id: all of them."""
        self.calls += 1
        found = await self.view.reads.get_many(ids)
        tenants, jobs = self.view.access.tenants, list[Job]()
        for id, job in zip(ids, found, strict=True):
            if job is None or (tenants is not None and job.tenant not in tenants):
                self.refused.add({id: NO_SUCH_JOB})
            else:
                jobs.append(job)
        self.matching, self.queues = len(ids), {job.queue for job in jobs}
        self.held = sum(job.held is not None for job in jobs) if isinstance(self.change, Hold) else 0
        self.changed = await self._examine(jobs, len(jobs))

    async def of_search(self, search: Search) -> None:
        """Count all that match, and examine the first ones."""
        wanted = search.filter
        allowed = candidates(self.change, wanted)
        jobs, total, is_part = list[Job](), None, False
        if allowed.states and isinstance(self.change, Requeue | Release):
            # Other changes are refused because of states only, which the counts know.
            page = await self._find(allowed)
            jobs, is_part = page.jobs, page.next is not None
            total = None if is_part else len(jobs)
        if total is None:
            total = await self._count(allowed)
            self.is_cut = self.is_all_cut
        self.queues = {wanted.queue} if wanted.queue is not None else {job.queue for job in jobs}
        self.matching = self.candidates = total
        for reason, others in left_out(self.change, wanted).items():
            left = await self._count(others)
            self.refused.add_count(reason, left)
            self.matching += left
        if is_part and len(jobs) < total:
            self.examined = len(jobs)
        if isinstance(self.change, Hold) and wanted.held is not False:
            self.held = await self._count(structs.replace(allowed, held=True))
        self.by_payload = wanted.payload is not None
        self.changed = await self._examine(jobs, total)

    def notes(self) -> list[str]:
        """What the counts do not say."""
        found = list[str]()
        if self.held:
            is_one = self.held == 1
            they = (
                f"{count(self.held)} of them {'is' if is_one else 'are'} held already and {'gets' if is_one else 'get'}"
            )
            found.append(f"{they} your name and note.")
        if self.examined is not None:
            others = f"The other {self.candidates - self.examined:,}{'+' if self.is_cut else ''}"
            found.append(
                f"The first {self.examined:,} jobs were examined. {others} are examined when it is their turn."
            )
        if self.unknown_keys:
            keys = f"{self.unknown_keys:,} of them {'has' if self.unknown_keys == 1 else 'have'} a unique key."
            found.append(f"{keys} A job is left as it is if a live job has the same key by then.")
        if self.is_searched_in_part:
            found.append(f"{SEARCHED_PER_PAGE:,} jobs were searched to count them, and there are more.")
        if self.by_payload:
            found.append(
                f"A search by payload may leave out jobs that are older than the newest {PAYLOADS_SEARCHED:,}."
            )
        return found

    async def _count(self, wanted: Filter) -> int:
        if wanted.states == ():
            return 0
        self.calls += 1
        counted = await self.view.reads.count_up_to(wanted, COUNTED)
        self.is_all_cut = self.is_all_cut or not counted.exact
        self.is_searched_in_part = self.is_searched_in_part or (not counted.exact and counted.count < COUNTED)
        return counted.count

    async def _find(self, wanted: Filter) -> Page:
        self.calls += 1
        return await self.view.reads.find(wanted, None, EXAMINED)

    async def _examine(self, jobs: Sequence[Job], total: int) -> int:
        """How many of `total` jobs are changed, as far as these jobs tell."""
        refused, becoming = dict[str, str](), list[Job]()
        for job in jobs:
            decision = decide(self.change, Subject.of(job), self.view.now_ms)
            if not isinstance(decision, Patch):
                refused[job.id] = decision
            elif decision.becomes_live and job.unique_key is not None:
                becoming.append(job)
        known = self.refused if self.examined is None else self.refused_examined
        known.add(refused)
        taken = await self._taken(becoming)
        known.add_count(KEY_TAKEN, len(taken), taken[:3])
        return total - len(refused) - len(taken)

    async def _taken(self, jobs: list[Job]) -> list[str]:
        """Jobs whose unique key a live job has, or another of these jobs that comes first."""
        if not jobs:
            return []
        queues, names, keys = {job.queue for job in jobs}, {job.name for job in jobs}, {job.unique_key for job in jobs}
        page = await self._find(_live(queues, names, keys))
        owned = {_key(job) for job in page.jobs}
        taken = list[str]()
        for job in jobs:
            if _key(job) in owned:
                taken.append(job.id)
            owned.add(_key(job))
        if page.next is not None:
            self.unknown_keys = len(jobs) - len(taken)
        return taken


async def ask_jobs(view: View) -> AskJobsScreen:
    """`act`, and `id` (several) or `q`, `state` and `all=1`; `back` is the page to return to."""
    act = view.param("act") or ""
    if act not in VERBS:
        raise InvalidValue("act", "one of " + ", ".join(VERBS), act)
    view.require(act)
    q, state, words = view.param("q") or "", view.param("state"), VERBS[act]
    every = view.param("all") == "1"
    # A visitor who ticks some jobs and then chooses all means all.
    ids = [] if every else view.request.query_params.getlist("id")
    chosen = selection_of(view, ids, q, state, every)
    preview = _Preview(view, words.kind)
    if chosen.search is None:
        await preview.of_ids(chosen.ids)
    else:
        await preview.of_search(chosen.search)
    chips = [f"id:{id}" for id in chosen.ids if len(chosen.ids) == 1]
    tab = "all"
    if chosen.search is not None:
        chips, q, tab = chips_of(chosen.search), chosen.search.q, chosen.search.state
    changed, is_cut = preview.changed, preview.is_cut
    is_known = preview.examined is None and not preview.unknown_keys
    spread = "10m" if changed >= SPREAD_FROM else "0s"
    is_spread = act == "requeue" and changed > 1
    is_all_cut = preview.is_all_cut
    matching_jobs = jobs_text(preview.matching or (None if is_all_cut else 0), tab, is_cut=is_all_cut)
    changed_jobs = jobs_text(changed or (None if is_cut else 0), is_cut=is_cut)
    return AskJobsScreen(
        act=act,
        heading=f"{words.wanted} {matching_jobs}?",
        confirm=f"{words.wanted} {'' if is_known else 'up to '}{changed_jobs}",
        will=f"will be {words.done}{'' if is_known else ' at most'}",
        advice=words.advice,
        chips=chips,
        ids=chosen.ids,
        q=q,
        state=tab,
        all=every,
        back=view.local(view.param("back"), view.url("jobs", q=q or None, state=state)),
        matching=preview.matching,
        changed=changed,
        is_cut=is_cut,
        refused=preview.refused.groups,
        refused_examined=preview.refused_examined.groups,
        examined=preview.examined,
        unknown_keys=preview.unknown_keys,
        notes=preview.notes(),
        spread=spread if is_spread else None,
        spread_text=await _spread_text(view, preview) if is_spread else None,
    )


def _live(queues: set[str], names: set[str], keys: set[str | None]) -> Filter:
    """The live jobs that may have one of these keys: as few as one filter can say."""
    return Filter(
        queue=next(iter(queues)) if len(queues) == 1 else None,
        name=next(iter(names)) if len(names) == 1 else None,
        unique_key=next(iter(keys)) if len(keys) == 1 else None,
        states=LIVE,
    )


def _key(job: Job) -> tuple[str, str, str | None]:
    return job.queue, job.name, job.unique_key


async def _spread_text(view: View, preview: _Preview) -> str:
    """How fast the jobs become due, and when the last of them would end."""
    many = preview.changed
    per_second = {text: many * 1_000 / to_ms(spread, "spread") for spread, text in _periods()}
    rates = [f"about {_rate(rate)} over {text}" for text, rate in per_second.items() if rate * 60 >= 1]
    text = f"{' or '.join(rates)}.".capitalize() if rates else ""
    if view.access.tenants is not None or len(preview.queues) != 1 or preview.is_cut or preview.calls > MAX_CALLS - 2:
        return text
    (queue,) = preview.queues
    now_ms = view.now_ms
    tallies = await view.reads.last_hour()
    until_ms = now_ms - now_ms % MINUTE_MS
    since_ms = until_ms - _RATE_MINUTES * MINUTE_MS
    runs = sum(ended(one) for one in tallies if one.queue == queue and since_ms <= one.start_ms < until_ms)
    if not runs:
        return f"{text} No job of queue {queue} has ended in the last {_RATE_MINUTES} minutes.".lstrip()
    due = next((one.due for one in await view.reads.depths() if one.queue == queue), 0)
    per_minute = runs / _RATE_MINUTES
    work_ms = (due + many) / per_minute * MINUTE_MS
    ends = [
        f"{view.clock(now_ms + round(max(work_ms, to_ms(spread, 'spread'))))} ({words})"
        for spread, words in SPREADS.items()
    ]
    said = (
        f"{text} Queue {queue} finishes about {_rate(per_minute / 60)}, and {count(due)} jobs are due before them: "
        f"the last would end at about {', '.join(ends)}."
    )
    return said.lstrip()


def _periods() -> list[tuple[str, str]]:
    return [(spread, text) for spread, text in SPREADS.items() if spread != "0s"]


def _rate(per_second: float) -> str:
    if per_second >= 10:
        return f"{number(round(per_second))} a second"
    if per_second * 60 >= 1:
        return f"{number(round(per_second * 60))} a minute"
    return f"{number(max(1, round(per_second * 3_600)))} an hour"
