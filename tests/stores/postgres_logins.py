"""Roles and logins for tests; a server has them for all its databases, so each test takes its own away again."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from tests.kit.postgres import Databases, connected

PASSWORD = "secret"
ROLES = ("producer", "reader", "worker", "admin")


def as_user(url: str, user: str) -> str:
    """The same database for somebody else."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}").geturl()


@contextlib.asynccontextmanager
async def login(server: Databases, url: str, *statements: str) -> AsyncIterator[str]:
    """A role of its own, which may log in and what the statements say of {role}; gone at the end."""
    role = f"test_{secrets.token_hex(6)}"
    async with connected(server.url()) as sql:
        await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        async with connected(url) as sql:
            for statement in statements:
                await sql.execute(statement.format(role=role))
        yield role
    finally:
        async with connected(url) as sql:
            await sql.execute(f"DROP OWNED BY {role} CASCADE")
        async with connected(server.url()) as sql:
            await sql.execute(f"DROP ROLE {role}")


@contextlib.asynccontextmanager
async def granted(url: str, script: str, schema: str = "jobmill") -> AsyncIterator[None]:
    """The roles of `jobmill migrate --roles`; gone at the end."""
    async with connected(url) as sql:
        await sql.execute(script)
    try:
        yield
    finally:
        async with connected(url) as sql:
            for role in ROLES:
                await sql.execute(f'DROP OWNED BY "{schema}_{role}"; DROP ROLE "{schema}_{role}"')
