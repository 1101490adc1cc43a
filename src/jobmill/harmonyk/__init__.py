"""Harmonyk's library of jobs: its retry rule, its dedupe key, its JobsRepository over any store, and its jobs table.

    from jobmill import harmonyk

    repository = harmonyk.Repository(jobs)
    id = await repository.enqueue("hygiene_scan", org_id="acme", payload={"folder": 7})
    await repository.mark_failure(id, "the folder is locked")

Names here are Harmonyk's: `type`, `org_id`, `run_at`, and a status instead of a state.
"""

from jobmill.harmonyk.jobs_table import JobsTable, install_jobs_table, migration_script
from jobmill.harmonyk.repository import JobsRepository, Marked, Repository
from jobmill.harmonyk.rules import (
    DEFAULT_MAX_ATTEMPTS,
    Status,
    backoff_delay_ms,
    can_retry,
    dedupe_key,
    last_error,
    status,
)

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "JobsRepository",
    "JobsTable",
    "Marked",
    "Repository",
    "Status",
    "backoff_delay_ms",
    "can_retry",
    "dedupe_key",
    "install_jobs_table",
    "last_error",
    "migration_script",
    "status",
]
