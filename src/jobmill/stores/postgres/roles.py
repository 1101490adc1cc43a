"""Roles with the rights that they need, as a script for the administrator of the database."""

from __future__ import annotations

from jobmill.stores.common.sql import quoted
from jobmill.stores.postgres.statements import Statements

ROLES = ("producer", "reader", "worker", "admin")
_MAX_PREFIX_BYTES = 63 - 1 - max(map(len, ROLES))


def script(statements: Statements) -> str:
    """SQL that makes the roles, named after the schema, and grants them what they need; harmless when run again."""
    # Roles belong to the whole server: schemas of one name in two databases share theirs.
    prefix = statements.schema.encode()[:_MAX_PREFIX_BYTES].decode(errors="ignore")
    text = statements.script("roles")
    for role in ROLES:
        text = text.replace(f"{{{role}}}", quoted(f"{prefix}_{role}"))
    return text
