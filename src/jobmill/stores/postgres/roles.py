"""Roles that may do no more than they need, as a script for whoever administers the database."""

from __future__ import annotations

from jobmill.stores.postgres.statements import Statements, quoted

ROLES = ("producer", "reader", "worker", "admin")
_LONGEST = 63 - 1 - max(map(len, ROLES))


def script(statements: Statements) -> str:
    """What makes the roles, named after the schema, and grants them what they need; harmless when run again."""
    # Roles are of the whole server: two schemas of one name, in two databases, share theirs.
    name = statements.schema.encode()[:_LONGEST].decode(errors="ignore")
    text = statements.script("roles")
    for role in ROLES:
        text = text.replace(f"{{{role}}}", quoted(f"{name}_{role}"))
    return text
