"""The verb diagnose: how the file is set up, and whether it has room."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from jobmill.core.findings import Finding, StoreFacts, reachable
from jobmill.errors import UnsafeStore
from jobmill.stores.sqlite.connection.network import refuse_network
from jobmill.stores.sqlite.context import SqliteContext

_MIB = 1024 * 1024
# A checkpoint empties the write-ahead log every 16 MB, but the file keeps its size until all processes close it.
MAX_WAL = 256 * _MIB
MIN_FREE, FEW_FREE = 100 * _MIB, 1024 * _MIB


def diagnose(context: SqliteContext, path: Path, answers_ms: float) -> list[Finding]:
    """One finding for each check."""
    size = path.stat().st_size + _wal_bytes(path)
    facts = StoreFacts(
        product="SQLite",
        version=sqlite3.sqlite_version,
        response_ms=answers_ms,
        size_bytes=size,
        schema=schema(context),
    )
    return [
        reachable(facts),
        _journal_mode(context),
        _synchronous(context),
        _network(path),
        _wal_size(path),
        _free_disk(path),
    ]


def schema(context: SqliteContext) -> int:
    """The number of the last migration: a query of a table with few rows."""
    (number,) = context.cursor.execute("SELECT max(number) FROM jobmill_migrations").fetchone()
    return int(number)


def _journal_mode(context: SqliteContext) -> Finding:
    (mode,) = context.cursor.execute("PRAGMA journal_mode").fetchone()
    if mode == "wal":
        return Finding(check="journal_mode", text="the file has a write-ahead log", evidence={"journal_mode": mode})
    return Finding(
        check="journal_mode",
        level="error",
        text=f"the file has no write-ahead log (journal mode {mode}): readers and writers block each other",
        evidence={"journal_mode": mode},
        remedy="stop all processes that use the file, and run `sqlite3 FILE 'PRAGMA journal_mode = WAL'`",
    )


def _synchronous(context: SqliteContext) -> Finding:
    (level,) = context.cursor.execute("PRAGMA synchronous").fetchone()
    name, text = [
        ("OFF", "a power failure may damage the file"),
        ("NORMAL", "a power failure may lose the last commits, as the URL allows"),
        ("FULL", "a commit is on disk when it returns"),
        ("EXTRA", "a commit is on disk when it returns"),
    ][level]
    finding = Finding(check="synchronous", text=f"synchronous={name}: {text}", evidence={"synchronous": name})
    if name != "OFF":
        return finding
    return Finding(
        check=finding.check,
        level="warning",
        text=finding.text,
        evidence=finding.evidence,
        remedy="remove synchronous=OFF from the URL, unless the jobs may be lost",
    )


def _network(path: Path) -> Finding:
    try:
        refuse_network(path)
    except UnsafeStore as error:
        remedy = "put the file on a local disk, or use a store that is a server"
        return Finding(check="network_filesystem", level="error", text=str(error), remedy=remedy)
    return Finding(check="network_filesystem", text="the file is on no network file system that Jobmill knows")


def _wal_size(path: Path) -> Finding:
    size = _wal_bytes(path)
    is_large = size > MAX_WAL
    return Finding(
        check="wal_size",
        level="warning" if is_large else "ok",
        text=f"the write-ahead log takes {size / _MIB:.1f} MiB",
        evidence={"bytes": size},
        remedy="end the transaction that some connection keeps open; the log shrinks when all processes close the file"
        if is_large
        else None,
    )


def _wal_bytes(path: Path) -> int:
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if wal.exists() else 0


def _free_disk(path: Path) -> Finding:
    import shutil

    free = shutil.disk_usage(path.parent).free
    return Finding(
        check="free_disk",
        level="error" if free < MIN_FREE else "warning" if free < FEW_FREE else "ok",
        text=f"the disk of the file has {free / _MIB:,.0f} MiB free",
        evidence={"bytes": free},
        remedy="free some space: without any, no job can be enqueued or settled" if free < FEW_FREE else None,
    )
