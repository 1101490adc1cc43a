"""Jobs that wait for jobs, beside Monque: what it completes, fails, cancels or deletes releases those that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from jobmill.core.flows import After, IfFailed
from jobmill.core.values import NewJob
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

#: A name that only Monque has a handler for.
THEIRS = "theirs"


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def chain(scene: Scene, *, name: str = "late", if_failed: IfFailed = "fail", **payload: int) -> tuple[str, str]:
    """A job that Monque runs, and one that waits for it."""
    store = scene.jobs.store
    first, then = store.new_id(), store.new_id()
    await store.enqueue(
        [
            NewJob(id=first, name=THEIRS, queue="default", payload_json=msgspec.json.encode(payload)),
            NewJob(id=then, name=name, queue="default", payload_json=b"{}", after=(After(first, if_failed),)),
        ]
    )
    return first, then


async def state(scene: Scene, id: str) -> str:
    return (await scene.jobs.get(id)).state


async def is_in(scene: Scene, id: str, wanted: str) -> bool:
    return await state(scene, id) == wanted


@generations
async def test_what_monque_completes_releases_what_waits_for_it(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation) as peer:
        first, then = await chain(scene)
        await scene.worker()
        await peer.ask("start", names=[THEIRS])
        await until(lambda: is_in(scene, then, "succeeded"), 30)
        assert peer.runs() == {first: 1}
        assert scene.runs()[first] == 0
        (edge,) = await scene.jobs.store.dependencies(then)
        assert (edge.id, edge.state) == (first, "succeeded")
        assert (await peer.ask("check"), peer.complaints()) == ({}, [])


@generations
async def test_monque_runs_what_was_released(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation) as peer:
        first, then = await chain(scene, name=THEIRS)
        await peer.ask("start", names=[THEIRS])
        await until(lambda: is_in(scene, first, "succeeded"), 30)
        assert await state(scene, then) == "waiting"
        await scene.jobs.store.flush_outbox()
        await until(lambda: is_in(scene, then, "succeeded"), 30)
        assert peer.runs() == {first: 1, then: 1}
        assert (await peer.ask("check"), peer.complaints()) == ({}, [])


@generations
@pytest.mark.parametrize("if_failed", ["fail", "run"])
async def test_what_monque_fails_or_cancels_or_deletes(
    scene: Scene, generation: Generation, if_failed: IfFailed
) -> None:
    store = scene.jobs.store
    async with scene.peer(generation, max_retries=1) as peer:
        failed = await chain(scene, fails=9, if_failed=if_failed)
        await peer.ask("start", names=[THEIRS])
        await until(lambda: is_in(scene, failed[0], "failed"), 30)
        await peer.ask("stop")
        cancelled, deleted = [await chain(scene, if_failed=if_failed) for _ in range(2)]
        assert await peer.ask("cancel", job=cancelled[0])
        assert await peer.ask("delete", job=deleted[0])
        store.context.flows.sweep_from_ms = 0  # type: ignore[attr-defined]
        await store.flush_outbox()
        for (first, then), ended in ((failed, "failed"), (cancelled, "cancelled"), (deleted, "cancelled")):
            (edge,) = await store.dependencies(then)
            assert (edge.id, edge.state) == (first, ended)
            job = await scene.jobs.get(then)
            assert (job.held, job.deferred_error is None) == (None, if_failed == "run")
        await scene.worker()
        for _, then in (failed, cancelled, deleted):
            await until(partial(is_in, scene, then, "failed" if if_failed == "fail" else "succeeded"), 30)
        assert (await peer.ask("check"), peer.complaints()) == ({}, [])
