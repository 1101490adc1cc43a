"""What a visitor of the dashboard may see and do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from jobmill.errors import InvalidValue

#: The words for permissions. Each act of the dashboard needs one of them.
ACTIONS: Final = (
    *("requeue", "cancel", "remove", "hold", "release", "reschedule", "reprioritize", "edit", "enqueue"),
    *("pause", "limit", "recur_edit", "recur_pause", "recur_run", "flow_retry", "flow_cancel"),
    *("worker_stop", "see_payload"),
)


class Access:
    """What one visitor may do: `Access.ALL`, `Access.READ`, or some actions, for all jobs or those of some tenants.

    Without the action "see_payload" the values of payloads, results, headers, errors and log lines are hidden. With
    `tenants`, only jobs of these tenants are shown, and no page about queues, workers or the store.
    """

    ALL: ClassVar[Access]
    READ: ClassVar[Access]

    def __init__(
        self, actions: Iterable[str] = (), *, tenants: Iterable[str] | None = None, who: str | None = None
    ) -> None:
        self.actions = frozenset(_texts(actions, "actions"))
        for action in sorted(self.actions.difference(ACTIONS)):
            raise InvalidValue("actions", "some of " + ", ".join(ACTIONS), action)
        #: None: the jobs of all tenants, and those without one.
        self.tenants = None if tenants is None else tuple(sorted(_texts(tenants, "tenants")))
        #: The name in the audit log.
        self.who = who

    def may(self, action: str) -> bool:
        """Whether the visitor has this permission."""
        return action in self.actions

    def refusal(self, action: str) -> str:
        """What a visitor reads who tries this without the permission."""
        return f"this needs the permission {action!r}"

    @property
    def is_read_only(self) -> bool:
        """Whether the visitor can change nothing."""
        return not self.actions - {"see_payload"}

    def reading_only(self) -> Access:
        """The same access without any act."""
        return Access(self.actions & {"see_payload"}, tenants=self.tenants, who=self.who)

    def __repr__(self) -> str:
        """All that it allows."""
        return f"Access({sorted(self.actions)}, tenants={self.tenants}, who={self.who!r})"


def _texts(given: Iterable[str], field: str) -> set[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidValue(field, "a set of texts", given)
    texts = set(given)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidValue(field, "a set of texts", text)
    return texts


Access.ALL = Access(ACTIONS)
Access.READ = Access({"see_payload"})
