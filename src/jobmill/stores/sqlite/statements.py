"""The SQL files beside this module, ready to execute.

`{job}` stands for the expression of job.sql, `{never}` for NEVER_MS, `{subject}` for the columns of a SubjectRow,
`{edge}` for those of an EdgeRow, `{pinned}` for whether edges lead to a job, `{blocks}` for whether an edge keeps its
job waiting, `{in_lane}` for the condition of the index of lanes, `{uncounted}` for whether the lease of a running job
is its first one of a claim ahead, whose loss is no crash, and `{rows of n from ?i}` for one row of n parameters per row
of a call, numbered from i on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from jobmill.core.due import NEVER_MS
from jobmill.core.values import AHEAD
from jobmill.stores.common.sql import statements_in, without_comments

HERE = Path(__file__).parent

# The maximum number of rows in a statement. SQLite prepares and caches one statement for each number of rows.
MAX_ROWS = 100

#: Whether an edge keeps its job waiting, as the partial index has it.
BLOCKS = "(edges.state = 'pending' OR (edges.if_failed = 'wait' AND edges.state <> 'succeeded'))"

_PARTS = {
    "{never}": str(NEVER_MS),
    "{uncounted}": f"(unstarted IS NULL AND substr(token, 1, {len(AHEAD)}) = '{AHEAD}')",
    "{subject}": "jobs.seq, jobs.id, jobs.name, jobs.queue, jobs.state, jobs.errors, jobs.options, jobs.due_ms,"
    f" CASE WHEN jobs.due_ms = {NEVER_MS} THEN jobs.held END, jobs.recurrence,"
    " jobs.doomed, jobs.lane, jobs.dependencies",
    "{pinned}": "EXISTS (SELECT 1 FROM jobmill_edges AS pins WHERE pins.on_seq = jobs.seq)",
    "{blocks}": BLOCKS,
    "{in_lane}": "lane IS NOT NULL AND (state = 'waiting' OR state = 'running')",
    "{edge}": "edges.job_seq, edges.number, edges.if_failed, jobs.seq, jobs.id, jobs.state, jobs.error",
}
_ROWS = re.compile(r"\{rows of (\d+) from \?(\d+)\}")


def _all_statements() -> dict[str, str]:
    """All statements by their names, without their comments. Takes 0.8 ms."""
    statements = {name: without_comments(text) for name, text in statements_in(HERE / "sql").items()}
    for part, meaning in {"{job}": statements["job"], **_PARTS}.items():
        for name, text in statements.items():
            if part in text:
                statements[name] = text.replace(part, meaning)
    return statements


#: A statement by its name. Made at the import, so that forked worker processes share them and need not read the files.
sql: Callable[[str], str] = _all_statements().__getitem__


@functools.cache
def sql_rows(name: str, count: int) -> str:
    """A statement about this number of rows."""
    return _ROWS.sub(lambda found: _rows(int(found[1]), int(found[2]), count), sql(name))


@functools.cache
def sql_update(columns: tuple[str, ...], count: int) -> str:
    """A statement that writes these columns of this number of jobs. Per job: seq, values.

    OR FAIL as in settle_success.sql.
    """
    sets = ", ".join(f"{column} = given.column{number}" for number, column in enumerate(columns, 2))
    values = _rows(len(columns) + 1, 1, count)
    return (
        f"UPDATE OR FAIL jobmill_jobs AS jobs SET {sets} FROM (VALUES {values}) AS given WHERE jobs.seq = given.column1"
    )


@functools.cache
def sql_update_alike(columns: tuple[str, ...]) -> str:
    """A statement that writes the same values to these columns of many jobs. Parameters: values, seqs as JSON.

    Measured at 100 settlements a call, each of which releases one job: 93,300 instructions a job, with `sql_update`
    107,700.
    """
    sets = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE OR FAIL jobmill_jobs SET {sets} WHERE seq IN (SELECT value FROM json_each(?))"


def _rows(width: int, first: int, count: int) -> str:
    starts = range(first, first + width * count, width)
    return ", ".join("(" + ", ".join(f"?{at + i}" for i in range(width)) + ")" for at in starts)
