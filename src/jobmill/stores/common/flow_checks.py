"""For stores that hold whole jobs in Python: whether jobs may wait for others, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jobmill.core.flows import circular_dependency, recurring_dependency, unknown_dependency
from jobmill.core.job import Job
from jobmill.core.values import NewJob


class FlowChecks:
    """The checks of one store: `find` a job by its id, and the live `owner` of the unique key of a new job."""

    def __init__(self, find: Callable[[str], Job | None], owner: Callable[[NewJob], Job | None]) -> None:
        self._find = find
        self._owner = owner

    def check_dependencies(self, new_jobs: Sequence[NewJob]) -> None:
        """Raise InvalidValue if a job waits for an unknown or a recurring job."""
        in_call = {new.id: new for new in new_jobs}
        for new in new_jobs:
            if new.after and new.recurrence is not None:
                raise recurring_dependency(new.id)
            for after in new.after:
                self._check(in_call.get(after.id), after.id)

    def check_children(
        self, parent: str, children: Sequence[NewJob], waits_for: Callable[[str], Iterable[str]]
    ) -> None:
        """Raise InvalidValue if a suspended job cannot wait for these. `waits_for`: where the pending edges lead."""
        self.check_dependencies(children)
        left: list[str] = []
        for child in children:
            stored = self._check(child, child.id)
            left += [after.id for after in child.after] if stored is None else [stored.id]
        seen: set[str] = set()
        while left:
            id = left.pop()
            if id == parent:
                raise circular_dependency(id)
            if id not in seen:
                seen.add(id)
                left += waits_for(id)

    def _check(self, new: NewJob | None, id: str) -> Job | None:
        """The stored job that an edge to this id would lead to; None if the job is new."""
        stored = self._find(id)
        if stored is None and new is not None:
            stored = self._owner(new)
        if stored is None and new is None:
            raise unknown_dependency(id)
        recurs = stored.recurrence if stored is not None else new and new.recurrence
        if recurs is not None:
            raise recurring_dependency(id)
        return stored
