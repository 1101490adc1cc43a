"""The verb record_usage: what runs used, for whoever reads the table."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.usage import Usage
from jobmill.stores.sqlite.step import Step


def record_usage(step: Step, records: Sequence[Usage]) -> None:
    """Add records."""
    step.write_rows("usage", (), [structs.astuple(record) for record in records])
