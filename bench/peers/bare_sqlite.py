"""The limit: the SQLite store's own statements in a bare loop, one thread, nothing else."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from pathlib import Path

from bench.figures import Ran
from bench.peers.about import About
from bench.stopwatch import Stopwatch
from jobmill.stores.sqlite.connection import connect
from jobmill.stores.sqlite.statements import sql

ABOUT = About(
    name="bare loop",
    package=None,
    settings="settle 50 + claim 50 per transaction with the store's statements, one thread, synchronous=FULL; "
    "rows are fetched and not looked at",
    guarantee="–",
)

QUEUE, NAME, PRIORITY = "default", "noop", 0
LEASE_MS = 15_000
KEEP_MS = 7 * 24 * 60 * 60 * 1000


def drain(path: str, batch: int, jobs: int, seconds: float) -> Ran:
    """Claim and settle so many jobs."""
    connection = connect(Path(path), "FULL")
    cursor = connection.cursor()
    watch = Stopwatch()
    done = 0
    claimed, token = "[]", ""
    while done < jobs and watch.seconds < seconds:
        now_ms = time.time_ns() // 1_000_000
        cursor.execute("BEGIN IMMEDIATE")
        done += _settle(cursor, claimed, token, now_ms)
        token = secrets.token_hex(16)
        claimed = _claim(cursor, batch, token, now_ms)
        cursor.execute("COMMIT")
        if claimed == "[]":
            break
    ran = watch.ran(done)
    connection.close()
    return ran


def _settle(cursor: sqlite3.Cursor, claimed: str, token: str, now_ms: int) -> int:
    if claimed == "[]":
        return 0
    return cursor.execute(sql("settle_alike"), (claimed, now_ms, token, 0, 0, None, KEEP_MS, None)).rowcount


def _claim(cursor: sqlite3.Cursor, batch: int, token: str, now_ms: int) -> str:
    """The seqs of the claimed jobs, as JSON, which goes straight into the next statements."""
    cursor.execute(sql("ranges"), (QUEUE, json.dumps([NAME]), now_ms, batch)).fetchone()
    _, seqs = cursor.execute(sql("due_jobs"), (QUEUE, NAME, PRIORITY, now_ms, batch)).fetchone()
    cursor.execute(sql("claim"), (seqs, token, now_ms + LEASE_MS, now_ms, "bench"))
    cursor.execute(sql("read"), (seqs,)).fetchone()
    return str(seqs)
