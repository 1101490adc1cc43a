"""What a crontab refuses, by name, when it is made."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobmill import InvalidValue
from jobmill.crontab import BatchCrontabStore, Crontab, CrontabJob, MemoryCrontab
from tests.crontab.support import Plain


async def nothing(job: CrontabJob) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("store", {"store": None}),
        ("store", {"store": object()}),
        ("store", {"store": MemoryCrontab}),
        ("on_document", {"on_document": None}),
        ("on_document", {"on_document": "handler"}),
        ("on_start", {"on_start": 1}),
        ("on_stop", {"on_stop": 1}),
        ("on_idle", {"on_idle": 1}),
        ("on_error", {"on_error": 1}),
        ("next_delay", {"next_delay": -1}),
        ("reprocess_delay", {"reprocess_delay": timedelta(seconds=-1)}),
        ("idle_delay", {"idle_delay": -0.001}),
        ("idle_delay", {"idle_delay": "soon"}),
        ("lock_duration", {"lock_duration": 0}),
        ("lock_duration", {"lock_duration": -1}),
        ("lock_duration", {"lock_duration": None}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 1.5}),
        ("concurrency", {"concurrency": True}),
        ("timezone", {"timezone": "Middle/Earth"}),
        ("catch_up", {"catch_up": "thrice"}),
    ],
)
def test_an_invalid_option_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"store": MemoryCrontab(), "on_document": nothing, **options}
    with pytest.raises(InvalidValue) as refused:
        Crontab(**given)
    assert refused.value.field == field


def test_a_missing_option_is_refused() -> None:
    with pytest.raises(
        InvalidValue, match="^store: expected an object with the async methods lock_next, update and remove"
    ):
        Crontab(on_document=nothing)
    with pytest.raises(InvalidValue, match="^on_document: expected a function that takes a job, got None"):
        Crontab(MemoryCrontab())


async def test_an_invalid_timeout_of_stop_is_refused() -> None:
    crontab = Crontab(MemoryCrontab(), on_document=nothing)
    with pytest.raises(InvalidValue) as refused:
        await crontab.stop(timeout=-1)
    assert refused.value.field == "timeout"


def test_only_a_store_with_all_batch_methods_is_a_batch_store() -> None:
    assert isinstance(MemoryCrontab(), BatchCrontabStore)
    assert not isinstance(Plain(MemoryCrontab()), BatchCrontabStore)


@pytest.mark.parametrize(
    "interval", ["61 * * * *", "every day", "0 0 31 2 *", "@every 0s", "* * * *", "TZ=No/Where @daily"]
)
async def test_add_refuses_an_invalid_interval(interval: str) -> None:
    store = MemoryCrontab()
    with pytest.raises(InvalidValue) as refused:
        await store.add("a", interval=interval)
    assert refused.value.field == "interval"
    assert store.documents == {}


async def test_add_refuses_other_invalid_fields() -> None:
    store = MemoryCrontab()
    for field in ("sleep_until", "repeat_until"):
        with pytest.raises(InvalidValue, match=f"^{field}: expected an aware datetime"):
            await store.add("a", **{field: datetime(2023, 1, 1)})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="^id: "):
        await store.add([])
    assert store.documents == {}
