"""The registry: the parts of an application that a worker uses."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

from jobmill.handlers.draft import Draft
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks
from jobmill.handlers.usage import UsageRecorder
from jobmill.store import Store


class Registry(Protocol):
    """A store, and the handlers, hooks and usage recorders of one application. A Client is one."""

    hooks: Hooks

    @property
    def handlers(self) -> dict[str, Handler[..., Any]]:
        """The handlers by name."""

    @property
    def store(self) -> Store:
        """Where the jobs are."""

    @property
    def usage_recorders(self) -> list[UsageRecorder]:
        """What gets usage records."""

    async def open(self) -> None:
        """Open the store. A second call does nothing."""

    def enqueue_many(
        self, drafts: Iterable[Draft[Any]], *, within: Any = None
    ) -> Coroutine[Any, Any, list[Enqueued[Any]]]:
        """Enqueue drafts in one call to the store."""
