"""URLs of the MongoDB store: their options, and what messages show of them."""

from __future__ import annotations

import pytest

from jobmill.core.job import JobOptions
from jobmill.core.retry import exponential
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.url import MongoUrl

pytestmark = pytest.mark.stores("mongo")


def test_defaults() -> None:
    read = MongoUrl.read("mongodb://localhost/jobs")
    assert (read.database, read.collection, read.queue, read.indexes) == ("jobs", "monque_jobs", "default", "lean")
    assert (read.lock_timeout_ms, read.recover_foreign) == (30 * 60_000, True)
    assert read.foreign_options == JobOptions(max_attempts=10, backoff=exponential("2s", cap="1d"))


def test_given_options() -> None:
    read = MongoUrl.read(
        "mongodb://a:1,b:2/jobs?replicaSet=rs&collection=tasks&queue=node&indexes=monque&lock_timeout=5m"
        "&recover_foreign=false&tls=true&monque=2"
    )
    assert (read.collection, read.queue, read.indexes) == ("tasks", "node", "monque")
    assert (read.lock_timeout_ms, read.recover_foreign, read.has_timezones) == (300_000, False, True)
    assert read.driver_url == "mongodb://a:1,b:2/jobs?replicaSet=rs&tls=true"


def test_srv() -> None:
    assert (
        MongoUrl.read("mongodb+srv://u:p@cluster.example/jobs").driver_url == "mongodb+srv://u:p@cluster.example/jobs"
    )


def test_passwords_are_shown_nowhere() -> None:
    url = "mongodb://ada:s3cret@db/jobs?authSource=admin"
    store = MongoStore(url)
    assert "s3cret" not in repr(MongoUrl.read(url)) + store.address
    assert store.address == "mongodb://ada@db/jobs, collection monque_jobs"
    with pytest.raises(InvalidValue) as caught:
        MongoUrl.read("mongodb://ada:s3cret@db")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mongodb://localhost", "url: expected mongodb://"),
        ("mongodb:///jobs", "url: expected mongodb://"),
        ("mongodb://localhost/a.b", "url: expected mongodb://"),
        ("mongodb://localhost/jobs?indexes=all", "indexes: expected monque, lean or none, got 'all'"),
        ("mongodb://localhost/jobs?recover_foreign=no", "recover_foreign: expected true or false, got 'no'"),
        ("mongodb://localhost/jobs?lock_timeout=soon", "lock_timeout: expected"),
        ("mongodb://localhost/jobs?monque=3", "monque: expected the generation of Monque, 1 or 2, got '3'"),
        ("mongodb://localhost/jobs?max_retries=0", "max_retries: expected a number of attempts, 1 or more, got '0'"),
        ("mongodb://localhost/jobs?max_retries=many", "max_retries: expected a number of attempts"),
        ("mongodb://localhost/jobs?base_retry_interval=0", "base_retry_interval: expected"),
        ("mongodb://localhost/jobs?base_retry_interval=soon", "base_retry_interval: expected"),
        ("mongodb://localhost/jobs?collection=a$b", "collection: expected"),
        ("mongodb://localhost/jobs?collection=system.jobs", "collection: expected"),
        ("mongodb://localhost/jobs?queue=a:b", "queue: expected"),
        ("mongodb://localhost/jobs?colection=tasks", "url: expected options that Jobmill or pymongo has"),
        ("mongodb://localhost/jobs?connectTimeoutMS=soon", "url: expected options that Jobmill or pymongo has"),
        ("mongodb://localhost/jobs?w=1", "url: expected no option that Jobmill decides itself, got 'w'"),
        ("mongodb://localhost/jobs?readPreference=secondary", "url: expected no option that Jobmill decides itself"),
    ],
)
def test_refused_urls(url: str, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        MongoStore(url)
    assert str(caught.value).startswith(message)
