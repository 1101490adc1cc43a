"""The pytest plugin: fixtures for tests of applications. It imports the rest of Jobmill when a test uses a fixture."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.testing.clock import ManualClock
    from jobmill.testing.drain_jobs import Drain
    from jobmill.testing.enqueued_jobs import EnqueuedJobs
    from jobmill.testing.faults import MakesCrash, MakesFlakyStore
    from jobmill.testing.inline import Inline
    from jobmill.testing.kit import Kit
    from jobmill.testing.run_job import RunJob
    from jobmill.testing.travel import Travel

MARK = "jobmill(store='memory'): the store of a test: memory, sqlite, postgres, redis, mongo, a URL, or several of them"


def pytest_addoption(parser: pytest.Parser) -> None:
    """One setting and one option."""
    parser.addini("jobmill", "The client of the application under test, as module:name, for the fixture `jobs`.")
    parser.getgroup("jobmill").addoption(
        "--jobmill-stores",
        metavar="NAMES",
        help="Run each test that uses Jobmill's fixtures on each of these stores (default: memory). Names or URLs, "
        "with commas between them: memory,sqlite,postgres,redis,mongo. The URLs of servers are in the environment "
        "variables JOBMILL_TEST_POSTGRES, JOBMILL_TEST_REDIS and JOBMILL_TEST_MONGO.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """One mark."""
    config.addinivalue_line("markers", MARK)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each of its stores."""
    if "_jobmill_store" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("jobmill")
    chosen = metafunc.config.getoption("--jobmill-stores")
    if mark is not None and "store" in mark.kwargs:
        given = mark.kwargs["store"]
        names = [given] if isinstance(given, str) else list(given)
    elif chosen:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
    else:
        return
    metafunc.parametrize("_jobmill_store", names, indirect=True, ids=[name.partition(":")[0] for name in names])


@pytest.fixture
def _jobmill_store(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "memory")


@pytest.fixture
def jobmill_client(request: pytest.FixtureRequest) -> Client:
    """The client of the application. Override this fixture if your tests create the client."""
    from jobmill.client.client import Client

    target = str(request.config.getini("jobmill"))
    module, _, name = target.partition(":")
    if not module or not name:
        given = f"it is {target!r}" if target else "it is not set"
        raise pytest.UsageError(
            "Jobmill's fixtures need the client of your application: set `jobmill = shop.jobs:jobs` in the settings of "
            f"pytest ({given}), or override the fixture jobmill_client"
        )
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Client):
        raise pytest.UsageError(f"jobmill = {target}: expected a client there, found {found!r}")
    return found


@pytest.fixture
def jobmill_clock(jobmill_client: Client) -> ManualClock:
    """The clock of the store, which begins at 2030-01-01T00:00Z, with Django now. Only the test moves it."""
    from jobmill.testing.kit import clock_for

    return clock_for(jobmill_client)


@pytest.fixture
def jobmill_kit(
    jobmill_client: Client, jobmill_clock: ManualClock, _jobmill_store: str, request: pytest.FixtureRequest
) -> Iterator[Kit]:
    """All tools in one object; the client uses a new, empty store. At the end, warns of jobs that the test forgot."""
    from jobmill.testing.kit import Kit
    from jobmill.testing.stores import ROOM

    # The processes of pytest-xdist must not empty each other's stores.
    process = getattr(request.config, "workerinput", {}).get("workerid")
    room = ROOM if process is None else f"{ROOM}_{process}"
    with Kit(jobmill_client, _jobmill_store, clock=jobmill_clock, room=room) as kit:
        _close_after(request.node, kit)
        yield kit


def _close_after(item: Any, kit: Kit) -> None:
    """Connections belong to the event loop of an async test, which may end before its fixtures do."""
    test = getattr(item, "obj", None)
    if kit.store.name == "memory" or not inspect.iscoroutinefunction(test) or hasattr(test, "hypothesis"):
        return

    @functools.wraps(test)
    async def then_close(*args: Any, **kwargs: Any) -> Any:
        try:
            return await test(*args, **kwargs)
        finally:
            await kit.close_here()

    item.obj = then_close


@pytest.fixture
def jobs(jobmill_kit: Kit) -> Client:
    """The client of your application, with an empty store for this test."""
    return jobmill_kit.jobs


@pytest.fixture
def enqueued(jobmill_kit: Kit) -> EnqueuedJobs:
    """The jobs that the test has enqueued: `enqueued.one(send, to="ada")`."""
    return jobmill_kit.enqueued


@pytest.fixture
def drain(jobmill_kit: Kit) -> Drain:
    """Runs due jobs: `await drain()`, or `drain.sync()`."""
    return jobmill_kit.drain


@pytest.fixture
def travel(jobmill_kit: Kit) -> Travel:
    """Moves the clock and runs what becomes due: `await travel("3h")`, or `travel.sync("3h")`."""
    return jobmill_kit.travel


@pytest.fixture
def run_job(jobmill_kit: Kit) -> RunJob:
    """Runs one handler once, as a worker does: `await run_job(send, to="ada")`, or `run_job.sync(...)`."""
    return jobmill_kit.run_job


@pytest.fixture
def inline(jobmill_kit: Kit) -> Iterator[Inline]:
    """During this test, jobs run when they are enqueued."""
    with jobmill_kit.inline() as running:
        yield running


@pytest.fixture
def crash(jobmill_kit: Kit) -> MakesCrash:
    """Lets the worker of the next attempt die: `with crash(after="effect") as crashed:`."""
    return jobmill_kit.crash


@pytest.fixture
def flaky_store(jobmill_kit: Kit) -> MakesFlakyStore:
    """Lets calls to the store fail: `with flaky_store(0.3):`."""
    return jobmill_kit.flaky_store
