"""Looking at jobs and acting on them: one, several, those that match, or all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jobmill
from jobmill import Changed, Client, Context, Count
from jobmill.client.manage import CHANGES_PER_CALL
from jobmill.core.durations import to_datetime
from jobmill.handlers.handler import Handler
from jobmill.testing import ManualClock


@pytest.fixture
def send(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(keep_succeeded=True, keep_failed=True)
    async def send(to: str = "ada") -> str:
        if to == "nobody":
            raise jobmill.Fail("there is no such person")
        return to

    return send


async def many(jobs: Client, send: Handler[..., Any], count: int, **options: Any) -> list[str]:
    return [one.id for one in await jobs.enqueue_many(send.options(**options).draft() for _ in range(count))]


async def states(jobs: Client) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in await jobs.count():
        found[one.state] = found.get(one.state, 0) + one.count
    return found


# ---------------------------------------------------------------------------------------------------- look


async def test_a_job_that_is_not_there_is_gone(jobs: Client) -> None:
    with pytest.raises(
        jobmill.JobNotFound, match=f"there is no job 'nope' in the {jobs.store.name} store: it was removed, or"
    ):
        await jobs.get("nope")


async def test_pages_lead_on_and_back(jobs: Client, send: Handler[..., Any]) -> None:
    ids = await many(jobs, send, 7)
    first = await jobs.find(limit=3)
    assert first.previous is None
    second = await jobs.find(limit=3, cursor=first.next)
    third = await jobs.find(limit=3, cursor=second.next)
    assert third.next is None
    pages = [[job.id for job in page.jobs] for page in (first, second, third)]
    assert sorted(id for page in pages for id in page) == sorted(ids)
    assert [len(page) for page in pages] == [3, 3, 1]
    back = await jobs.find(limit=3, cursor=third.previous)
    assert [job.id for job in back.jobs] == pages[1]
    start = await jobs.find(limit=3, cursor=back.previous)
    assert [job.id for job in start.jobs] == pages[0]
    assert start.previous is None
    assert start.next is not None


async def test_every_match_page_by_page(jobs: Client, send: Handler[..., Any]) -> None:
    ids = await many(jobs, send, 2_100)
    await many(jobs, send, 3, queue="other")
    found = [job.id async for job in jobs.find_all(queue="default")]
    assert sorted(found) == sorted(ids)
    assert [job async for job in jobs.find_all(name="nope")] == []


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"a", "b", "c", "d"}),
    ({"queue": None, "states": None}, {"a", "b", "c", "d"}),
    ({"queue": "mail"}, {"b"}),
    ({"name": "other"}, {"c"}),
    ({"tenant": "acme"}, {"b", "d"}),
    ({"unique_key": "k"}, {"c"}),
    ({"states": "waiting"}, {"b", "c"}),
    ({"states": ["waiting"]}, {"b", "c"}),
    ({"states": ("cancelled", "succeeded")}, {"a", "d"}),
    ({"states": {"cancelled"}}, {"d"}),
    ({"states": []}, set()),
    ({"states": "waiting", "tenant": "acme"}, {"b"}),
    ({"created_after": to_datetime(1_700_000_010_000)}, {"b", "c", "d"}),
    ({"created_before": to_datetime(1_700_000_010_000)}, {"a"}),
    ({"due_after": to_datetime(1_700_003_600_000)}, {"c"}),
    ({"due_before": to_datetime(1_700_000_010_000)}, {"a"}),
    ({"finished_after": to_datetime(1_700_000_010_000)}, {"d"}),
    ({"finished_before": to_datetime(1_700_000_010_000)}, {"a"}),
    ({"finished_after": to_datetime(0)}, {"a", "d"}),
    ({"queue": "nope"}, set()),
]


@pytest.mark.parametrize(("filters", "expected"), [(dict(f), e) for f, e in FILTERS], ids=[str(f) for f, _ in FILTERS])
async def test_filters(
    jobs: Client, send: Handler[..., Any], clock: ManualClock, filters: Any, expected: set[str]
) -> None:
    await send.options(id="a").enqueue()
    await jobs.tick()
    clock.advance(10)
    await send.options(id="b", queue="mail", tenant="acme").enqueue()
    await jobs.enqueue("other", id="c", unique_key="k", delay="1h")
    await send.options(id="d", tenant="acme").enqueue()
    await jobs.cancel("d")
    assert {job.id for job in (await jobs.find(**filters)).jobs} == expected


async def test_states_may_be_an_iterator(jobs: Client, send: Handler[..., Any]) -> None:
    await send.options(id="waits").enqueue()
    await send.options(id="cancelled").enqueue()
    await jobs.cancel("cancelled")
    states: Any = iter(["cancelled"])
    found = await jobs.find(states=states)
    assert [job.id for job in found.jobs] == ["cancelled"]


async def test_counts_and_stats(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    await many(jobs, send, 2)
    await send.enqueue(to="nobody")
    assert (await jobs.tick()).claimed == 3
    await many(jobs, send, 3)
    await many(jobs, send, 1, delay="1h")
    await many(jobs, send, 1, queue="mail")
    clock.advance(30)
    assert set(await jobs.count()) == {
        Count("default", "send", "waiting", 4),
        Count("default", "send", "succeeded", 2),
        Count("default", "send", "failed", 1),
        Count("mail", "send", "waiting", 1),
    }
    assert await jobs.count(states="failed") == [Count("default", "send", "failed", 1)]
    assert await jobs.count(queue="nope") == []
    lines = {(line.queue, line.name): line for line in await jobs.stats()}
    line = lines["default", "send"]
    assert (line.waiting, line.running, line.succeeded, line.failed, line.cancelled) == (4, 0, 2, 1, 0)
    assert line.oldest_waiting_ms == 30_000
    assert (line.average_ms, line.p50_ms, line.p95_ms, line.p99_ms) == (0, 0, 0, 0)
    assert lines["mail", "send"].average_ms is None
    assert await jobs.stats(queue="mail") == [lines["mail", "send"]]
    assert await jobs.stats(name="nope") == []


async def test_logs_of_a_job(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler()
    async def chatty(ctx: Context) -> None:
        ctx.progress(50, "half way")
        for n in range(5):
            ctx.log(f"line {n}")

    enqueued = await chatty.enqueue()
    await jobs.tick()
    assert [line.text for line in await jobs.logs(enqueued.id)] == [f"line {n}" for n in range(5)]
    assert [line.text for line in await jobs.logs(enqueued.id, limit=2)] == ["line 3", "line 4"]
    assert {line.at_ms for line in await jobs.logs(enqueued.id)} == {clock()}
    assert await jobs.logs("nope") == []
    progress = (await enqueued.job()).progress
    assert progress is not None
    assert (progress.value, progress.message) == (50, "half way")


# ---------------------------------------------------------------------------------------------------- act

ACTS: list[tuple[str, dict[str, Any]]] = [
    ("cancel", {}),
    ("reschedule", {"delay": "1h"}),
    ("reprioritize", {"priority": 9}),
    ("remove", {}),
]


@pytest.mark.parametrize(("act", "options"), ACTS)
async def test_one_several_matching_or_all(
    jobs: Client, send: Handler[..., Any], act: str, options: dict[str, Any]
) -> None:
    do: Callable[..., Awaitable[Changed]] = getattr(jobs, act)
    ids = await many(jobs, send, 5)
    mail = await many(jobs, send, 2, queue="mail")
    assert await do(ids[0], **options) == Changed(ids=[ids[0]], refused={})
    assert (await do(ids[1:3], **options)).ids == ids[1:3]
    assert (await do((id for id in ids[3:4]), **options)).ids == ids[3:4]
    assert sorted((await do(queue="mail", **options)).ids) == sorted(mail)
    rest = set((await do(all=True, **options)).ids)
    assert ids[4] in rest
    assert rest <= {*ids, *mail}
    assert (await do([], **options)) == Changed(ids=[], refused={})


@pytest.mark.parametrize(("act", "options"), [*ACTS, ("requeue", {}), ("requeue", {"spread": "1h"})])
async def test_an_act_without_saying_on_what_is_refused(
    jobs: Client, send: Handler[..., Any], act: str, options: dict[str, Any]
) -> None:
    do: Callable[..., Awaitable[Changed]] = getattr(jobs, act)
    (id,) = await many(jobs, send, 1)
    before = await jobs.get(id)
    for nothing in ({}, {"queue": None}, {"tenant": None, "states": None}):
        with pytest.raises(
            jobmill.InvalidValue, match="which: expected ids, at least one filter, or all=True, got None"
        ):
            await do(**nothing, **options)
    for several in ({"all": True}, {"queue": "mail"}):
        with pytest.raises(
            jobmill.InvalidValue, match="which: expected ids, or filters, or all=True, not several of them"
        ):
            await do([id], **several, **options)
    for wrong in (5, [5], [id, None]):
        with pytest.raises(jobmill.InvalidValue, match="which: expected an id, or several, got"):
            await do(wrong, **options)
    enqueued = await send.enqueue()
    with pytest.raises(jobmill.InvalidValue, match=r"expected an id, or several, got Enqueued\(.*; give its \.id"):
        await do(enqueued, **options)
    assert await jobs.get(id) == before


async def test_no_state_means_no_job(jobs: Client, send: Handler[..., Any]) -> None:
    await many(jobs, send, 1)
    assert await jobs.cancel(states=[]) == Changed(ids=[], refused={})


async def test_all_may_be_narrowed_by_a_filter(jobs: Client, send: Handler[..., Any]) -> None:
    await many(jobs, send, 2)
    mail = await many(jobs, send, 1, queue="mail")
    assert (await jobs.cancel(all=True, queue="mail")).ids == mail


async def test_what_cannot_be_changed_is_refused_for_that_job_alone(jobs: Client, send: Handler[..., Any]) -> None:
    waiting, done = (await send.enqueue()).id, (await send.options(id="done").enqueue()).id
    await jobs.cancel(done)
    answer = await jobs.cancel([waiting, "nope", done])
    assert answer.ids == [waiting]
    assert set(answer.refused) == {"nope", done}
    assert "cancelled" in answer.refused[done]
    assert answer.missing == ["nope"]
    assert set((await jobs.reschedule([done], delay=5)).refused) == {done}
    assert set((await jobs.reprioritize([done], priority=5)).refused) == {done}


async def test_more_jobs_than_one_call_takes(jobs: Client, send: Handler[..., Any]) -> None:
    ids = await many(jobs, send, CHANGES_PER_CALL + 5)
    assert sorted((await jobs.cancel(ids)).ids) == sorted(ids)
    assert sorted((await jobs.requeue(states="cancelled")).ids) == sorted(ids)
    assert sorted((await jobs.remove(all=True)).ids) == sorted(ids)
    assert await jobs.count() == []


@pytest.mark.parametrize(
    ("act", "options"), [("reprioritize", {"priority": 7}), ("reschedule", {"delay": 5}), ("hold", {})]
)
async def test_jobs_that_still_match_after_the_change_are_changed_once(
    jobs: Client, send: Handler[..., Any], act: str, options: dict[str, Any]
) -> None:
    ids = await many(jobs, send, CHANGES_PER_CALL + 5)
    answer = await getattr(jobs, act)(states="waiting", **options)
    assert sorted(answer.ids) == sorted(ids)
    assert answer.refused == {}


async def test_reschedule_and_reprioritise(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    (id,) = await many(jobs, send, 1)
    await jobs.reschedule(id, delay="1h")
    assert (await jobs.get(id)).due_ms == clock() + 3_600_000
    await jobs.reschedule(id, due_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert (await jobs.get(id)).due_at == datetime(2030, 1, 1, tzinfo=UTC)
    await jobs.reschedule(id, delay=0)
    assert (await jobs.get(id)).due_ms == clock()
    await jobs.reprioritize(id, priority=7)
    assert (await jobs.get(id)).priority == 7


async def test_a_requeued_job_runs_again_with_fresh_budgets(
    jobs: Client, send: Handler[..., Any], clock: ManualClock
) -> None:
    enqueued = await send.enqueue(to="nobody")
    await jobs.tick()
    failed = await enqueued.job()
    assert (failed.state, failed.errors, failed.error) == ("failed", 1, "there is no such person")
    clock.advance(5)
    assert (await jobs.requeue(enqueued.id)).ids == [enqueued.id]
    job = await enqueued.job()
    assert (job.state, job.errors, job.error, job.due_ms, job.finished_at) == ("waiting", 0, None, clock(), None)
    assert set((await jobs.requeue(enqueued.id)).refused) == {enqueued.id}, "it waits already"


async def dues(jobs: Client, ids: list[str], clock: ManualClock) -> list[int]:
    return sorted([(await jobs.get(id)).due_ms - clock() for id in ids])


@pytest.mark.parametrize("how", ["ids", "generator", "filter", "all"])
async def test_a_requeue_is_spread_evenly_over_a_period(
    jobs: Client, send: Handler[..., Any], clock: ManualClock, how: str
) -> None:
    ids = await many(jobs, send, 8)
    await jobs.cancel(all=True)
    await many(jobs, send, 3)  # these wait, and have no part in it
    answer = await {
        "ids": lambda: jobs.requeue(ids, spread="1m"),
        "generator": lambda: jobs.requeue((id for id in ids), spread=60),
        "filter": lambda: jobs.requeue(states="cancelled", spread=timedelta(minutes=1)),
        "all": lambda: jobs.requeue(all=True, spread="1m"),
    }[how]()
    assert sorted(answer.ids) == sorted(ids)
    assert await dues(jobs, ids, clock) == [n * 7_500 for n in range(8)]


async def test_a_single_job_is_not_spread(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    ids = await many(jobs, send, 1)
    await jobs.cancel(ids)
    await jobs.requeue(ids[0], spread="1h")
    assert await dues(jobs, ids, clock) == [0]


@pytest.mark.slow
@pytest.mark.extended("postgres", "mongo")  # the client goes on from call to call, whatever the store
@pytest.mark.parametrize("by_id", [True, False])
async def test_a_spread_goes_on_from_call_to_call(
    jobs: Client, send: Handler[..., Any], clock: ManualClock, by_id: bool
) -> None:
    count = CHANGES_PER_CALL + 500
    ids = await many(jobs, send, count)
    await jobs.cancel(all=True)
    await (jobs.requeue(ids, spread=count) if by_id else jobs.requeue(states="cancelled", spread=count))
    found = sorted([job.due_ms - clock() async for job in jobs.find_all()])
    assert found == [n * 1_000 for n in range(count)]


@pytest.mark.extended("postgres", "mongo")
async def test_refused_jobs_do_not_keep_a_requeue_from_the_others(jobs: Client, send: Handler[..., Any]) -> None:
    """As many failed jobs of one key as one call takes, of which one may live, and others behind them."""
    for part in range(2):
        for _ in range(CHANGES_PER_CALL // 2 + 10):
            enqueued = await send.options(unique_key=f"k{part}").enqueue()
            await jobs.cancel(enqueued.id)
    free = await many(jobs, send, 20)
    await jobs.cancel(free)
    answer = await jobs.requeue(states="cancelled")
    assert set(free) <= set(answer.ids)
    assert len(answer.ids) == 22, "and one of each key"
    assert len(answer.refused) == CHANGES_PER_CALL + 18
    assert await states(jobs) == {"waiting": 22, "cancelled": CHANGES_PER_CALL + 18}


async def test_purge_removes_what_is_past_its_retention(
    jobs: Client, send: Handler[..., Any], clock: ManualClock
) -> None:
    await many(jobs, send, 3, keep_succeeded="1h")
    await many(jobs, send, 2, keep_succeeded=True)
    await many(jobs, send, 4, keep_succeeded=False)
    assert (await jobs.tick(100)).succeeded == 9
    assert await states(jobs) == {"succeeded": 5}, "kept for nobody: gone at once"
    assert await jobs.purge() == 0
    clock.advance(3_600)
    assert await jobs.purge() == 3
    assert await states(jobs) == {"succeeded": 2}


async def test_a_purge_goes_on_until_nothing_is_left(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    count = 2_005
    await many(jobs, send, count, keep_failed="1m")
    await jobs.cancel(all=True)
    clock.advance(60)
    assert await jobs.purge() == count
    assert await jobs.count() == []


# ---------------------------------------------------------------------------------------------------- refused


async def test_a_cursor_that_is_not_text_is_refused(jobs: Client) -> None:
    with pytest.raises(jobmill.InvalidValue, match="cursor: expected a cursor that a page gave, got 5"):
        await jobs.find(cursor=5)  # type: ignore[arg-type]
    with pytest.raises(jobmill.InvalidValue, match="after: expected the id of an event, got 5"):
        await anext(jobs.events("default", after=5))  # type: ignore[arg-type]
