"""Live updates: what they cost with many tabs, what slow and returning tabs get, and what an outage looks like."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from html import unescape
from typing import Any

import pytest

from jobmill import Client, Dashboard
from jobmill.dashboard import live
from jobmill.dashboard.live import Live
from jobmill.errors import StoreUnavailable
from tests.dashboard.visitor import LOCAL, Answer, Visitor

PATIENCE_S = 45.0


class Calls:
    """Counts the calls of a store, and can make it unavailable."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: Counter[str] = Counter()
        self.is_down = False
        for name in ("depths", "settings", "workers", "tallies", "get", "find", "count_up_to", "logs", "audit_log"):
            monkeypatch.setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counting(*args: Any, **kwargs: Any) -> Any:
            self.counted[name] += 1
            if self.is_down:
                raise StoreUnavailable("the store is away")
            return await call(*args, **kwargs)

        return counting


@pytest.fixture
def calls(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(jobs.store, monkeypatch)


class Tab:
    """One open page as its server sees it: a stream of events, and the page again after each event."""

    def __init__(self, dashboard: Dashboard, *, refreshes: bool = False, url: str = "/live", **headers: str) -> None:
        self._path, _, self._query = url.partition("?")
        self.events: list[str] = []
        self.text = ""
        self._visitor = Visitor(dashboard)
        self._headers = headers
        self._refreshes = refreshes
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        headers = {"host": "127.0.0.1:8000", **self._headers}
        scope = {
            "type": "http",
            "method": "GET",
            "path": self._path,
            "root_path": "",
            "query_string": self._query.encode(),
            "client": LOCAL,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }

        async def receive() -> dict[str, Any]:
            await self._gone.wait()
            return {"type": "http.disconnect"}

        await self._visitor.app(scope, receive, self._send)

    async def _send(self, message: Any) -> None:
        text = message.get("body", b"").decode()
        self.text += text
        self.events += [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        self._news.set()
        if self._refreshes and "event: second" in text:
            assert (await self._visitor.get("/queues")).status == 200

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for events until something is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        """As the browser does it."""
        self._gone.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the stream is over."""
        async with asyncio.timeout(PATIENCE_S):
            await self._task


@contextlib.asynccontextmanager
async def opened(dashboard: Dashboard, count: int, **options: Any) -> AsyncIterator[list[Tab]]:
    """Some open tabs."""
    tabs = [Tab(dashboard, **options) for _ in range(count)]
    try:
        await asyncio.gather(*(tab.until(lambda tab=tab: tab.text) for tab in tabs))  # type: ignore[misc]
        yield tabs
    finally:
        await asyncio.gather(*(tab.close() for tab in tabs))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does not wait for a second."""
    monkeypatch.setattr(live, "EVERY_S", 0.01)


# ---------------------------------------------------------------------------------------------------- what it costs


async def calls_in_turns(dashboard: Dashboard, calls: Calls, tabs: int, turns: int) -> Counter[str]:
    """The calls of some turns of the loop, with so many tabs that load their page again after each."""
    async with opened(dashboard, tabs, refreshes=True) as all_tabs:
        first = all_tabs[0]
        await first.until(lambda: first.events.count("second") >= 1)
        begin = Counter(calls.counted)
        until = first.events.count("second") + turns
        for tab in all_tabs:
            await tab.until(lambda tab=tab: tab.events.count("second") >= until)  # type: ignore[misc]
        return Counter(calls.counted) - begin


@pytest.mark.slow
async def test_fifty_tabs_cost_what_one_costs(jobs: Client, calls: Calls) -> None:
    await jobs.enqueue("send", queue="mail")
    turns = 3
    found = {}
    for tabs in (1, 50):
        dashboard = Dashboard(jobs)
        found[tabs] = await calls_in_turns(dashboard, calls, tabs, turns)
        await dashboard.close()
    # Per turn one call each; the page of the last turn may still be under way, or that of the next one have begun.
    for counted in found.values():
        assert turns - 1 <= counted["depths"] <= turns + 1, found
        assert set(counted) <= {"depths", "settings", "workers", "tallies"}
    assert all(abs(found[50][name] - found[1][name]) <= 2 for name in found[50] | found[1]), found


async def test_a_page_that_fifty_visitors_ask_for_at_once_is_read_once(
    jobs: Client, dashboard: Dashboard, calls: Calls
) -> None:
    await jobs.enqueue("send", queue="mail")
    pages = await asyncio.gather(*(Visitor(dashboard).get("/queues") for _ in range(50)))
    assert {page.status for page in pages} == {200}
    assert set(calls.counted.values()) == {1}
    assert sum(calls.counted.values()) <= 5


async def test_the_loop_ends_with_the_last_tab(jobs: Client, dashboard: Dashboard, calls: Calls, fast: None) -> None:
    async with opened(dashboard, 3) as tabs:
        await tabs[0].until(lambda: "second" in tabs[0].events)
        await tabs[0].close()
        await tabs[1].close()
        assert dashboard.live.tabs == 1
        before = len(tabs[2].events)
        await tabs[2].until(lambda: len(tabs[2].events) > before)
        (loop,) = [task for task in asyncio.all_tasks() if task.get_name() == "jobmill dashboard"]
    assert dashboard.live.tabs == 0
    await asyncio.wait([loop], timeout=PATIENCE_S)
    assert loop.cancelled()
    # The next tab starts another one.
    async with opened(dashboard, 1) as tabs:
        await tabs[0].until(lambda: "second" in tabs[0].events)


# ---------------------------------------------------------------------------------------------------- what tabs get


async def test_tabs_are_told_what_has_changed(jobs: Client, dashboard: Dashboard, fast: None) -> None:
    dashboard.reads.forget()
    async with opened(dashboard, 2) as tabs:
        await tabs[0].until(lambda: tabs[0].events.count("second") > 3)
        assert set(tabs[0].events[:4]) == {"second", "queues", "workers", "slow"}
        begin = [len(tab.events) for tab in tabs]
        assert "queues" not in tabs[0].events[4:]
        await jobs.enqueue("send", queue="mail")
        dashboard.reads.forget()
        for tab, seen in zip(tabs, begin, strict=True):
            await tab.until(lambda tab=tab, seen=seen: "queues" in tab.events[seen:])  # type: ignore[misc]
            assert "workers" not in tab.events[seen:]


async def test_slow_readers_lose_old_events(jobs: Client, dashboard: Dashboard) -> None:
    """Memory does not grow, the newest events are there, and others do not wait."""
    stream = dashboard.live.stream()
    assert await anext(stream) == "id: 1\n\n"
    for number in range(100):
        dashboard.live._tell([f"event-{number}"])
    news = [await anext(stream) for _ in range(live._MAX_WAITING)]
    assert news == [f"event: event-{number}\ndata: 1\n\n" for number in range(92, 100)]
    await stream.aclose()  # type: ignore[attr-defined]
    assert dashboard.live.tabs == 0


async def test_a_tab_that_returns_gets_everything(jobs: Client, dashboard: Dashboard) -> None:
    """It was hidden, or its connection broke: it has missed events."""
    async with opened(dashboard, 1) as tabs:
        assert tabs[0].text.startswith("id: 1\n\n")
    async with opened(dashboard, 1, last_event_id="1") as tabs:
        await tabs[0].until(lambda: len(tabs[0].events) >= 4)
        assert tabs[0].events[:4] == ["second", "queues", "workers", "slow"]


@pytest.mark.parametrize("page", ["before the change", "of another process", "after the change"])
async def test_a_tab_that_has_missed_a_change_is_told_as_its_stream_opens(
    jobs: Client, dashboard: Dashboard, fast: None, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """The loop, which runs for another tab, has told of the change already."""
    monkeypatch.setattr(live, "SLOW_EVERY", 1_000_000)
    async with opened(dashboard, 1) as (other,):
        await other.until(lambda: other.events.count("second") > 1)
        urls = {"before the change": stream_of(await Visitor(dashboard).get("/queues"))}
        begin = len(other.events)
        await jobs.enqueue("send", queue="mail")
        dashboard.reads.forget()
        await other.until(lambda: "queues" in other.events[begin:])
        urls["after the change"] = stream_of(await Visitor(dashboard).get("/queues"))
        urls["of another process"] = stream_of(await Visitor(Dashboard(jobs)).get("/queues"))
        async with opened(dashboard, 1, url=urls[page]) as (tab,):
            await tab.until(lambda: tab.events.count("second") > 3)
            has_missed = page != "after the change"
            assert tab.events[:4] == (["second", "queues", "workers", "slow"] if has_missed else ["second"] * 4)


def stream_of(page: Answer) -> str:
    """The URL of the stream that a page opens."""
    return unescape(page.text.partition('hx-sse:connect="')[2].partition('"')[0])


async def test_a_quiet_stream_says_that_it_is_there(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "COMMENT_S", 0.01)
    monkeypatch.setattr(Live, "_run", lambda _: asyncio.Event().wait())
    async with opened(dashboard, 1) as tabs:
        await tabs[0].until(lambda: ": still here\n\n" in tabs[0].text)


async def test_a_stream_ends_after_its_life(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tab then asks again, and permissions are checked again."""
    monkeypatch.setattr(live, "LIFE_S", 0.05)
    tab = Tab(dashboard)
    await tab.ended()
    assert dashboard.live.tabs == 0


async def test_closing_ends_all_streams(jobs: Client, dashboard: Dashboard) -> None:
    tabs = [Tab(dashboard) for _ in range(5)]
    for tab in tabs:
        await tab.until(lambda tab=tab: tab.text)  # type: ignore[misc]
    await dashboard.close()
    for tab in tabs:
        await tab.ended()
    assert dashboard.live.tabs == 0


# ---------------------------------------------------------------------------------------------------- a store goes away


async def test_an_outage_is_told_once_and_its_end_brings_everything(
    jobs: Client, dashboard: Dashboard, calls: Calls, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(dashboard, 2) as tabs:
        await tabs[0].until(lambda: "second" in tabs[0].events)
        calls.is_down = True
        dashboard.reads.forget()
        await tabs[0].until(lambda: "down" in tabs[0].events)
        at = calls.counted["depths"]
        async with asyncio.timeout(PATIENCE_S):
            while calls.counted["depths"] < at + 3:  # it tries again and again
                dashboard.reads.forget()
                await asyncio.sleep(0.005)
        assert [tab.events[-1] for tab in tabs] == ["down", "down"]
        page = await Visitor(dashboard).get("/queues")
        assert (page.status, "The store does not answer" in page.words) == (503, True)
        assert 'data-live="second"' in page.text
        calls.is_down = False
        dashboard.reads.forget()
        for tab in tabs:
            await tab.until(lambda tab=tab: tab.events[-1] != "down")  # type: ignore[misc]
            after = tab.events[tab.events.index("down") + 1 :]
            assert set(after[:4]) == {"second", "queues", "workers", "slow"}
        assert tabs[0].events.count("down") == 1
    assert caplog.text.count("the dashboard cannot read the store") == 1


async def test_an_error_is_not_given_again(jobs: Client, dashboard: Dashboard, calls: Calls) -> None:
    calls.is_down = True
    visitor = Visitor(dashboard)
    assert (await visitor.get("/queues")).status == 503
    calls.is_down = False
    assert (await visitor.get("/queues")).status == 200


# ---------------------------------------------------------------------------------------------------- after an act


async def test_after_an_act_the_next_page_is_fresh(jobs: Client, visitor: Visitor) -> None:
    for _ in range(3):
        assert "paused by" not in (await visitor.get("/queues")).words
        await visitor.act("pause", queue="mail", follow=False)
        assert "paused by" in (await visitor.get("/queues")).words
        await visitor.act("resume", queue="mail", follow=False)


async def test_a_read_that_began_before_an_act_is_not_given_after_it(
    jobs: Client, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have seen the store as it was."""
    original, began, go_on = jobs.store.settings, asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        found = await original()
        if not began.is_set():
            began.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(jobs.store, "settings", slow)
    before = asyncio.create_task(visitor.get("/queues"))
    await began.wait()
    await visitor.act("pause", queue="mail", follow=False)
    async with asyncio.timeout(PATIENCE_S):  # if it waited for the old read, it would wait for ever
        assert "paused by" in (await visitor.get("/queues")).words
    go_on.set()
    assert "paused by" not in (await before).words
    assert "paused by" in (await visitor.get("/queues")).words


async def test_an_act_that_fails_makes_pages_fresh_too(
    jobs: Client, dashboard: Dashboard, visitor: Visitor, calls: Calls
) -> None:
    await visitor.get("/queues")
    before = calls.counted["depths"]
    await visitor.act("pause", queue="bad queue", follow=False)
    await visitor.get("/queues")
    assert calls.counted["depths"] == before + 1


async def test_a_tab_that_opens_while_the_last_one_closes_has_events(dashboard: Dashboard) -> None:
    """As when a visitor follows a link. The loop of the first tab has been told to end, and has not ended yet."""
    first, second = dashboard.live.stream(), dashboard.live.stream()
    await anext(first)
    await first.aclose()  # type: ignore[attr-defined]
    await anext(second)
    async with asyncio.timeout(10):
        assert "event: second" in await anext(second)
    await second.aclose()  # type: ignore[attr-defined]
