"""Acts on workers."""

from __future__ import annotations

from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.view import View


async def worker_stop(view: View, fields: Fields) -> Done:
    """Order a worker to stop gracefully: `id`."""
    view.require_all_tenants()
    id = fields.text("id")
    if not await view.jobs.stop_workers(id, who=view.who):
        return Done(text="There is no such worker. It may have stopped meanwhile.", level="failed")
    return Done(text="The worker was ordered to stop. It receives the order within ten seconds.", count=1)
