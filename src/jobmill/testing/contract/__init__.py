"""The contract of stores: tests for every promise of the port (`jobmill.store`), for authors of a store.

A correct store passes all of these tests; none may be skipped. Write a harness for your store, and inherit:

    # test_my_store.py
    import functools
    import pytest
    from jobmill.testing import ManualClock
    from jobmill.testing.contract import ProcessContract, StoreContract

    class MyHarness:
        def __init__(self, url):
            self.clock = ManualClock()
            self.url = url
            self.store = MyStore(url, clock=self.clock)
            self.opener = functools.partial(MyStore, url)       # for ProcessContract

        async def advance(self, seconds):
            self.clock.advance(seconds)

        async def another(self):
            store = MyStore(self.url, clock=self.clock)
            await store.open()
            return store

        async def corrupt(self, id):
            ...                                                 # overwrite the stored payload with garbage

    class TestMyStore(StoreContract, ProcessContract):
        @pytest.fixture
        async def harness(self):
            harness = MyHarness(an_empty_database())
            await harness.store.open()
            yield harness
            await harness.store.close()

It needs pytest, pytest-asyncio and hypothesis (`pip install jobmill[test]`), `asyncio_mode = "auto"`, and the same loop
for fixtures and tests (`asyncio_default_fixture_loop_scope` and `asyncio_default_test_loop_scope`: both "session", or
both "function").

- `StoreContract` is for every store. Its parts, one file per verb, can be run separately: `ClaimOrderContract`, ...
- `ProcessContract` is for stores whose data several processes share; its harness has an `opener`.
- `WithinContract` is for stores with transactions (`EnqueuesWithin`); its harness is a `WithinHarness`.

A harness follows three rules. Only `advance` moves the time of the store: if the store uses the clock of its server,
the harness must be able to set that clock. `another` is called in the event loop, and possibly in the thread, that will
use the connection. Every test gets an empty store.
"""

from __future__ import annotations

import pkgutil

import pytest

# Called before the modules are imported, so that failed assertions show the compared values.
pytest.register_assert_rewrite(*[f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)])

from jobmill.testing.contract.ahead import AheadContract, ProcessAheadContract  # noqa: E402
from jobmill.testing.contract.announce import TalliesContract, WorkersContract  # noqa: E402
from jobmill.testing.contract.audit import AuditContract  # noqa: E402
from jobmill.testing.contract.change import ChangeContract  # noqa: E402
from jobmill.testing.contract.clock import ClockContract, OpenContract  # noqa: E402
from jobmill.testing.contract.depths import CountUpToContract, DepthsContract  # noqa: E402
from jobmill.testing.contract.enqueue import EnqueueContract  # noqa: E402
from jobmill.testing.contract.events import EventsContract  # noqa: E402
from jobmill.testing.contract.exchange_claim import (  # noqa: E402
    ClaimBoundsContract,
    ClaimedContract,
    ClaimOrderContract,
)
from jobmill.testing.contract.exchange_next_due import LeaseEndContract, NextDueContract  # noqa: E402
from jobmill.testing.contract.exchange_settle import LostContract, SettleContract  # noqa: E402
from jobmill.testing.contract.explain import ExplainContract  # noqa: E402
from jobmill.testing.contract.extend import ExtendContract  # noqa: E402
from jobmill.testing.contract.findings import FindingsContract  # noqa: E402
from jobmill.testing.contract.flow_changes import FlowChangeContract  # noqa: E402
from jobmill.testing.contract.flows import DependencyContract  # noqa: E402
from jobmill.testing.contract.harness import Harness, ProcessHarness, WithinHarness  # noqa: E402
from jobmill.testing.contract.held import HoldContract  # noqa: E402
from jobmill.testing.contract.hints import HintsContract  # noqa: E402
from jobmill.testing.contract.lane_changes import LaneChangeContract  # noqa: E402
from jobmill.testing.contract.lane_settings import LaneRacesContract, LaneSettingsContract  # noqa: E402
from jobmill.testing.contract.lanes import LaneContract  # noqa: E402
from jobmill.testing.contract.model import ModelContract  # noqa: E402
from jobmill.testing.contract.order import ContentContract, OrderContract  # noqa: E402
from jobmill.testing.contract.pin import PinContract  # noqa: E402
from jobmill.testing.contract.queues import (  # noqa: E402
    PauseContract,
    RateLimitContract,
    RunningLimitContract,
    SettingsContract,
)
from jobmill.testing.contract.races import ProcessContract, ThreadRacesContract  # noqa: E402
from jobmill.testing.contract.read import CountContract, FindContract, GetContract  # noqa: E402
from jobmill.testing.contract.recurrence import RecurrenceContract  # noqa: E402
from jobmill.testing.contract.recurrence_updates import RecurrenceUpdatesContract  # noqa: E402
from jobmill.testing.contract.report import ReportContract  # noqa: E402
from jobmill.testing.contract.retention import RetentionContract  # noqa: E402
from jobmill.testing.contract.seize import SeizeContract  # noqa: E402
from jobmill.testing.contract.steps import SignalContract, StepContract, SuspendContract  # noqa: E402
from jobmill.testing.contract.unique_policy import UniquePolicyContract  # noqa: E402
from jobmill.testing.contract.wait import WaitContract  # noqa: E402
from jobmill.testing.contract.within import WithinContract  # noqa: E402

__all__ = [
    "AheadContract",
    "AuditContract",
    "ChangeContract",
    "ClaimBoundsContract",
    "ClaimOrderContract",
    "ClaimedContract",
    "ClockContract",
    "ContentContract",
    "CountContract",
    "CountUpToContract",
    "DependencyContract",
    "DepthsContract",
    "EnqueueContract",
    "EventsContract",
    "ExplainContract",
    "ExtendContract",
    "FindContract",
    "FindingsContract",
    "FlowChangeContract",
    "GetContract",
    "Harness",
    "HintsContract",
    "HoldContract",
    "LaneChangeContract",
    "LaneContract",
    "LaneRacesContract",
    "LaneSettingsContract",
    "LeaseEndContract",
    "LostContract",
    "ModelContract",
    "NextDueContract",
    "OpenContract",
    "OrderContract",
    "PauseContract",
    "PinContract",
    "ProcessAheadContract",
    "ProcessContract",
    "ProcessHarness",
    "RateLimitContract",
    "RecurrenceContract",
    "RecurrenceUpdatesContract",
    "ReportContract",
    "RetentionContract",
    "RunningLimitContract",
    "SeizeContract",
    "SettingsContract",
    "SettleContract",
    "SignalContract",
    "StepContract",
    "StoreContract",
    "SuspendContract",
    "TalliesContract",
    "ThreadRacesContract",
    "UniquePolicyContract",
    "WaitContract",
    "WithinContract",
    "WithinHarness",
    "WorkersContract",
]


# pytest runs the last base first, so the quick tests of single verbs run before the long ones.
class StoreContract(
    ThreadRacesContract,
    ModelContract,
    OpenContract,
    ClockContract,
    EventsContract,
    RateLimitContract,
    RunningLimitContract,
    PauseContract,
    SettingsContract,
    LaneRacesContract,
    LaneSettingsContract,
    LaneChangeContract,
    LaneContract,
    RetentionContract,
    SignalContract,
    SuspendContract,
    StepContract,
    FlowChangeContract,
    DependencyContract,
    FindingsContract,
    ExplainContract,
    AuditContract,
    TalliesContract,
    WorkersContract,
    DepthsContract,
    CountUpToContract,
    ContentContract,
    OrderContract,
    CountContract,
    FindContract,
    GetContract,
    PinContract,
    HoldContract,
    SeizeContract,
    ChangeContract,
    HintsContract,
    WaitContract,
    ReportContract,
    AheadContract,
    ExtendContract,
    RecurrenceContract,
    RecurrenceUpdatesContract,
    LostContract,
    SettleContract,
    LeaseEndContract,
    NextDueContract,
    ClaimedContract,
    ClaimBoundsContract,
    ClaimOrderContract,
    UniquePolicyContract,
    EnqueueContract,
):
    """The contract that every store must pass."""
