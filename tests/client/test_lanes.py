"""Lanes: how jobs get them, and what is set for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jobmill import Client, InvalidValue, Lane, LaneRule, LaneSettings
from jobmill.core.values import Pause, QueueSettings, RateLimit
from jobmill.handlers.handler import Handler
from jobmill.testing import ManualClock


@dataclass
class Order:
    account: str | None
    number: int = 1


@pytest.fixture
def charge(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(queue="shop", lane=lambda order: order.account)
    async def charge(order: Order, total: int = 0) -> int:
        return total

    return charge


@pytest.fixture
def work(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(queue="mail", max_attempts=1)
    async def work(number: int = 0) -> int:
        return number

    return work


async def lane_of(jobs: Client, id: str) -> str | None:
    return (await jobs.get(id)).lane


# ---------------------------------------------------------------------------------------------------- jobs


async def test_every_way_in_takes_a_lane(jobs: Client, work: Handler[..., Any]) -> None:
    made = [
        await work.options(lane="a").enqueue(),
        await jobs.enqueue("work", lane="b"),
        await jobs.enqueue("unknown", lane="c"),
        *await jobs.enqueue_many([work.options(lane="d").draft(1), jobs.draft("work", {"number": 2}, lane="e")]),
        await work.enqueue(),
        await work.options(lane=None).enqueue(),  # type: ignore[arg-type]
    ]
    assert [await lane_of(jobs, one.id) for one in made] == ["a", "b", "c", "d", "e", None, None]


async def test_a_handler_has_a_lane_for_all_its_jobs(jobs: Client) -> None:
    @jobs.handler(lane="reports")
    async def report() -> None: ...

    assert await lane_of(jobs, (await report.enqueue()).id) == "reports"
    assert await lane_of(jobs, (await report.options(delay="1m").enqueue()).id) == "reports"
    assert await lane_of(jobs, (await report.options(lane="other").enqueue()).id) == "other"
    assert await lane_of(jobs, (await jobs.enqueue("report")).id) == "reports"


async def test_a_function_makes_the_lane_from_typed_arguments(jobs: Client, charge: Handler[..., Any]) -> None:
    made = [
        await charge.enqueue(Order("acme"), total=3),
        await charge.options(priority=3).enqueue(order=Order("bigco")),
        await jobs.enqueue("charge", {"order": {"account": "cafe"}}),
        await charge.options(lane="own").enqueue(Order("acme")),
        await charge.enqueue(Order(None)),
    ]
    assert [await lane_of(jobs, one.id) for one in made] == ["acme", "bigco", "cafe", "own", None]
    assert charge.draft(Order("acme")).options.lane == "acme"


async def test_a_function_takes_the_arguments_that_it_names(jobs: Client) -> None:
    @jobs.handler(lane=lambda total, order, more="x": f"{order.account}-{total}-{more}")
    async def pay(order: Order, total: int = 7) -> None: ...

    @jobs.handler(lane=lambda **given: ",".join(sorted(given)))
    async def anything(a: int = 1, **extra: str) -> None: ...

    @jobs.handler(lane=lambda region: region)
    async def extra_only(**extra: str) -> None: ...

    assert pay.draft(Order("acme")).options.lane == "acme-7-x"
    assert anything.draft(b="x").options.lane == "a,b"
    assert extra_only.draft(region="eu").options.lane == "eu"
    with pytest.raises(InvalidValue, match="lane: expected a value of 'region' that is known"):
        extra_only.draft()


async def test_jobs_of_a_flow_have_lanes(jobs: Client, charge: Handler[..., Any], work: Handler[..., Any]) -> None:
    first = work.options(lane="first").draft(5)
    last = await charge.draft(Order("acme"), total=first.result).enqueue()
    assert await lane_of(jobs, last.id) == "acme"
    assert {job.lane for job in (await jobs.find()).jobs} == {"first", "acme"}

    @jobs.handler(lane=lambda region: region)
    async def ship(total: int, region: str = "eu") -> None: ...

    assert ship.draft(work.draft(1).result).options.lane == "eu", "from a default"
    named = jobs.draft("charge", {"order": {"account": "cafe"}, "total": work.draft(1).result})
    assert named.options.lane == "cafe"
    while (await jobs.tick()).claimed:
        pass
    assert (await jobs.get(last.id)).result == 5


def test_a_lane_cannot_come_from_a_result(jobs: Client, work: Handler[..., Any]) -> None:
    @jobs.handler(lane=lambda total: str(total))
    async def pay(total: int) -> None: ...

    with pytest.raises(InvalidValue, match="'total' that is known when the job is enqueued.*pay.options.lane=…"):
        pay.draft(work.draft(1).result)
    with pytest.raises(InvalidValue, match="'total' that is known when the job is enqueued"):
        jobs.draft("pay", {"total": work.draft(1).result})
    assert pay.options(lane="acme").draft(work.draft(1).result).options.lane == "acme"


def test_a_payload_that_is_one_result_gives_no_lane(jobs: Client, work: Handler[..., Any]) -> None:
    @jobs.handler(lane=lambda payload: str(payload))
    async def take(payload: int) -> None: ...

    with pytest.raises(InvalidValue, match="'payload' that is known when the job is enqueued"):
        jobs.draft("take", work.draft(1).result)


async def test_a_declared_recurring_job_has_the_lane_of_its_handler(jobs: Client) -> None:
    @jobs.handler(every="1h", lane=lambda team: f"team-{team}")
    async def digest(team: str = "ops") -> None: ...

    @jobs.handler(every="1h", lane="night")
    async def clean() -> None: ...

    assert digest.declared is not None
    assert clean.declared is not None
    assert (digest.declared.options.lane, clean.declared.options.lane) == ("team-ops", "night")


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        (5, "lane: expected a text, or a function of the handler's arguments, got 5"),
        ("", "lane: expected a text of 1 to 255 characters"),
        (" ", "without control characters, got ' '; it has only white space"),
        ("x" * 300, "it has 300$"),
        ("🚚" * 200, "it has 400; characters such as emoji count as two"),
        ("a\n", "lane: expected a text of 1 to 255 characters without control characters"),
        (lambda account: account, r"with parameters of the handler 'send': to, subject, got .* 'account' is none"),
        (lambda to, /: to, "its parameter 'to' is none of them"),
        (lambda *args: args[0], r"its parameter '\*args' is none of them"),
        (dict.get, "lane: expected a"),
        (type, "lane: expected a function with a signature"),
    ],
)
def test_a_wrong_lane_of_a_handler_is_refused_where_it_is_defined(jobs: Client, lane: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):

        @jobs.handler(lane=lane)
        async def send(to: str, subject: str = "") -> None: ...


def test_an_async_function_makes_no_lane(jobs: Client) -> None:
    async def lane(to: str) -> str:
        return to

    with pytest.raises(InvalidValue, match="lane: expected a text, or a function that is not async"):

        @jobs.handler(lane=lane)  # type: ignore[arg-type]
        async def send(to: str) -> None: ...


def test_a_wrong_lane_of_one_job_is_refused(jobs: Client, work: Handler[..., Any]) -> None:
    with pytest.raises(InvalidValue, match="lane: expected a text of 1 to 255 characters"):
        work.options(lane="x" * 256)
    with pytest.raises(InvalidValue, match="lane: expected a text, got .*; only a handler can have a function for it"):
        work.options(lane=lambda number: "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"options come before: .options\(lane=…\).enqueue"):
        work.draft(lane="x")


def test_what_the_function_returns_is_checked(jobs: Client) -> None:
    @jobs.handler(lane=lambda number: number)
    async def send(number: int) -> None: ...

    message = (
        "lane: expected a text of 1 to 255 .*, or None, got 7; the function lane= of the handler 'send' returned it"
    )
    with pytest.raises(InvalidValue, match=rf"{message}; str\(\) makes a text of an id"):
        send.draft(7)
    with pytest.raises(InvalidValue, match=r"characters, got 7; str\(\) makes a text of an id"):
        send.options(lane=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"returned it$"):
        jobs.handler(lane=lambda: "", name="empty")(lambda: None).draft()


def test_a_function_that_raises(jobs: Client) -> None:
    @jobs.handler(lane=lambda to: {"ada": "a"}[to])
    async def send(to: str) -> None: ...

    assert send.draft("ada").options.lane == "a"
    message = "lane: expected a lane from the function lane= of the handler 'send', got \"KeyError: 'bob'\""
    with pytest.raises(InvalidValue, match=message) as caught:
        send.draft("bob")
    assert isinstance(caught.value.__cause__, KeyError)


# ---------------------------------------------------------------------------------------------------- settings


async def test_the_rule_of_a_queue(jobs: Client) -> None:
    queue = jobs.queue("mail")
    settings = await queue.lanes(running=2, rate=(30, "1m"), strict=True)
    assert settings.lanes == LaneRule(running=2, rate=RateLimit(30, 60_000), strict=True)
    assert (await queue.settings()).lanes == settings.lanes
    assert (await queue.lanes(running=3)).lanes == LaneRule(running=3), "it is the whole rule"
    await queue.running_limit(5)
    assert await queue.lanes(running=None) == QueueSettings(running_limit=5), "without limits the rule is removed"


async def test_the_settings_of_one_lane(jobs: Client) -> None:
    queue = jobs.queue("mail")
    await queue.lanes(running=2)
    assert await queue.lane("bigco", running=10) == LaneSettings(running=10)
    assert await queue.lane("bigco", rate=(5, 1)) == LaneSettings(running=10, rate=RateLimit(5, 1_000))
    assert await queue.lane("bigco", running=None, strict=True) == LaneSettings(
        rate=RateLimit(5, 1_000), strict=True
    ), "what is not given stays, and None is the rule of the queue"
    assert await queue.lane("bigco") == await queue.lane("bigco").settings()
    assert (await queue.lane("bigco").settings()).strict
    assert await queue.lane("other").settings() == LaneSettings()


async def test_a_lane_is_paused_and_resumed(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    await work.options(lane="acme").enqueue()
    await work.options(lane="other").enqueue()
    lane = jobs.queue("mail").lane("acme")
    paused = await lane.pause(note="their server is down", who="ada")
    assert paused.pause == Pause(who="ada", note="their server is down", since_ms=jobs.store.now())
    assert (await jobs.tick(queues=["mail"])).claimed == 1
    assert not (await lane.resume()).paused
    assert (await jobs.tick(queues=["mail"])).claimed == 1


async def test_limits_and_a_pause_in_one_go(jobs: Client) -> None:
    settings = await jobs.queue("mail").lane("acme", running=3).pause()
    assert (settings.running, settings.paused) == (3, True)
    settings = await jobs.queue("mail").lane("acme", running=4).resume()
    assert (settings.running, settings.paused) == (4, False)


def test_limits_that_are_not_awaited_are_warned_of(jobs: Client) -> None:
    with pytest.warns(RuntimeWarning, match="'_configure_lane' was never awaited"):
        jobs.queue("mail").lane("acme", running=3)
    jobs.queue("mail").lane("acme")


async def test_limits_hold(jobs: Client, work: Handler[..., Any], clock: ManualClock) -> None:
    await jobs.queue("mail").lanes(running=1)
    await jobs.queue("mail").lane("b", running=2)
    await jobs.enqueue_many(work.options(lane=lane).draft() for lane in "aaabbb")
    assert [(await jobs.tick(queues=["mail"])).claimed for _ in range(4)] == [3, 2, 1, 0]


async def test_lanes_are_listed_in_pages(jobs: Client, work: Handler[..., Any]) -> None:
    queue = jobs.queue("mail")
    await queue.lanes(running=1)
    await jobs.enqueue_many(work.options(lane=lane).draft() for lane in ("b", "b", "c"))
    await work.options(lane="b", delay="1h").enqueue()
    await queue.lane("a", running=4)
    listed = await queue.list_lanes()
    assert listed == [
        Lane(queue="mail", name="a", settings=LaneSettings(running=4)),
        Lane(queue="mail", name="b", admitted=1, ready=1, later=1),
        Lane(queue="mail", name="c", admitted=1),
    ]
    assert await queue.list_lanes(limit=2) == listed[:2]
    assert await queue.list_lanes(after="b") == listed[2:]
    assert await jobs.queue("other").list_lanes() == []


async def test_jobs_are_selected_by_lane(jobs: Client, work: Handler[..., Any]) -> None:
    await jobs.enqueue_many(work.options(lane=lane).draft() for lane in ("a", "a", "b"))
    assert len((await jobs.find(lane="a")).jobs) == 2
    assert len((await jobs.cancel(lane="b")).ids) == 1
    assert {job.state for job in (await jobs.find(lane="b")).jobs} == {"cancelled"}


async def test_every_act_is_in_the_audit_log(jobs: Client) -> None:
    queue = jobs.queue("mail")
    await queue.lanes(running=2, rate=(30, "1m"), strict=True, who="ada", note="fair")
    await queue.lane("acme", running=10, strict=False)
    await queue.lane("acme", running=None, rate=(1, "1s"), note="paid less", who="bob")
    await queue.lane("acme").pause(note="down", who="ada")
    await queue.lane("acme").resume()
    await queue.lanes(running=None)
    await queue.lane("acme").settings()
    await queue.list_lanes()
    log = [(one.who, one.what, one.queue, one.note) for one in (await jobs.audit_log()).entries]
    assert log[::-1] == [
        ("ada", "lanes", "mail", "running 2, rate 30 per 1m, strict true; fair"),
        ("code", "lane", "mail", "acme: running 10, strict false"),
        ("bob", "lane", "mail", "acme: running as the queue, rate 1 per 1s; paid less"),
        ("ada", "pause_lane", "mail", "acme: down"),
        ("code", "resume_lane", "mail", "acme"),
        ("code", "lanes", "mail", "none"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"running": 0}, "running: expected a whole number from 1 to 2147483647, got 0; to stop a lane, pause it"),
        ({"running": False}, "running: expected a whole number from 1 to 2147483647, got False$"),
        ({"running": "2"}, "running: expected a whole number from 1"),
        ({"rate": 30}, r'rate: expected a number of jobs and a duration, such as \(30, "1m"\), got 30'),
        ({"rate": (0, "1m")}, "rate: expected a whole number from 1"),
        ({"rate": (1, "soon")}, "rate: expected a duration"),
        ({"rate": (1, 0)}, "rate: expected a duration above 0"),
        ({"strict": "yes"}, "strict: expected True or False"),
    ],
)
async def test_wrong_limits_are_refused(jobs: Client, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        await jobs.queue("mail").lanes(**given)
    with pytest.raises(InvalidValue, match=message):
        jobs.queue("mail").lane("acme", **given)


async def test_a_name_that_the_audit_log_cannot_hold_is_refused_before_anything_changes(jobs: Client) -> None:
    queue, wrong = jobs.queue("mail"), "ada\n"
    for call in (
        queue.lanes(running=2, who=wrong),
        queue.running_limit(2, who=wrong),
        queue.lane("acme", running=2, who=wrong),
        queue.lane("acme").pause(who=wrong),
        queue.lane("acme").resume(who=wrong),
    ):
        with pytest.raises(InvalidValue, match="who: expected a text of 1 to 1024 characters"):
            await call
    assert await queue.settings() == QueueSettings()
    assert await queue.lane("acme").settings() == LaneSettings()


async def test_a_note_of_no_change_is_refused(jobs: Client) -> None:
    queue = jobs.queue("mail")
    with pytest.raises(InvalidValue, match=r"note: expected note only together with limits, .*; pause\(note=…\) takes"):
        queue.lane("acme", note="they asked")
    with pytest.raises(InvalidValue, match="who: expected who only together with limits, got 'ada'"):
        queue.lane("acme", who="ada")


async def test_what_makes_no_sense_is_refused(jobs: Client) -> None:
    queue = jobs.queue("mail")
    with pytest.raises(InvalidValue, match="strict: expected strict only together with running, got True; running=1"):
        await queue.lanes(strict=True)
    with pytest.raises(InvalidValue, match=r"lanes: expected a limit: .* running=None removes .* list_lanes\(\) lists"):
        await queue.lanes()
    with pytest.raises(InvalidValue, match="lane: expected a text of 1 to 255"):
        queue.lane("")
    with pytest.raises(InvalidValue, match="limit: expected a whole number"):
        await queue.list_lanes(limit=0)
    with pytest.raises(InvalidValue, match="after: expected a text"):
        await queue.list_lanes(after="")
    assert (await queue.settings()).lanes is None
