"""Connections of callers, which they pass as `within=`: what stands behind the objects of frameworks."""

from __future__ import annotations

from typing import Any

from jobmill.errors import InvalidValue


def packages_of(connection: Any) -> set[str]:
    """The packages of its classes; of all base classes, because a caller may inherit from a driver's class."""
    return {base.__module__.partition(".")[0] for base in type(connection).__mro__}


def behind_django(connection: Any) -> Any:
    """The driver's connection behind Django's `connection`, in its transaction; any other object unchanged."""
    if "django" not in packages_of(connection) or not hasattr(connection, "in_atomic_block"):
        return connection
    if not connection.in_atomic_block:
        raise InvalidValue("within", "Django's connection in a transaction", connection, "use transaction.atomic()")
    return connection.connection
