"""What type checkers see of tasks of `jobmill.compat.celery`: the function's own signature, without `self`.

Nothing here runs: `dev.py check` has mypy read it.
"""

from __future__ import annotations

from typing import Any, assert_type

from jobmill.compat.celery import App, AsyncResult, Signature, Task, shared_task

app = App()


@shared_task
def add(x: int, y: int = 1) -> int:
    return x + y


@shared_task(bind=True, max_retries=5, acks_late=True, autoretry_for=(OSError,), serializer="json")
def send(self: Task[..., Any], to: str) -> str:
    if not to:
        raise self.retry(countdown=5, exc=ValueError("nobody"), max_retries=None)
    if len(to) > self.request.retries:
        self.retry()
    return to


@app.task(queue="mail", ignore_result=True)
def ping() -> None: ...


def calls() -> None:
    assert_type(add(1), int)
    assert_type(add.delay(1, y=2), AsyncResult[int])
    assert_type(add.delay(1).get(timeout=5), int)
    assert_type(send("ada"), str)
    assert_type(send.delay("ada"), AsyncResult[str])
    assert_type(send.apply_async(("ada",), countdown=5, queue="mail").state, str)
    assert_type(send.s("ada"), Signature[str])
    assert_type(ping.si().delay().get(), None)

    add.delay("1")  # type: ignore[arg-type]
    send.delay()  # type: ignore[call-arg]
    add.apply_async(countdown="5")  # type: ignore[arg-type]
    add.nope()  # type: ignore[attr-defined]
    shared_task(rate_limit="1/m")  # type: ignore[call-overload]
    app.task(soft_time_limit=5)  # type: ignore[call-overload]
