"""Progress and log lines of running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmill.core.job import LOG_LINES_KEPT
from jobmill.core.values import Report
from jobmill.stores.redis.context import RedisContext, as_json, by_queue
from jobmill.stores.redis.log_lines import origin_mark
from jobmill.stores.redis.scripts import REPORT
from jobmill.stores.redis.settle import id_of


async def report(c: RedisContext, reports: Sequence[Report]) -> list[str]:
    """See the port."""
    lost_ids: list[str] = []
    for queue, some in by_queue(reports, lambda report: report.lease.queue):
        requests = [_request(one) for one in some]
        lost = await c.run(REPORT, queue, c.clock.now(), reports=requests, max_lines=LOG_LINES_KEPT)
        lost_ids += [some[position].lease.id for position in lost]
    return lost_ids


def _request(report: Report) -> dict[str, Any]:
    """A report as report.lua takes it."""
    lines = report.lines[-LOG_LINES_KEPT:]
    request: dict[str, Any] = {"id": id_of(report.lease), "token": report.lease.token, "lines": lines}
    if report.attempt is not None:
        request["origin"] = origin_mark(report.attempt, report.level)
    if (progress := report.progress) is not None:
        data = {"value": progress.value, "message": progress.message}
        # Node's users write a number; with a message it is an object.
        request["progress"] = as_json(progress.value if progress.message is None else data)
        request["data"] = as_json(data)
    return request
