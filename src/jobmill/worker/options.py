"""The options of a worker."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from msgspec import Struct

from jobmill.core import limits
from jobmill.core.durations import Duration, to_ms
from jobmill.errors import InvalidValue
from jobmill.handlers.handler import Handler
from jobmill.handlers.options import DEFAULT_QUEUE
from jobmill.worker.recycle import to_bytes


class WorkerOptions(TypedDict, total=False):
    """The options as users write them."""

    concurrency: int
    queues: Sequence[str]
    name: str
    lease: Duration
    shutdown_timeout: Duration
    health: int | str | None
    health_host: str
    wait_for_store: bool
    max_jobs: int | None
    max_memory: int | str | None
    claim_ahead: int


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Validated options, with every default filled in."""

    concurrency: int
    queues: tuple[str, ...]
    name: str
    lease_ms: int
    shutdown_timeout: float
    health: int | str | None
    health_host: str
    wait_for_store: bool
    max_jobs: int | None
    #: In bytes.
    max_memory: int | None
    #: The maximum number of jobs that are claimed before a slot is free.
    claim_ahead: int


def worker_settings(given: WorkerOptions, handlers: Iterable[Handler[..., Any]]) -> WorkerSettings:
    """Validate options and fill in defaults. `queues` defaults to the default queue and all queues of the handlers."""
    for option in given:
        if option not in WorkerOptions.__annotations__:
            raise InvalidValue(option, "one of the options " + ", ".join(WorkerOptions.__annotations__), option)
    queues = given.get("queues") or (DEFAULT_QUEUE, *(handler.options_given.queue for handler in handlers))
    if isinstance(queues, str):
        queues = [queues]
    name = given.get("name") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    health, max_jobs, max_memory = given.get("health"), given.get("max_jobs"), given.get("max_memory")
    return WorkerSettings(
        concurrency=limits.check_int(given.get("concurrency", 20), "concurrency", 1, 10_000),
        queues=tuple(dict.fromkeys(limits.check_queue(queue) for queue in queues)),
        name=limits.check_name(name, "worker name"),
        lease_ms=to_ms(given.get("lease", 15), "lease", least=100),
        shutdown_timeout=to_ms(given.get("shutdown_timeout", 30), "shutdown_timeout") / 1000,
        health=None if health is None else check_health(health),
        health_host=given.get("health_host", "127.0.0.1"),
        wait_for_store=limits.check_bool(given.get("wait_for_store", True), "wait_for_store"),
        max_jobs=None if max_jobs is None else limits.check_int(max_jobs, "max_jobs", 1),
        max_memory=None if max_memory is None else to_bytes(max_memory, "max_memory"),
        claim_ahead=limits.check_int(given.get("claim_ahead", 500), "claim_ahead", 0, 10_000),
    )


def check_health(health: int | str) -> int | str:
    """A port, or the path of a unix socket."""
    if isinstance(health, str):
        if sys.platform == "win32":
            raise InvalidValue("health", "a port: this system has no unix sockets", health)
        if os.sep not in health:
            raise InvalidValue("health", "a port, or the path of a unix socket (with a /)", health)
        return health
    return limits.check_int(health, "health", 0, 65_535)
