"""The extension for Flask: contexts of the application, its configuration, and its commands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from flask import Flask, current_app, g

import jobmill
from jobmill import Client, InvalidValue, JobmillError
from jobmill.frameworks.flask import JobmillFlask


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_handlers_run_in_a_context_of_their_own_which_ends_in_the_same_thread(jobs: Client, kind: str) -> None:
    app = Flask("shop")
    JobmillFlask(app, jobs)
    torn_down: list[tuple[int, threading.Thread, BaseException | None]] = []
    ran_in: list[threading.Thread] = []

    @app.teardown_appcontext
    def teardown(error: BaseException | None) -> None:
        torn_down.append((g.n, threading.current_thread(), error))

    def work(n: int) -> str:
        assert "n" not in g
        g.n = n
        ran_in.append(threading.current_thread())
        if n == 2:
            raise ValueError("two")
        return current_app.name

    async def work_async(n: int) -> str:
        return work(n)

    handler = jobs.handler(name="work", max_attempts=1)(work_async if kind == "async" else work)
    first, second = await handler.enqueue(n=1), await handler.enqueue(n=2)
    await jobs.tick()
    assert (await first.job()).result == "shop"
    assert (await second.job()).error == "ValueError: two"
    assert [thread for _, thread, _ in sorted(torn_down, key=lambda one: one[0])] == ran_in
    assert {n: type(error) for n, _, error in torn_down} == {1: type(None), 2: ValueError}


async def test_the_last_application_counts_and_without_one_the_attempt_errs(jobs: Client) -> None:
    extension = JobmillFlask(jobs=jobs)

    @jobs.handler(max_attempts=1)
    def name() -> str:
        return current_app.name

    missing = await name.enqueue()
    await jobs.tick()
    assert "there is no Flask application in this process" in str((await missing.job()).error)
    for app in (Flask("first"), Flask("second")):
        extension.init_app(app)
        assert app.extensions["jobmill"] is extension
        named = await name.enqueue()
        await jobs.tick()
        assert (await named.job()).result == app.name


def test_the_configuration_names_the_store_and_the_dashboard(tmp_path: Path) -> None:
    extension = JobmillFlask()
    with pytest.raises(JobmillError, match="no client yet"):
        extension.jobs.handlers  # noqa: B018
    app = Flask("shop")
    app.config.update(
        JOBMILL_URL=f"sqlite:///{tmp_path}/jobs.db", JOBMILL_DASHBOARD_PATH="/jobs", JOBMILL_DASHBOARD_TOKEN="x" * 32
    )
    app.get("/")(lambda: "the shop")
    extension.init_app(app)
    assert extension.jobs.store.address == str(tmp_path / "jobs.db")
    visitor = app.test_client()
    try:
        assert visitor.get("/").text == "the shop"
        assert visitor.get("/jobs/queues", headers={"accept": "application/json"}).status_code == 403
        page = visitor.get("/jobs/queues", headers={"authorization": f"Bearer {'x' * 32}"})
        assert page.status_code == 200
    finally:
        extension.jobs.sync.close()


def test_flask_has_the_commands_of_jobmill(tmp_path: Path) -> None:
    jobs = jobmill.connect(f"sqlite:///{tmp_path}/jobs.db")
    app = Flask("shop")
    JobmillFlask(app, jobs)
    enqueued = jobs.sync.enqueue("work")
    jobs.sync.close()
    listed = app.test_cli_runner().invoke(args=["jobmill", "jobs", "list", "--json"])
    assert (listed.exit_code, enqueued.id in listed.output) == (0, True), listed.output
    refused = app.test_cli_runner().invoke(args=["jobmill", "nope"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("factory", ["shop", "shop:", ":create_app"])
def test_a_factory_is_a_module_and_a_function(jobs: Client, factory: str) -> None:
    with pytest.raises(InvalidValue, match="^factory: "):
        JobmillFlask(jobs=jobs, factory=factory)
