"""Acts that run in the background: how one begins, and how a visitor stops one."""

from __future__ import annotations

from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.runs import RunOrder
from jobmill.dashboard.view import NotAllowed, View


def begin_run(view: View, order: RunOrder) -> Done:
    """Begin a run; the page that shows how far it is."""
    run = view.dashboard.runs.start(order)
    if run is None:
        return Done(text="Nothing was done, because too many actions run in the background now.", level="failed")
    return Done(text="The run has begun.", goto=view.url("runs", run.id))


async def stop_run(view: View, fields: Fields) -> Done:
    """Stop a run after its present batch: `run`. It needs the permission for the act of the run."""
    if view.access.is_read_only:
        raise NotAllowed("you have read-only access")
    run = view.run(fields.text("run"))
    view.require(run.order.act)
    view.dashboard.runs.stop(run, view.who)
    return Done(text="The run stops after its present batch.", goto=view.url("runs", run.id))
