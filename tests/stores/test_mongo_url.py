"""What a URL of MongoDB says."""

from __future__ import annotations

import pytest

from jobmill.errors import InvalidValue
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.url import Place

pytestmark = pytest.mark.stores("mongo")


def test_what_is_not_said() -> None:
    place = Place.read("mongodb://localhost/jobs")
    assert (place.database, place.collection, place.queue, place.indexes) == ("jobs", "monque_jobs", "default", "lean")
    assert (place.lock_timeout_ms, place.recover_foreign) == (30 * 60_000, True)


def test_what_is_said() -> None:
    place = Place.read(
        "mongodb://a:1,b:2/jobs?replicaSet=rs&collection=tasks&queue=node&indexes=monque&lock_timeout=5m"
        "&recover_foreign=false&tls=true"
    )
    assert (place.collection, place.queue, place.indexes) == ("tasks", "node", "monque")
    assert (place.lock_timeout_ms, place.recover_foreign) == (300_000, False)
    assert place.address == "mongodb://a:1,b:2/jobs?replicaSet=rs&tls=true"


def test_srv() -> None:
    assert Place.read("mongodb+srv://u:p@cluster.example/jobs").address == "mongodb+srv://u:p@cluster.example/jobs"


def test_passwords_are_shown_nowhere() -> None:
    url = "mongodb://ada:s3cret@db/jobs?authSource=admin"
    store = MongoStore(url)
    assert "s3cret" not in repr(Place.read(url)) + store.place
    assert store.place == "mongodb://ada@db/jobs, collection monque_jobs"
    with pytest.raises(InvalidValue) as caught:
        Place.read("mongodb://ada:s3cret@db")
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
        ("mongodb://localhost/jobs?collection=a$b", "collection: expected"),
        ("mongodb://localhost/jobs?collection=system.jobs", "collection: expected"),
        ("mongodb://localhost/jobs?queue=a:b", "queue: expected"),
        ("mongodb://localhost/jobs?colection=tasks", "url: expected options that Jobmill or pymongo has"),
        ("mongodb://localhost/jobs?connectTimeoutMS=soon", "url: expected options that Jobmill or pymongo has"),
        ("mongodb://localhost/jobs?w=1", "url: expected options without those that Jobmill decides itself, got 'w'"),
        ("mongodb://localhost/jobs?readPreference=secondary", "url: expected options without those"),
    ],
)
def test_what_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        MongoStore(url)
    assert str(caught.value).startswith(message)
