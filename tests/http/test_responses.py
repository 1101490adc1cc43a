from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.http import TickEndpoint, responses
from tests.helpers import FaultyStore
from tests.http.requests import NOTHING_DONE, TICK, ask, body, receiving


@pytest.fixture
def nobody() -> Client:
    """A client whose store is not of interest."""
    return jobmill.connect("memory://")


# ---------------------------------------------------------------------------------------------------- a tick


async def test_a_tick_answers_with_its_summary(jobs: Client) -> None:
    @jobs.handler()
    async def good() -> None: ...

    @jobs.handler(max_attempts=1)
    async def bad() -> None:
        raise RuntimeError("no")

    @jobs.handler()
    async def again() -> None:
        raise RuntimeError("not yet")

    @jobs.handler()
    async def later() -> None:
        raise jobmill.Snooze("1h")

    await jobs.enqueue_many([good.draft(), good.draft(), bad.draft(), again.draft(), later.draft()])
    heard = await ask(TickEndpoint(jobs))
    assert heard.status == 200
    counts = {"claimed": 5, "succeeded": 2, "retrying": 1, "failed": 1, "waiting": 1, "lost": 0}
    assert heard.body == {"ok": True, **counts}
    assert heard.headers["content-length"] == str(len(heard.content))
    assert heard.headers["cache-control"] == "no-store"


async def test_a_tick_without_due_jobs(jobs: Client) -> None:
    assert (await ask(TickEndpoint(jobs))).body == {"ok": True, **NOTHING_DONE}


async def test_a_request_cannot_change_the_limit(jobs: Client) -> None:
    @jobs.handler()
    async def good() -> None: ...

    await jobs.enqueue_many([good.draft() for _ in range(5)])
    endpoint = TickEndpoint(jobs, limit=2)
    asked: dict[str, Any] = {"query_string": b"limit=5", "receive": receiving(*body(b'{"limit": 5}'))}
    assert (await ask(endpoint, **asked)).body["claimed"] == 2
    assert [(await ask(endpoint)).body["claimed"] for _ in range(3)] == [2, 1, 0]


async def test_the_response_of_a_failed_tick_shows_no_details(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)

    @jobs.handler()
    async def good() -> None: ...

    await good.enqueue()
    store.faults["exchange"] = jobmill.StoreUnavailable("no route to db-7.internal, user shop")
    endpoint = TickEndpoint(jobs)
    heard = await ask(endpoint)
    assert heard.status == 500
    assert heard.content == b'{"ok":false,"error":"Failed to run jobs tick"}'
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "db-7" in str(record.exc_info[1])

    store.faults.clear()
    assert (await ask(endpoint)).body["succeeded"] == 1


async def test_a_store_that_cannot_be_opened(tmp_path: Any) -> None:
    file = tmp_path / "jobs.db"
    file.write_text("no database" * 500)
    heard = await ask(TickEndpoint(jobmill.connect(f"sqlite:///{file}")))
    assert (heard.status, heard.error) == (500, "Failed to run jobs tick")


# ---------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "post"])
async def test_other_methods_are_refused(nobody: Client, method: str) -> None:
    heard = await ask(TickEndpoint(nobody, token="secret"), method=method)
    assert (heard.status, heard.headers["allow"]) == (405, "POST")
    if method == "HEAD":
        assert heard.content == b""
    else:
        assert heard.error == "expected POST"


@pytest.mark.parametrize("path", ["/", "", "/api/jobs", "/api/jobs/tick/now", "/api/jobs/ticks", "/x/api/jobs/tick"])
async def test_other_paths_are_not_found(nobody: Client, path: str) -> None:
    heard = await ask(TickEndpoint(nobody), path)
    assert (heard.status, heard.error) == (404, "not found")


@pytest.mark.parametrize(
    ("own", "path", "root_path"),
    [
        (TICK, TICK, ""),
        (TICK, TICK + "/", ""),
        # Mounted, with a path that still has the root path (ASGI as it is written), and without (as it often was).
        (TICK, "/shop" + TICK, "/shop"),
        (TICK, "/shop" + TICK, "/shop/"),
        (TICK, TICK, "/shop"),
        # Mounted at the very path that it is to have.
        ("/", TICK, TICK),
        ("/", TICK + "/", TICK),
        ("/", "/", TICK),
        ("/", "", TICK),
        ("/", "/", ""),
        # Mounted at a prefix of its path, which must not be repeated.
        (TICK, TICK, "/api"),
        ("/tick", "/tick", ""),
        ("/tick/", "/tick", ""),
    ],
)
async def test_the_path_of_a_mounted_endpoint(nobody: Client, own: str, path: str, root_path: str) -> None:
    assert (await ask(TickEndpoint(nobody, path=own), path, root_path=root_path)).status == 200


@pytest.mark.parametrize(
    ("own", "path", "root_path"), [(TICK, "/other" + TICK, "/shop"), ("/", TICK, ""), ("/", TICK, "/api")]
)
async def test_other_paths_of_a_mounted_endpoint_are_not_found(
    nobody: Client, own: str, path: str, root_path: str
) -> None:
    assert (await ask(TickEndpoint(nobody, path=own), path, root_path=root_path)).status == 404


async def test_a_scope_without_a_root_path(nobody: Client) -> None:
    scope = {"type": "http", "method": "POST", "path": TICK, "headers": [], "client": ["127.0.0.1", 1]}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await TickEndpoint(nobody)(scope, receiving({"type": "http.request"}), send)
    assert sent[0]["status"] == 200


# ---------------------------------------------------------------------------------------------------- bodies


async def test_a_body_is_read_to_its_end_and_ignored(nobody: Client) -> None:
    parts = [b"{", b"not json", b"\xff" * 1000, b""]
    heard = await ask(TickEndpoint(nobody), receive=receiving(*body(*parts)))
    assert heard.status == 200


async def test_a_body_that_is_too_large_is_refused(jobs: Client) -> None:
    @jobs.handler()
    async def good() -> None: ...

    await good.enqueue()
    endpoint = TickEndpoint(jobs)
    part = b"x" * (responses.MAX_BODY // 2)
    heard = await ask(endpoint, receive=receiving(*list(body(part, part, b"x", b"never"))[:3]))
    assert (heard.status, heard.error) == (413, "expected no body, or one of at most 65536 bytes, which is ignored")
    assert (await ask(endpoint, receive=receiving(*body(part, part)))).body["claimed"] == 1


async def test_a_body_that_never_ends_is_refused_after_a_timeout(
    nobody: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "BODY_DEADLINE_S", 0.01)

    async def receive() -> Any:
        await asyncio.Event().wait()

    heard = await ask(TickEndpoint(nobody), receive=receive)
    assert (heard.status, heard.error) == (408, "expected the whole body within 5 s")


async def test_a_request_that_ends_early_runs_no_tick(jobs: Client) -> None:
    @jobs.handler()
    async def good() -> None: ...

    await good.enqueue()
    cut = receiving(*list(body(b"a", b"b"))[:1], {"type": "http.disconnect"})
    heard = await ask(TickEndpoint(jobs), receive=cut)
    assert (heard.status, heard.error) == (400, "the request ended early")
    assert [count.state for count in await jobs.count()] == ["waiting"]


async def test_an_unauthorized_request_is_refused_before_its_body_is_read(nobody: Client) -> None:
    endpoint = TickEndpoint(nobody, token="secret")
    for said, status in [({}, 401), ({"method": "PUT"}, 405), ({"path": "/"}, 404)]:
        assert (await ask(endpoint, receive=receiving(), **said)).status == status


# ---------------------------------------------------------------------------------------------------- the rest


async def test_a_websocket_is_closed(nobody: Client) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await TickEndpoint(nobody)({"type": "websocket", "path": TICK}, receiving(), send)
    assert sent == [{"type": "websocket.close"}]


async def test_another_protocol_is_refused(nobody: Client) -> None:
    with pytest.raises(jobmill.InvalidValue, match="scope.type: expected .*, got 'smtp'"):
        await TickEndpoint(nobody)({"type": "smtp"}, receiving(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "heard"),
    [
        ({"limit": 0}, "limit: expected a whole number from 1 to 10000, got 0"),
        ({"limit": 10_001}, "limit: expected a whole number from 1 to 10000, got 10001"),
        ({"path": "tick"}, "path: expected a path such as /api/jobs/tick, got 'tick'"),
        ({"path": "/tick?limit=3"}, "path: expected a path such as /api/jobs/tick, got '/tick?limit=3'"),
        ({"shutdown_timeout": -1}, "shutdown_timeout: expected a duration of at least 0s, got -1"),
    ],
)
def test_invalid_options_are_refused(nobody: Client, given: Any, heard: str) -> None:
    with pytest.raises(jobmill.InvalidValue) as refused:
        TickEndpoint(nobody, **given)
    assert str(refused.value) == heard
