"""docs/redis.md and docs/bullmq.md: keys, calls, options and rights are those of the code."""

from __future__ import annotations

import asyncio
import inspect
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import jobmill
from jobmill import bullmq
from jobmill.core.audit import AuditEntry, AuditFilter
from jobmill.core.changes import Hold, Release
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.values import Filter, after
from jobmill.store import Store
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.connection import connect, pipelined
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing.contract.announce import card, group, tally
from jobmill.testing.contract.support import new, put_one, started
from tests.docs.pages import ROOT, blocks, code_of, section, spans, table
from tests.kit.redis import Rooms

REDIS = ROOT / "docs/redis.md"
BULLMQ = ROOT / "docs/bullmq.md"
OPTIONS = ROOT / "docs/options.md"
STORE = ROOT / "src/jobmill/stores/redis"

pytestmark = pytest.mark.stores("redis")


@pytest.mark.parametrize("page", [REDIS, OPTIONS], ids=lambda page: page.stem)
def test_every_url_selects_redis_and_the_defaults_of_its_options_are_right(page: Path) -> None:
    for row in table(page, "Connecting", "URL"):
        if urlsplit(url := code_of(row["URL"])).scheme.startswith(("redis", "unix")):
            assert isinstance(jobmill.connect(url).store, RedisStore)
    plain = RedisUrl.read("redis://db")
    documented = {
        name: row["default"].strip("`")
        for row in table(page, "Connecting", "option in the URL")
        for name in spans(row["option in the URL"])
    }
    assert (documented["prefix"], documented["layout"]) == (plain.prefix, str(plain.layout))


def test_the_deadlines_are_those_of_the_code() -> None:
    documented = {row["what"]: row["within"] for row in table(REDIS, "Calls and connections", "what")}
    assert list(documented.values())[:3] == [
        f"{seconds:g} s" for seconds in (connect.CONNECT_SECONDS, connect.SENTINEL_SECONDS, pipelined.CALL_SECONDS)
    ]


def test_the_page_names_every_key_and_field_of_jobmill() -> None:
    documented = set(spans(section(BULLMQ, "Keys and fields of Jobmill")))
    source = "".join(path.read_text() for path in [*STORE.rglob("*.py"), *STORE.rglob("*.lua")])
    keys = {f"Q:jobmill:{name}" for name in re.findall(r":jobmill:(\w+)", source)}
    # `jmchildren` is made by scripts that read, and never stored.
    fields = set(re.findall(r"[\"'.](jm\w*)\b(?!:)", source)) - {"jmfeed", "jmchildren"}
    fields |= {f"{name}:…" for name in re.findall(r"[\"'](jm\w+):", source)}
    assert {name for name in documented if name.startswith("Q:jobmill:")} == keys
    assert {name for name in documented if name.startswith("jm")} == fields | {"jmfeed"}


def test_the_page_names_every_method_of_a_queue() -> None:
    documented = {
        name
        for row in table(BULLMQ, "Node's Queue in Python", "in Node")
        for name in re.findall(r"\w+", row["in Python"])
    }
    own = {name for name, _ in inspect.getmembers(bullmq.Queue, inspect.isfunction) if not name.startswith("_")}
    assert own <= documented


@pytest.fixture
def limited_url(redis_server: Rooms) -> Iterator[str]:
    """The URL of a user who has the rights of the page, and no others."""
    (command,) = [block.code for block in blocks(REDIS) if block.code.startswith("ACL")]
    user, prefix = f"u{uuid.uuid4().hex[:12]}", f"t{uuid.uuid4().hex[:12]}"
    words = [word.replace("~bull", f"~{prefix}").replace(":bull:", f":{prefix}:") for word in command.split()]
    assert words[:3] == ["ACL", "SETUSER", "jobmill"]
    assert "setinfo" not in command, "servers before 7.2 refuse the whole line"
    redis_server.ask("ACL", "SETUSER", user, *words[3:])
    redis_server.ask("ACL", "LOG", "RESET")
    with redis_server.database() as database:
        parts = urlsplit(database)
        try:
            netloc = f"{user}:secret@{parts.hostname}:{parts.port}"
            yield parts._replace(netloc=netloc, query=f"prefix={prefix}").geturl()
        finally:
            redis_server.ask("ACL", "DELUSER", user)


@pytest.mark.slow
async def test_the_documented_rights_are_enough_for_every_call(
    limited_url: str, redis_server: Rooms, redis_name: str
) -> None:
    async with jobmill.connect(limited_url) as jobs:
        await use(jobs)
        await operate(jobs.store)
        user = str(urlsplit(limited_url).username)
        with redis_server.client() as client:
            refused = [row for row in client.acl_log() if row["username"] in (user, user.encode())]
        assert refused == []


@pytest.mark.slow
async def test_the_documented_rights_exclude_other_prefixes(limited_url: str) -> None:
    url = f"{limited_url.partition('?')[0]}?prefix=another"
    with pytest.raises(jobmill.StoreError, match="NOPERM|permission"):
        await jobmill.connect(url).open()


async def use(jobs: jobmill.Client) -> None:
    """Call every operation of Jobmill and of `jobmill.bullmq`."""
    queue, mail = jobs.queue("mail"), bullmq.Queue(jobs.store, "mail")  # type: ignore[arg-type]

    @jobs.handler(queue="mail", backoff=0.01, max_attempts=2)
    async def work(context: jobmill.Context, fails: bool = False) -> None:
        context.progress(50)
        context.log("half way")
        await asyncio.sleep(0.7)  # a heartbeat comes
        if fails:
            raise ValueError

    await queue.feed()
    await queue.rate_limit(1_000)
    await queue.running_limit(100)
    async with jobmill.Worker(jobs, lease=1.5):
        plain = await work.enqueue()
        failing = await work.options(unique_key="once").enqueue(fails=True)
        delayed = await work.options(delay=0.1, priority=1).enqueue()
        often = await work.options(every=0.2, key="often").enqueue()
        await plain.result(timeout=20)
        with pytest.raises(jobmill.JobFailed):
            await failing.result(timeout=20)
        await delayed.result(timeout=20)
    await queue.pause()
    await queue.resume()
    assert await jobs.logs(plain.id)
    for act in (jobs.requeue, jobs.cancel, jobs.remove):
        assert (await act(failing.id)).ids == [failing.id]
    later = await work.options(delay=3_600).enqueue()
    await jobs.reschedule(later.id, delay=7_200)
    await jobs.reprioritize(later.id, priority=3)
    await jobs.cancel(often.id)
    await jobs.stats()
    await jobs.purge()
    assert [event async for event in jobs.events("mail", follow=False)]
    await mail.add("work", lifo=True, deduplication=bullmq.Deduplication(id="a", ttl=1_000))
    await mail.upsert_scheduler("s", every=1_000)
    await mail.remove_scheduler("s")
    await mail.promote_all()
    await mail.retry_all()
    await mail.drain(delayed=True)
    await mail.clean(0)
    await mail.rate_limit(10)


async def operate(store: Store) -> None:
    """Call the operations that people and dashboards use."""
    later = await put_one(store, new(due=after(60_000)))
    await store.change([later], Hold(who="ada"))
    await store.change([later], Release())
    assert await store.lease_ends([(await started(store, new(queue="leased"))).job.id]) != [None]
    await store.depths()
    await store.count_up_to(Filter(name="work"), 10)
    now_ms = store.now()
    await store.announce(card(), [tally(now_ms, claimed=1, error_groups=(group("x", 1, now_ms),))])
    assert await store.order_stop(["w1"]) == ["w1"]
    assert await store.workers()
    assert await store.tallies(0, now_ms + MINUTE_MS, MINUTE_MS)
    await store.audit([AuditEntry(id="a", who="ada", what="mark")])
    assert (await store.audit_log(AuditFilter())).entries
    await store.fsck(repair=True)
    await store.diagnose()
