"""deploy/prometheus/alerts.yaml: each alert fires, and is silent, with metrics of real workers and of a store."""

from __future__ import annotations

import re
import signal
import sqlite3

import pytest

from tests.deploy.files import ALERTS, DEPLOY, alerts
from tests.deploy.series import Scraped, expect_alerts
from tests.deploy.site import Site, ten_minutes_ago
from tests.helpers import until
from tests.kit.promtool import promtool
from tests.kit.scrape import scrape, suspend

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]


def test_the_rules_are_valid() -> None:
    code, said = promtool("check", "rules", str(ALERTS))
    assert (code, "8 rules found" in said) == (0, True), said
    assert promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yaml"))[0] == 0


def test_every_rule_has_a_severity_and_says_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


async def test_workers_that_do_their_work_raise_no_alert(site: Site) -> None:
    port = await site.worker()
    await site.jobs.enqueue("good", every="1h", key="hourly")
    before, exported = await site.ran(port, 1), await site.exported()
    for _ in range(20):
        await site.jobs.enqueue("good")
    await site.jobs.enqueue("bad")
    await site.jobs.enqueue("good", delay="1h")
    instances = {
        "worker": Scraped(before, await site.ran(port, 22)),
        "metrics": Scraped(exported, await site.exported()),
    }
    expect_alerts(site.folder, instances, {minute: set() for minute in (-10, 0, 1, 4, 9, 35)})


async def test_a_queue_without_a_worker(site: Site) -> None:
    exported = await site.exported()
    await site.jobs.enqueue("good")
    due = await site.exported()
    expect_alerts(site.folder, {"metrics": Scraped(exported, due)}, {1: set(), 3: {"JobmillQueueWithoutWorker"}})
    await site.jobs.queue("default").pause()
    expect_alerts(site.folder, {"metrics": Scraped(exported, await site.exported())}, {3: set(), 35: set()})


@pytest.mark.extended
async def test_jobs_that_wait_too_long(site: Site) -> None:
    await site.worker("--concurrency", "1")
    await site.jobs.enqueue("endless", queue="slow")
    await until((site.folder / "runs").exists, 20)
    exported = await site.exported()
    await site.jobs.enqueue("endless", queue="slow", due_at=ten_minutes_ago())
    old = Scraped(exported, await site.exported())
    expect_alerts(site.folder, {"metrics": old}, {1: set(), 3: {"JobmillJobsWaitTooLong"}})
    await site.jobs.queue("slow").pause()
    expect_alerts(site.folder, {"metrics": Scraped(exported, await site.exported())}, {3: set(), 35: set()})


async def test_many_errors(site: Site) -> None:
    port = await site.worker()
    before = scrape(port).text
    for _ in range(8):
        await site.jobs.enqueue("bad")
    few = Scraped(before, await site.ran(port, 8))
    expect_alerts(site.folder, {"worker": few}, {1: set(), 6: set(), 9: set(), 35: set()})
    for _ in range(12):
        await site.jobs.enqueue("bad")
    many = Scraped(before, await site.ran(port, 20))
    expect_alerts(site.folder, {"worker": many}, {4: set(), 6: {"JobmillManyErrors"}, 35: set()})


@pytest.mark.extended
async def test_a_crash_that_a_worker_finds_when_it_starts(site: Site) -> None:
    first = await site.worker("--lease", "500ms")
    before = scrape(first).text
    await site.jobs.enqueue("dies")
    assert site.workers.processes[0].wait(30) == -signal.SIGKILL
    second = await site.worker("--lease", "500ms")
    instances = {"first": Scraped(before, ""), "second": Scraped("", await site.ran(second, 2))}
    expect_alerts(site.folder, instances, {-1: set(), 1: {"JobmillCrash"}, 9: {"JobmillCrash"}, 35: set()})


async def test_a_crash_that_a_running_worker_finds(site: Site) -> None:
    ports = [await site.worker("--lease", "500ms"), await site.worker("--lease", "500ms")]
    before = [scrape(port).text for port in ports]
    await site.jobs.enqueue("dies")
    await until(lambda: len(site.workers.running()) == 1, 30)
    survivor = site.workers.processes.index(site.workers.running()[0])
    both = {str(number): Scraped(text, "") for number, text in enumerate(before)}
    both[str(survivor)] = Scraped(before[survivor], await site.ran(ports[survivor], 2))
    expect_alerts(site.folder, both, {-1: set(), 1: {"JobmillCrash"}, 35: set()})


@pytest.mark.extended
async def test_lost_leases(site: Site) -> None:
    port = await site.worker("--lease", "2s")
    before = scrape(port).text
    await site.jobs.enqueue("endless", queue="slow")
    await until((site.folder / "runs").exists, 20)
    (first,) = site.workers.processes
    suspend(first, f"sqlite:///{site.folder / 'jobs.db'}")
    (site.folder / "runs").unlink()
    await site.worker("--lease", "2s")
    await until((site.folder / "runs").exists, 30)
    first.send_signal(signal.SIGCONT)
    await until(lambda: scrape(port)("jobmill_leases_lost_total") == 1, 20)
    lost = Scraped(before, scrape(port).text)
    expect_alerts(site.folder, {"worker": lost}, {-1: set(), 1: {"JobmillLeasesLost"}, 35: set()})


@pytest.mark.extended
async def test_a_recurring_job_that_is_late(site: Site) -> None:
    await site.worker("--queue", "default")
    exported = await site.exported()
    await site.jobs.enqueue("nobody", every="1h", key="hourly", due_at=ten_minutes_ago())
    late = Scraped(exported, await site.exported())
    fires = {"JobmillRecurrenceLate", "JobmillJobsWaitTooLong"}
    expect_alerts(site.folder, {"metrics": late}, {0: set(), 3: fires})


@pytest.mark.extended
async def test_a_store_that_is_down(site: Site) -> None:
    port = await site.worker()
    before = scrape(port).text
    with sqlite3.connect(site.folder / "jobs.db", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        await until(lambda: scrape(port)("jobmill_store_up") == 0, 30)
        down = Scraped(before, scrape(port).text)
        holder.execute("ROLLBACK")
    expect_alerts(site.folder, {"worker": down}, {0: set(), 2: {"JobmillStoreDown"}})
    await until(lambda: scrape(port)("jobmill_store_up") == 1, 30)
    expect_alerts(site.folder, {"worker": Scraped(down.after, scrape(port).text)}, {-1: {"JobmillStoreDown"}, 1: set()})


async def test_final_jobs_that_nobody_purges(site: Site) -> None:
    text = scrape(await site.worker()).text
    expect_alerts(site.folder, {"worker": Scraped(text, text)}, {0: set(), 31: set()})
    # Half an hour is too long for a test, so the age is written into what the worker said.
    old = re.sub(r"(?m)^jobmill_purge_age_seconds .*$", "jobmill_purge_age_seconds 1900.5", text)
    assert old != text
    expect_alerts(site.folder, {"worker": Scraped(text, old)}, {-1: set(), 3: set(), 6: {"JobmillPurgeBehind"}})
