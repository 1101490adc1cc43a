"""The registry: the parts of an application that a worker uses."""

from __future__ import annotations

from typing import Any, Protocol

from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks
from jobmill.handlers.usage import UsageRecorder
from jobmill.store import Store


class Registry(Protocol):
    """A store, and the handlers, hooks and usage recorders of one application. A Client is one."""

    store: Store
    handlers: dict[str, Handler[..., Any]]
    hooks: Hooks
    usage_recorders: list[UsageRecorder]

    async def open(self) -> None:
        """Open the store. A second call does nothing."""
