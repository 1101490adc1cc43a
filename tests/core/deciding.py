"""What the tests of the deciders share: rules, a recurrence, and every kind of outcome."""

from __future__ import annotations

from typing import Any

from jobmill.core.job import Keep
from jobmill.core.lifecycle import Errored, Outcome, Policy, Released, Snoozed, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import fixed
from jobmill.core.values import Claimed
from tests.values import NOW, claimed

HOUR = 3_600_000
HOURLY = Recurrence(key="hourly", every_ms=HOUR, revision=7)
RULES = Policy(
    max_attempts=3, max_crashes=3, backoff=fixed("5s"), keep_succeeded=Keep(last=1), keep_failed=Keep(last=2)
)


def recurring(rule: Recurrence = HOURLY, **fields: Any) -> Claimed:
    return claimed(recurrence=rule, unique_key=rule.key, **{"occurrence_ms": NOW, **fields})


def error(text: str = "no luck", **about: Any) -> Errored:
    return Errored(error=text, traceback=f"Traceback of {text}", **about)


OUTCOMES: list[Outcome] = [
    Succeeded(b'"done"'),
    error(),
    error(final=True),
    error(delay_ms=0),
    Snoozed(9_000),
    Released(),
    Released(2_000),
]
