"""`dedupe=True`: a job that is there already is not enqueued again; told by name, tenant and payload."""

from __future__ import annotations

from typing import Any

import pytest

import jobmill
from jobmill import Client, InvalidValue
from jobmill.core.unique_keys import dedupe_key, key_hash
from jobmill.handlers.handler import Handler
from jobmill.store import Store


@pytest.fixture
def scan(jobs: Client) -> Handler[..., Any]:
    @jobs.handler
    async def scan(folder: int = 0, deep: bool = False, note: str = "") -> None: ...

    return scan


async def test_the_same_job_is_enqueued_once(jobs: Client, scan: Handler[..., Any]) -> None:
    once = scan.options(dedupe=True)
    first, again = await once.enqueue(7), await once.enqueue(7)
    assert (first.status, again.status, again.id) == ("created", "duplicate", first.id)
    assert (await once.enqueue(8)).status == "created"
    assert (await first.job()).unique_key == dedupe_key("scan", None, {"folder": 7}) == 'scan::global::{"folder":7}'


async def test_every_way_in_makes_the_same_key(jobs: Client, scan: Handler[..., Any]) -> None:
    first = await scan.options(dedupe=True).enqueue(7, note="x")
    for again in (
        await scan.options(dedupe=True).enqueue(note="x", folder=7),
        await jobs.enqueue("scan", {"note": "x", "folder": 7}, dedupe=True),
        *await jobs.enqueue_many([jobs.draft("scan", {"folder": 7, "note": "x"}, dedupe=True)]),
        *await jobs.enqueue_many([scan.options(dedupe=True).draft(7, note="x")]),
    ):
        assert (again.status, again.id) == ("duplicate", first.id)


async def test_a_client_that_does_not_know_the_handler_makes_the_same_key(
    jobs: Client, scan: Handler[..., Any], store: Store
) -> None:
    first = await scan.options(dedupe=True).enqueue(7)
    again = await jobmill.connect(store=store).enqueue("scan", {"folder": 7.0}, dedupe=True)
    assert (again.status, again.id) == ("duplicate", first.id)


async def test_payload_tenant_name_and_queue_tell_jobs_apart(jobs: Client, scan: Handler[..., Any]) -> None:
    assert (await scan.options(dedupe=True).enqueue(7)).created
    assert (await scan.options(dedupe=True, tenant="acme").enqueue(7)).created
    assert (await scan.options(dedupe=True, tenant="other").enqueue(7)).created
    assert (await scan.options(dedupe=True, queue="other").enqueue(7)).created
    assert (await jobs.enqueue("scan2", {"folder": 7}, dedupe=True)).created
    # An argument that was left out is not in the payload.
    assert (await scan.options(dedupe=True).enqueue(7, deep=False)).created
    assert not (await scan.options(dedupe=True, tenant="acme").enqueue(7)).created
    assert not (await scan.options(dedupe=True, priority=5, delay="1h").enqueue(7)).created


async def test_only_live_jobs_count(jobs: Client, scan: Handler[..., Any]) -> None:
    once = scan.options(dedupe=True)
    first = await once.enqueue(7)
    assert (await jobs.tick()).succeeded == 1
    second = await once.enqueue(7)
    assert second.created
    assert (await jobs.requeue(first.id)).refused == {first.id: f"the live job {second.id} has its unique key"}


async def test_within_one_call(jobs: Client, scan: Handler[..., Any]) -> None:
    once = scan.options(dedupe=True)
    a, b, c = await jobs.enqueue_many([once.draft(1), once.draft(2), once.draft(1)])
    assert ([a.status, b.status, c.status], c.id) == (["created", "created", "duplicate"], a.id)


async def test_without_it_nothing_is_deduped(scan: Handler[..., Any]) -> None:
    unsaid: list[Any] = [{}, {"dedupe": False}, {"dedupe": None}]
    for said in unsaid:
        job = await (await scan.options(**said).enqueue(7)).job()
        assert job.unique_key is None
    assert (await scan.options(dedupe=False, unique_key="k").enqueue()).created
    assert (await scan.options(dedupe=False, every="1h", key="hourly").enqueue()).created


@pytest.mark.parametrize("note", ["x" * 2_000, "😀" * 600, "\x7f", "\x85 \x9f"], ids=lambda note: ascii(note)[:12])
async def test_what_no_unique_key_may_be_is_stored_as_its_hash(
    jobs: Client, scan: Handler[..., Any], note: str
) -> None:
    once = scan.options(dedupe=True, tenant="acme")
    first, again = await once.enqueue(note=note), await once.enqueue(note=note)
    assert (first.status, again.status, again.id) == ("created", "duplicate", first.id)
    job = await first.job()
    assert job.unique_key == f"sha256:{key_hash(dedupe_key('scan', 'acme', {'note': note}))}"
    assert job.payload == {"note": note}
    assert (await once.enqueue(note=note + "!")).created


@pytest.mark.parametrize("note", ["\x00\n\t", "é漢😀", "a::b", "\u2028"], ids=ascii)
async def test_other_texts_are_kept_readable(scan: Handler[..., Any], note: str) -> None:
    job = await (await scan.options(dedupe=True).enqueue(note=note)).job()
    assert job.unique_key == dedupe_key("scan", None, {"note": note})
    assert job.unique_key.startswith('scan::global::{"note":')


async def test_the_longest_key_that_fits_is_kept_and_one_more_is_not(scan: Handler[..., Any]) -> None:
    room = 1_024 - len(dedupe_key("scan", None, {"note": ""}))
    fits = await (await scan.options(dedupe=True).enqueue(note="x" * room)).job()
    longer = await (await scan.options(dedupe=True).enqueue(note="x" * (room + 1))).job()
    assert fits.unique_key == dedupe_key("scan", None, fits.payload)
    assert str(longer.unique_key).startswith("sha256:")


async def test_an_id_of_ones_own_goes_before(scan: Handler[..., Any]) -> None:
    first = await scan.options(dedupe=True, id="mine").enqueue(7)
    assert (first.id, first.status) == ("mine", "created")
    assert (await scan.options(dedupe=True, id="mine").enqueue(8)).status == "exists"
    assert (await scan.options(dedupe=True, id="other").enqueue(7)).id == "mine"


def test_a_handler_cannot_say_it(jobs: Client) -> None:
    given: Any = {"dedupe": True}
    with pytest.raises(InvalidValue, match="^dedupe: expected one of the options"):
        jobs.handler(**given)(test_a_handler_cannot_say_it)


def test_code_without_a_loop(store: Store) -> None:
    jobs = jobmill.connect(store=store)
    try:
        first = jobs.sync.enqueue("scan", {"folder": 7}, dedupe=True)
        assert jobs.sync.enqueue("scan", {"folder": 7}, dedupe=True).id == first.id
    finally:
        jobs.sync.close()
