"""What type checkers see of tasks of Django. Nothing here runs: `dev.py check` has mypy read it."""

from __future__ import annotations

from typing import Any, assert_type

from jobmill.django import JobmillContext, JobmillTask, recurring, task


@task
def send(to: str, subject: str = "hello") -> None: ...


@task(queue_name="mail", max_attempts=5)
async def count(upto: int) -> list[int]:
    return list(range(upto))


@task(takes_context=True, timeout="1m")
def close(context: JobmillContext, month: int) -> None: ...


@recurring("0 3 * * *")
@task
def clean() -> None: ...


assert_type(clean, JobmillTask[[]])


async def right(later: Any) -> None:
    send.enqueue("ada", subject="hi")
    send.using(run_after=later, unique_key="ada").enqueue("ada")
    await count.aenqueue(upto=3)
    close.enqueue(3)
    close.draft(month=3)
    clean.enqueue()
    send.get_result("id").refresh()
    send.call("ada")


async def wrong() -> None:
    send.enqeue("ada")  # type: ignore[attr-defined]
    send.enqueue(7)  # type: ignore[arg-type]
    send.using(priority=10).enqueue()  # type: ignore[call-arg]
    await count.aenqueue(upto="three")  # type: ignore[arg-type]
    close.draft("May")  # type: ignore[arg-type]
    clean.enqueue(1)  # type: ignore[call-arg]
