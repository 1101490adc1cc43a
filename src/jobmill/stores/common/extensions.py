"""Extensions: what other parts of Jobmill keep in the schema of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

#: By its name in the schema: renews an extension after a migration, on the migration's connection, for this schema.
renewals: dict[str, Callable[[Any, str], Awaitable[None]]] = {}
