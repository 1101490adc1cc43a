"""Errors of the driver, as Jobmill's own errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import asyncpg

from jobmill.errors import JobmillError, LoginRefused, SchemaTooOld, StoreError, StoreUnavailable

# After these errors a connection cannot be used again, though it may look intact.
_ENDS: tuple[type[BaseException], ...] = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresConnectionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
)

# The driver cannot read the URL, or cannot do what the server asks for.
_CLIENT = (asyncpg.ClientConfigurationError, asyncpg.UnsupportedClientFeatureError)

_UNAVAILABLE: tuple[type[BaseException], ...] = (
    *_ENDS,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InterfaceError,
    asyncpg.PostgresSystemError,
    asyncpg.TargetServerAttributeNotMatched,
)

_NO_SCHEMA = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of the driver as Jobmill's own."""
    try:
        yield
    except Exception as error:
        own = translated(error)
        if own is error:
            raise
        raise own from error


def translated(error: Exception) -> Exception:
    """An error of the driver as one of Jobmill's; any other error unchanged."""
    if isinstance(error, JobmillError):
        return error
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreUnavailable(f"this PostgreSQL server accepts no writes now (is it a standby?): {error}")
    # For a worker a refused login is an outage: it keeps finished jobs, and tries again.
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
        return LoginRefused(f"PostgreSQL: login refused: {error}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreUnavailable(f"{error}; create it first (createdb, or CREATE DATABASE)")
    if isinstance(error, _CLIENT):
        return StoreError(f"PostgreSQL cannot be used like this: {error}")
    if isinstance(error, asyncpg.DataError) or _is_unsendable(error):
        return StoreError(f"PostgreSQL cannot hold this value: {error}")
    if isinstance(error, _UNAVAILABLE):
        # When a connection ends while a call begins, the driver reports an internal error that helps nobody.
        reason = "the connection is broken" if isinstance(error, asyncpg.InternalClientError) else str(error)
        return StoreUnavailable(f"PostgreSQL cannot be used now: {reason or type(error).__name__}")
    if isinstance(error, _NO_SCHEMA):
        return SchemaTooOld(f"{error}; run `jobmill migrate`")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(f"{error}; {_missing_right(error)}")
    return StoreError(f"PostgreSQL: {error}") if isinstance(error, asyncpg.PostgresError) else error


def _missing_right(error: Exception) -> str:
    if "permission denied for database" in str(error):  # of a migration, which creates the schema
        return "GRANT CREATE ON DATABASE to this role, or migrate as another one"
    return "see the roles of `jobmill migrate --roles`"


def ends_connection(error: BaseException) -> bool:
    """Whether the connection that raised this error cannot be used again."""
    return isinstance(error, _ENDS) or (isinstance(error, asyncpg.InterfaceError) and not _is_unsendable(error))


def _is_unsendable(error: BaseException) -> bool:
    """Whether the driver could not encode a value. It reports that, like a broken connection, by an InterfaceError."""
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
