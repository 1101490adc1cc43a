"""Which store a URL names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill.stores import store_for
from jobmill.stores.memory import MemoryStore
from jobmill.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOBMILL_URL", raising=False)


def path_of(store: Any) -> Path:
    assert isinstance(store, SqliteStore)
    return store.path


async def test_without_a_url_a_file_right_here(tmp_path: Path) -> None:
    jobs = jobmill.connect()
    assert path_of(jobs.store) == tmp_path / "jobmill.db"
    assert not (tmp_path / "jobmill.db").exists(), "connecting touches nothing"
    async with jobs:
        await jobs.enqueue("work")
    assert (tmp_path / "jobmill.db").exists()


def test_the_environment_names_the_store_unless_a_url_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMILL_URL", "sqlite:///elsewhere.db")
    assert path_of(jobmill.connect().store) == tmp_path / "elsewhere.db"
    assert jobmill.connect("memory://").store.name == "memory"
    monkeypatch.setenv("JOBMILL_URL", "memory://")
    assert jobmill.connect().store.name == "memory"
    monkeypatch.setenv("JOBMILL_URL", "")
    assert path_of(jobmill.connect().store) == tmp_path / "jobmill.db"


def test_a_store_of_ones_own() -> None:
    store = MemoryStore()
    assert jobmill.connect(store=store).store is store
    with pytest.raises(jobmill.InvalidValue, match="url: expected either a url or a store, not both, got 'memory://'"):
        jobmill.connect("memory://", store=store)


def test_every_memory_is_another() -> None:
    assert jobmill.connect("memory://").store is not jobmill.connect("memory://").store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "{here}/jobs.db"),
        ("sqlite:///sub/jobs.db", "{here}/sub/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///with%20space.db", "{here}/with space.db"),
        ("sqlite:///jobs.db?synchronous=normal", "{here}/jobs.db"),
        ("sqlite:///jobs.db?synchronous=FULL", "{here}/jobs.db"),
    ],
)
def test_sqlite_paths(url: str, path: str, tmp_path: Path) -> None:
    assert path_of(store_for(url)) == Path(path.format(here=tmp_path))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "mysql://localhost/jobs",
            "url: expected postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://, got 'mysql://localhost/jobs'",
        ),
        (
            "jobs.db",
            "url: expected postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://, got 'jobs.db'; for "
            "a file write sqlite:///jobs.db",
        ),
        ("/var/jobs.db", "url: expected postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://"),
        (
            "sqlite://jobs.db",
            "url: expected sqlite:///relative/path or sqlite:////absolute/path, got 'sqlite://jobs.db'",
        ),
        ("sqlite://", "url: expected sqlite:///relative/path"),
        ("sqlite:///", "url: expected sqlite:///relative/path"),
        ("sqlite:///jobs.db?synchronous=off", "url: expected no option but synchronous=FULL or synchronous=NORMAL"),
        ("sqlite:///jobs.db?mode=ro", "url: expected no option but synchronous"),
    ],
)
def test_urls_that_name_nothing(url: str, message: str) -> None:
    with pytest.raises(jobmill.InvalidValue) as caught:
        jobmill.connect(url)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("url", [Path("jobs.db"), 5, 0, False, b"redis://ada:Zs3c@h/0", b"", ["memory://"]])
def test_a_url_of_another_type(url: Any) -> None:
    with pytest.raises(jobmill.InvalidValue) as caught:
        jobmill.connect(url)
    assert caught.value.field == "url"
    assert str(caught.value).startswith("url: expected a str: postgresql://…, mongodb://…, ")
    assert f"got {type(url)!r}; for a file write sqlite:///jobs.db" in str(caught.value)
    with pytest.raises(jobmill.InvalidValue, match="url: expected either a url or a store, not both") as both:
        jobmill.connect(url, store=MemoryStore())
    assert "Zs3c" not in repr(caught.value) + repr(both.value)


@pytest.mark.parametrize(
    ("url", "driver", "store"),
    [
        ("mongodb://localhost/jobs", "pymongo", "mongo"),
        ("mongodb+srv://cluster.example/jobs", "pymongo", "mongo"),
    ],
)
def test_a_store_without_its_driver_says_what_to_install(
    url: str, driver: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobmill.connect(url).store.name == store
    for name in [name for name in sys.modules if name.startswith(f"jobmill.stores.{store}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(jobmill.MissingExtra, match=rf"needs {driver}.*: pip install 'jobmill\[{store}\]'"):
        jobmill.connect(url)


@pytest.mark.parametrize("url", ["postgresql://localhost/jobs", "postgres://localhost/jobs?schema=mine&pool=3"])
def test_postgres_needs_its_driver(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobmill.connect(url).store.name == "postgres"
    for name in [name for name in sys.modules if name.startswith("jobmill.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(jobmill.MissingExtra, match=r"needs asyncpg: pip install 'jobmill\[postgres\]'"):
        jobmill.connect(url)


@pytest.mark.parametrize(
    "url", ["redis://localhost", "rediss://localhost/1", "redis+cluster://localhost?prefix={mine}"]
)
@pytest.mark.parametrize("driver", ["redis", "hiredis"])
def test_redis_needs_its_driver(url: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobmill.connect(url).store.name == "redis"
    for name in [name for name in sys.modules if name.startswith("jobmill.stores.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(jobmill.MissingExtra, match=r"needs redis and hiredis: pip install 'jobmill\[redis\]'"):
        jobmill.connect(url)


def test_the_store_of_a_client_cannot_be_replaced() -> None:
    jobs = jobmill.connect("memory://")
    with pytest.raises(AttributeError, match="make another client with jobmill.connect"):
        jobs.store = MemoryStore()
