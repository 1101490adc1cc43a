"""The client that tasks belong to, and how their priorities become Jobmill's."""

from __future__ import annotations

from jobmill.client.client import Client
from jobmill.compat.celery.options import PAGE
from jobmill.core.limits import check_int
from jobmill.errors import InvalidValue, JobmillError


class Binding:
    """Holds the client, once it is bound."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._max_priority: int | None = None

    @property
    def is_bound(self) -> bool:
        """Whether there is a client."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """The client that is bound."""
        if self._client is None:
            raise JobmillError(f"tasks need a client: call jobmill.compat.celery.bind(jobs) first; see {PAGE}")
        return self._client

    def bind(self, jobs: Client, max_priority: int | None) -> None:
        """Bind a client, once."""
        if self._client not in (None, jobs):
            raise InvalidValue("jobs", "the client that these tasks belong to already", jobs, "use jobs.using(store)")
        self._max_priority = None if max_priority is None else check_int(max_priority, "max_priority", 0)
        self._client = jobs

    def to_priority(self, priority: int) -> int:
        """Jobmill's priority, of which the smallest runs first."""
        if self._max_priority is None:
            return priority
        return self._max_priority - check_int(priority, "priority", 0, self._max_priority)


#: Of tasks that `shared_task` makes.
SHARED = Binding()
