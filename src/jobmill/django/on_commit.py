"""Jobs that are enqueued when a transaction of Django commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from jobmill.handlers.draft import Draft

if TYPE_CHECKING:
    from jobmill.django.backend import JobmillBackend


class SendOnCommit:
    """Enqueues drafts when a transaction commits."""

    def __init__(self, backend: JobmillBackend, drafts: Sequence[Draft[Any]]) -> None:
        self._backend, self.drafts = backend, drafts
        self.is_sent = False

    def __call__(self) -> None:
        """Enqueue them."""
        with self._backend.remedy_of_django():
            self._backend.client.sync.enqueue_many(self.drafts)
        self.is_sent = True
        connection: Any = connections[self._backend.database]
        if of_test := [block for block in connection.atomic_blocks if block._from_testcase]:
            # captureOnCommitCallbacks calls this inside of a TestCase, whose end rolls everything back.
            self._backend.client.keep_memory_while(lambda: of_test[-1] in connection.atomic_blocks)


def waiting_for_commit() -> int:
    """How many drafts wait for the commit of a transaction of this thread."""
    waiting = [one[1] for connection in connections.all(initialized_only=True) for one in connection.run_on_commit]
    return sum(len(one.drafts) for one in waiting if isinstance(one, SendOnCommit) and not one.is_sent)
