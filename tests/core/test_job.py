"""What a job shows of itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from jobmill.core.changes import Seize
from jobmill.core.job import FINAL, STATES, Attempt, Job, JobOptions, Keep, Progress
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import fixed
from jobmill.core.values import Claim
from tests.values import NOW, TOKEN, claimed, job

THEN = NOW + 123
AT = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_payload_and_result_are_decoded_where_somebody_looks() -> None:
    one = job(payload_json=Raw(b'{"to":"ada"}'), result_json=Raw(b"[1,2]"))
    assert (one.payload, one.result) == ({"to": "ada"}, [1, 2])
    assert job().result is None


def test_instants_are_aware_and_exact() -> None:
    one = job(due_ms=THEN, created_ms=THEN, updated_ms=THEN, started_ms=THEN, finished_ms=THEN, last_finished_ms=THEN)
    assert one.due_at == one.created_at == one.updated_at == AT
    assert one.started_at == one.finished_at == one.last_finished_at == AT
    assert one.due_at.utcoffset() is not None
    assert (job().started_at, job().finished_at, job().last_finished_at) == (None, None, None)


@pytest.mark.parametrize(
    ("state", "errors", "attempt"),
    [
        ("waiting", 0, 1),
        ("waiting", 2, 3),
        ("running", 0, 1),
        ("running", 2, 3),
        ("succeeded", 2, 3),
        ("failed", 3, 3),
        ("failed", 0, 1),
        ("cancelled", 1, 2),
    ],
)
def test_the_number_of_the_attempt(state: str, errors: int, attempt: int) -> None:
    assert job(state=state, errors=errors).attempt == attempt


@pytest.mark.parametrize("state", STATES)
def test_final_or_not(state: str) -> None:
    assert job(state=state).is_final == (state in FINAL)


def test_a_job_shows_all_that_the_issue_asks_for_and_it_is_json() -> None:
    one = job(
        payload_json=Raw(b'{"to":"ada"}'),
        due_ms=THEN,
        started_ms=NOW,
        progress=Progress(5, "slow"),
        attempts=(Attempt(number=1, traceback="Traceback"),),
        options=JobOptions(backoff=fixed("1s"), keep_failed=Keep(last=3)),
        recurrence=Recurrence(key="k", every_ms=5),
        runs=2,
    )
    plain = one.to_dict()
    assert {
        *("id", "name", "queue", "payload", "state", "priority", "due_at", "created_at", "updated_at", "started_at"),
        *("finished_at", "attempt", "errors", "crashes", "claims", "worker", "progress", "result", "error"),
        *("attempts", "headers", "unique_key", "tenant", "recurrence", "runs", "failed_runs"),
    } <= plain.keys()
    assert json.loads(json.dumps(plain)) == {**plain, "attempts": [{"number": 1, "traceback": "Traceback"}]}
    assert (plain["payload"], plain["progress"]) == ({"to": "ada"}, {"value": 5, "message": "slow"})
    assert plain["recurrence"] == {"key": "k", "every_ms": 5}
    assert datetime.fromisoformat(plain["due_at"]) == AT


@pytest.mark.parametrize("garbage", [b"{garbage", b'"\xff"', b"", b"[" * 5_000])
def test_a_payload_that_cannot_be_read_is_shown_as_it_is(garbage: bytes) -> None:
    plain = job(payload_json=Raw(garbage)).to_dict()
    assert plain["payload"] == garbage.decode(errors="replace")
    assert plain["id"] == "job-1"


def test_the_token_is_shown_nowhere() -> None:
    one = claimed()
    claim = Claim(queues=("mail",), names={"send": 1}, n=1, lease_ms=1, worker="w", token=TOKEN)
    seize = Seize(token=TOKEN, worker="w", lease_ms=1)
    assert one.lease.token == claim.token == seize.token == TOKEN
    for value in (one, one.lease, one.job, claim, seize):
        assert TOKEN not in repr(value)
        assert TOKEN not in f"{value}"
    assert "token" not in Job.__struct_fields__


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        job().state = "failed"  # type: ignore[misc]
