"""`jobmill import` with what the real Celery, RQ and arq wrote: recorded, and with `--all` written anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from jobmill import Job
from tests.cli.conftest import Shell
from tests.compat import recorded

pytestmark = pytest.mark.stores("redis")

LATER = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
ORIGINS = [pytest.param("recorded"), pytest.param("real", marks=[pytest.mark.extended, pytest.mark.slow])]


class Other:
    """Another system's database, and commands that import from it."""

    def __init__(self, shell: Shell, url: str) -> None:
        self.shell = shell
        self.url = url
        self.ids: dict[str, str] = {}

    def fill(self, system: str, origin: str = "recorded") -> None:
        if origin == "real":
            self.ids = recorded.write(system, self.url)
        else:
            recording = recorded.recording(system)
            recorded.load(self.url, recording["keys"])
            self.ids = recording["ids"]

    def imports(self, system: str, *args: str, code: int = 1) -> dict[str, Any]:
        answer: dict[str, Any] = self.shell.json("import", system, self.url, *args, code=code)
        return answer

    def raw(self, key: str) -> list[bytes]:
        with redis.Redis.from_url(self.url) as client:
            entries: Any = client.lrange(key, 0, -1)
        return list(entries)

    def job(self, what: str) -> Job:
        return self.shell.do(lambda jobs: jobs.get(self.ids[what]))

    def all(self) -> list[Job]:
        async def find(jobs: Any) -> list[Job]:
            return [job async for job in jobs.find_all()]

        return self.shell.do(find)

    def refused(self, answer: dict[str, Any]) -> dict[str, str]:
        """Why each job is refused."""
        names = {id: what for what, id in self.ids.items()}
        return {names[id]: one["reason"] for one in answer["refused"] for id in one["examples"]}


@pytest.fixture
def other(tmp_path: Path, redis_database_url: str) -> Iterator[Other]:
    shell = Shell(tmp_path)
    yield Other(shell, redis_database_url)
    for process in shell.processes:
        with process:
            process.kill()


def payload(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": list(args), "kwargs": kwargs}


# ---------------------------------------------------------------------------------------------------- Celery


@pytest.mark.parametrize("origin", ORIGINS)
def test_messages_of_celery_become_jobs_once(other: Other, origin: str) -> None:
    other.fill("celery", origin)
    before = recorded.dump(other.url)

    dry = other.imports("celery")
    assert not other.shell.file.exists()  # nothing was written, not even a database
    assert dry["applied"] is False
    found = {(one["queue"], one["name"]): one["found"] for one in dry["jobs"]}
    assert found == {
        ("default", "shop.add"): 9,
        ("default", "shop.mail"): 1,
        ("letters", "shop.mail"): 1,
        ("taken", "shop.add"): 1,
    }
    assert dry["unacknowledged"] == 1
    refused = other.refused(dry)
    assert refused.keys() == {"expired", "pickle", "chain"}
    assert refused["expired"] == "it has expired"
    assert "--allow-pickle" in refused["pickle"]
    assert "part of a workflow (chain)" in refused["chain"]

    first = other.imports("celery", "--apply")
    assert sum(one["created"] for one in first["jobs"]) == 12
    again = other.imports("celery", "--apply")
    assert [sum(one[what] for one in again["jobs"]) for what in ("created", "existed")] == [0, 12]
    assert len(other.all()) == 12
    assert recorded.dump(other.url) == before  # Celery keeps everything


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_message_of_celery_keeps_what_it_says(other: Other, origin: str) -> None:
    other.fill("celery", origin)
    other.imports("celery", "--apply", "--allow-pickle")
    assert other.job("plain").payload == payload(1, 2)
    assert other.job("plain").queue == "default"
    assert other.job("named").payload == payload(to="ada", subject="Grüße")
    assert other.job("eta").due_at == LATER
    assert other.job("gzip").payload == payload(5, "x" * 1000)
    assert other.job("bzip2").payload == payload(6, "x" * 1000)
    assert other.job("priority").priority == 9
    assert other.job("queue").queue == "letters"
    assert other.job("expires").headers == {"celery-expires": str(int(LATER.timestamp() * 1000))}
    assert other.job("time_limit").options.timeout_ms == 30_000
    assert other.job("unacked").payload == payload(14)
    assert [value["__type__"] for value in other.job("values").payload["args"][0]] == [
        "date",
        "datetime",
        "decimal",
        "uuid",
        "base64",
        "base64",
    ]
    when = {"__type__": "datetime", "__value__": "2026-01-02T00:00:00"}
    assert other.job("pickle").payload == payload(11, {"when": when})


def test_jobs_of_celery_are_imported_in_their_order(other: Other) -> None:
    other.fill("celery")
    other.imports("celery", "--apply", "--queue", "celery")

    async def order(jobs: Any) -> list[Any]:
        page = await jobs.find(queue="default", states="waiting", limit=5)
        return [job.payload["args"][:1] for job in page.jobs]

    assert other.shell.do(order)[:3] == [[1], [], [5]]  # as they were enqueued; the second has no args


def test_priorities_with_the_separator_of_the_documentation_are_found(other: Other) -> None:
    other.fill("celery")
    with redis.Redis.from_url(other.url) as client:
        client.rename("celery\x06\x169", "celery:9")
        client.set("celery:5", "not a list")
    other.imports("celery", "--apply")
    assert other.job("priority").priority == 9


def test_a_global_prefix_of_celery(other: Other) -> None:
    other.fill("celery")
    with redis.Redis.from_url(other.url) as client:
        for key in list(client.scan_iter()):
            client.rename(key, b"shop[1]:" + key)
    assert other.imports("celery", code=0)["jobs"] == []
    found = other.imports("celery", "--prefix", "shop[1]:")
    assert sum(one["found"] for one in found["jobs"]) == 12


APP = """
import datetime
import jobmill
from jobmill.compat.celery import bind, shared_task

jobs = jobmill.connect()

@shared_task(name="shop.add")
def add(x, y=0):
    if isinstance(x, list):
        assert [type(one).__name__ for one in x] == ["date", "datetime", "Decimal", "UUID", "bytes", "bytes"], x
        assert x[4:] == [b"\\xff\\x00", b"hi"]
        return x
    return [x, y]

@jobs.handler(name="mail")
def send_mail(to: str, subject: str = "none") -> str:
    return f"{to}: {subject}"

bind(jobs)
"""


def test_a_worker_runs_imported_jobs_of_celery(other: Other) -> None:
    other.fill("celery")
    other.shell.write_app(APP)
    rename = ("--rename", "shop.mail=mail", "--rename-queue", "letters=default")
    command = ("import", "celery", other.url, "app.py:jobs", "--apply", "--allow-pickle", "--json", *rename)
    importing = other.shell.start(*command)  # in a process of its own, because `bind` holds for a whole process
    answer = json.loads(importing.communicate(timeout=60)[0])
    assert {(one["queue"], one["name"]) for one in answer["jobs"]} >= {("default", "mail"), ("default", "shop.add")}
    worker = other.shell.start("worker", "app.py", "--max-jobs", "10", "--queue", "default", "--queue", "taken")
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 4, errors
    for what, result in {"plain": [1, 2], "gzip": [5, "x" * 1000], "named": "ada: Grüße", "queue": "bob: none"}.items():
        job = other.job(what)
        assert (job.state, job.result) == ("succeeded", result), job.error
    assert other.job("values").state == "succeeded"
    assert other.job("unacked").result == [14, 0]


def test_with_a_module_each_job_must_fit_a_handler(other: Other) -> None:
    other.fill("celery")
    app = other.shell.write_app(
        """
import jobmill
jobs = jobmill.connect()

@jobs.handler(name="shop.add")
def add(x: int, y: int = 0) -> int: ...
""",
        name="app_for_import.py",
    )
    answer = other.imports("celery", str(app))
    refused = other.refused(answer)
    assert refused["named"].startswith("there is no handler named 'shop.mail': define it, or give --rename shop.mail=")
    assert refused["gzip"].startswith("payload: expected arguments that fit the handler's annotations")
    assert "xxx" not in refused["gzip"]  # a reason has no values
    assert [(one["name"], one["found"]) for one in answer["jobs"] if one["queue"] == "default"] == [("shop.add", 6)]


# ---------------------------------------------------------------------------------------------------- RQ


@pytest.mark.parametrize("origin", ORIGINS)
def test_jobs_of_rq(other: Other, origin: str) -> None:
    other.fill("rq", origin)
    before = recorded.dump(other.url)
    dry = other.imports("rq")
    assert other.refused(dry).keys() == {"callback", "pickle", "object"}
    assert "success callback, which would be lost" in other.refused(dry)["callback"]
    assert dry["left"] == {"running": 0, "deferred": 1, "failed": 0, "finished": 0}
    answer = other.imports("rq", "--apply", "--allow-pickle")
    assert other.refused(answer)["object"] == "its pickle holds an object that is not plain data"
    assert sum(one["created"] for one in answer["jobs"]) == 7
    assert sum(one["created"] for one in other.imports("rq", "--apply", "--allow-pickle")["jobs"]) == 0
    assert recorded.dump(other.url) == before

    plain = other.job("json")
    assert (plain.name, plain.queue, plain.payload) == ("shop.send", "default", payload("ada", subject="hi"))
    assert (plain.options.max_attempts, plain.options.timeout_ms) == (1, 180_000)
    retries = other.job("retries").options
    assert retries.max_attempts == 4
    assert retries.backoff is not None
    assert retries.backoff.delay_ms == 30_000
    assert other.job("timeout").options.timeout_ms == 7_000
    assert other.job("scheduled").due_at == LATER
    assert other.job("other queue").queue == "slow"
    assert other.job("pickle").payload["kwargs"]["when"]["__type__"] == "datetime"
    (numbered,) = [job for job in other.all() if job.id.startswith("rq-")]  # "12345" is no id here
    assert numbered.payload == payload("fay")


# ---------------------------------------------------------------------------------------------------- arq


@pytest.mark.parametrize("origin", ORIGINS)
def test_jobs_of_arq(other: Other, origin: str) -> None:
    other.fill("arq", origin)
    before = recorded.dump(other.url)
    dry = other.imports("arq")
    assert other.refused(dry).keys() == {"pickle", "object", "other queue"}
    assert "--rename-queue arq:queue:slow=NEW" in other.refused(dry)["other queue"]
    assert dry["left"] == {"running": 1, "results": 0}
    options = ("--apply", "--allow-pickle", "--rename-queue", "arq:queue:slow=slow")
    answer = other.imports("arq", *options)
    assert other.refused(answer) == {"object": "its pickle holds an object that is not plain data"}
    assert sum(one["created"] for one in answer["jobs"]) == 5
    assert sum(one["created"] for one in other.imports("arq", *options)["jobs"]) == 0
    assert recorded.dump(other.url) == before

    plain = other.job("json")
    assert (plain.name, plain.queue, plain.payload) == ("send", "default", payload("ada", subject="hi"))
    assert other.job("deferred").due_at == LATER
    assert other.job("other queue").queue == "slow"
    assert other.job("pickle").payload["kwargs"]["when"]["__type__"] == "datetime"
    assert [job.payload for job in other.all() if job.id.startswith("arq-")] == [payload("eve")]  # of "mail:7"
    assert not [job for job in other.all() if job.payload == payload("fay")]  # it runs


# ---------------------------------------------------------------------------------------------------- the command


def test_what_people_read(other: Other) -> None:
    other.fill("arq")
    shown = other.shell("import", "arq", other.url, "--queue", "arq:queue", "--allow-pickle", code=1)
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[:2] == [["QUEUE", "NAME", "FOUND"], ["default", "send", "4"]]
    assert shown.stdout.endswith("4 jobs can be imported; nothing was written (--apply imports)\n")
    warning, refused, left = shown.stderr.splitlines()
    assert warning.startswith("jobmill: reading pickles: only plain data")
    assert refused.startswith("jobmill: 1 job cannot be imported: its pickle holds an object that is not plain data (")
    assert left == "jobmill: left in arq, and not imported: 1 running"
    done = other.shell("import", "arq", other.url, other.shell.url, "--apply", "--queue", "arq:queue", code=1)
    assert done.stdout.endswith("3 jobs imported\n")
    again = other.shell("import", "arq", other.url, "--apply", "--queue", "arq:queue", code=1)
    assert again.stdout.endswith("0 jobs imported, 3 were there already\n")


def test_people_read_what_a_worker_of_celery_may_have(other: Other) -> None:
    other.fill("celery")
    lines = other.shell("import", "celery", other.url, code=1).stderr.splitlines()
    fetched = "1 job of these: fetched by a worker of Celery, and not acknowledged; stop its workers before --apply"
    assert lines[-1] == f"jobmill: {fetched}"


def test_the_same_server_may_hold_both(other: Other) -> None:
    """The keys of the store do not touch those of the other system, and a prefix that would is refused."""
    other.fill("rq")
    before = recorded.dump(other.url)
    other.imports("rq", other.url, "--apply")
    after = recorded.dump(other.url)
    assert {key: after[key] for key in before} == before
    assert {key.partition(":")[0] for key in after.keys() - before.keys()} == {"=bull", "=jobmill"}
    refused = other.shell.refused("import", "rq", other.url, f"{other.url}?prefix=rq", code=2)
    assert "the store's prefix 'rq' is that of the other system" in refused


def test_wrong_arguments_are_refused(other: Other) -> None:
    assert "redis://host:port/database" in other.shell.refused("import", "rq", "http://localhost", code=2)
    assert "expected OLD=NEW, got 'x'" in other.shell.refused("import", "rq", other.url, "--rename", "x", code=2)
    away = other.shell.refused("import", "rq", "redis://ada:secret@127.0.0.1:1/0", code=3)
    assert "cannot reach redis://" in away
    assert "secret" not in away


def test_damaged_entries_are_counted_and_the_others_imported(other: Other) -> None:
    other.fill("celery")
    with redis.Redis.from_url(other.url) as client:
        for raw in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"headers": 5}',
            b"[" * 100_000,
            b'{"headers": {"task": "x"}, "body": 7}',
        ):
            client.lpush("celery", raw)
        client.hset("unacked", "x", json.dumps(["only one"]))
        client.hset("unacked", "y", b"\xff\xfe")
    answer = other.imports("celery")
    assert sum(one["found"] for one in answer["jobs"]) == 12
    damaged = {one["reason"]: one["count"] for one in answer["refused"] if one["reason"].startswith("damaged")}
    assert sum(damaged.values()) == 9
    assert damaged["damaged: an unacknowledged message is not a list of three"] == 1


def test_more_messages_than_one_call_reads(other: Other) -> None:
    other.fill("celery")
    raw = next(raw for raw in other.raw("celery") if other.ids["plain"].encode() in raw)
    with redis.Redis.from_url(other.url) as client:
        client.flushdb()
        for number in range(450):
            copy = raw.replace(other.ids["plain"].encode(), f"copy-{number:03}".encode())
            client.lpush("celery", copy.replace(b'"eta": null', b'"eta": "2026-01-01T00:00:00.%03d"' % number))
    (found,) = other.imports("celery", "--apply", code=0)["jobs"]
    assert found == {"queue": "default", "name": "shop.add", "found": 450, "created": 450, "existed": 0}
    assert {job.id for job in other.all()} == {f"copy-{number:03}" for number in range(450)}


def test_values_that_no_store_holds_are_refused(other: Other) -> None:
    other.fill("arq")
    with redis.Redis.from_url(other.url) as client:
        client.flushdb()
        large = json.dumps({"f": "send", "a": ["é" * 4_000_000], "k": {}})
        for id, data in {
            "a": '{"f": "send", "a": [], "k": {}}',
            "b": large,
            "c": '{"f": "s n", "a": [], "k": {}}',
        }.items():
            client.set(f"arq:job:{id}", data)
            client.zadd("arq:queue", {id: 1})
        client.zadd("arq:queue", {"a": "inf"})
    reasons = {one["reason"]: one["examples"] for one in other.imports("arq")["refused"]}
    assert reasons == {
        "time: expected milliseconds since 1970, before the year 10,000, got a value of type int": ["a"],
        "its payload is larger than 10 MB": ["b"],
        "name: expected a text of 1 to 255 characters without white space or control characters, got a value of "
        "type str": ["c"],
    }


def test_entries_of_wrong_types_in_rq_and_arq(other: Other) -> None:
    other.fill("rq")
    with redis.Redis.from_url(other.url) as client:
        client.rpush("rq:queue:default", "gone", "text")
        client.set("rq:job:text", "not a hash")
    reasons = {one["reason"]: one["count"] for one in other.imports("rq")["refused"]}
    assert reasons["its data is gone: it has expired, or was removed"] == 1
    assert reasons["damaged: its key is not a hash"] == 1
