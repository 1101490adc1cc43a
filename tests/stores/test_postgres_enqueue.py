"""How jobs are sent to PostgreSQL."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.job import JobOptions
from jobmill.core.values import NewJob, at
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres.enqueue import _call, insert
from jobmill.testing.contract.support import new

pytestmark = pytest.mark.stores("postgres")

FULL = structs.replace(new(), due=at(5), unique_key="k", tenant="t", options=JobOptions(max_attempts=3))


class Recording:
    """A connection that keeps what was sent."""

    def __init__(self) -> None:
        self.text = ""
        self.parameters: tuple[Any, ...] = ()

    async def fetch(self, text: str, *parameters: Any) -> list[Any]:
        self.text, self.parameters = text, parameters
        return []


async def sent(*jobs: NewJob) -> Recording:
    """What one call sends."""
    store, connection = PostgresStore("postgresql://nowhere/none"), Recording()
    call = partial(_call, store.context, connection)  # type: ignore[arg-type]
    await insert(call, [jobs], (None, False, False, None), {})
    return connection


@pytest.mark.parametrize(("job", "values"), [(new(), 4 + 6), (FULL, 4 + 10)], ids=["plain", "with everything"])
async def test_one_job_is_sent_without_lists(job: NewJob, values: int) -> None:
    """The driver takes much longer for a list of one than for a value."""
    one = await sent(job)
    assert not any(isinstance(value, list) for value in one.parameters)
    assert len(one.parameters) == values, "columns without a value are not sent"
    assert one.text.count("$") == values


async def test_several_jobs_are_sent_as_columns() -> None:
    several = await sent(new(), new())
    assert len(several.parameters) == 4 + 15
    assert [len(column) for column in several.parameters[4:]] == [2, 2, 2, 2, 0, 2, 2, *[0] * 8]


async def test_one_job_has_what_it_was_given(direct: PostgresStore) -> None:
    for given in (new(), FULL, structs.replace(FULL, id=new().id, unique_key=None)):
        await direct.enqueue([given])
        (job,) = await direct.get([given.id])
        assert job is not None
        assert (job.unique_key, job.tenant, job.options) == (given.unique_key, given.tenant, given.options)
        assert (job.name, job.queue, bytes(job.payload_json)) == (given.name, given.queue, given.payload_json)
        assert job.due_ms == (job.created_ms if given.due.at_ms is None else 5)
