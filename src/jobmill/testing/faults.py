"""Faults that a test asks for: a worker that dies at the wrong moment, and a store that is sometimes unavailable."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, get_args

from msgspec import structs

from jobmill.core.values import Claim, Exchanged, Lease, Settled, Settlement
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.store import Store
from jobmill.testing.store_calls import VERBS, StoreCall, StoreCalls

#: claim: before its handler runs. effect: after its handler, before the store knows it. settle: after that.
CrashPoint: TypeAlias = Literal["claim", "effect", "settle"]
#: call: it never reaches the store. answer: the store has applied it, but the caller does not learn that.
Losable: TypeAlias = Literal["call", "answer", "either"]


class _Fault:
    """A layer before a store, for the time of a `with` or `async with`."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    async def _layer(self, verb: str, call: StoreCall, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _enter(self) -> None:
        self._calls.layers.append(self._layer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the fault."""
        self._calls.layers.remove(self._layer)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the fault."""
        self.__exit__(kind, error, traceback)


class Crash(_Fault):
    """The worker of the next attempt dies, as if its process was killed. Other attempts continue.

    The job stays `running` until its lease ends: `await travel(crashed.lease)` moves the clock there, and the job runs
    again. If no attempt dies until the end of the `with`, that is an error of the test.
    """

    def __init__(self, calls: StoreCalls, store: Store, after: CrashPoint) -> None:
        if after not in get_args(CrashPoint):
            raise InvalidValue("after", "one of " + ", ".join(get_args(CrashPoint)), after)
        super().__init__(calls)
        self._store = store
        self._after = after
        self._died: Lease | None = None

    def __enter__(self) -> Crash:
        """Wait for the next attempt."""
        self._enter()
        return self

    async def __aenter__(self) -> Crash:
        """Wait for the next attempt."""
        return self.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Fail if no attempt has died."""
        super().__exit__(kind, error, traceback)
        if error is None and self._died is None:
            raise AssertionError(f"no attempt died: no job ran inside crash(after={self._after!r})")

    @property
    def id(self) -> str:
        """The id of the job whose worker died."""
        return self._lease.id

    @property
    def lease(self) -> timedelta:
        """How long it takes from now until the lease ends and another worker may take the job."""
        return timedelta(milliseconds=max(0, self._lease.until_ms - self._store.now()))

    @property
    def _lease(self) -> Lease:
        if self._died is None:
            raise AssertionError(f"no attempt has died: no job ran inside crash(after={self._after!r}) yet")
        return self._died

    async def _layer(self, verb: str, call: StoreCall, *args: Any, **kwargs: Any) -> Any:
        if verb != "exchange" or self._died is not None:
            return await call(*args, **kwargs)
        return await self._exchange(call, *args)

    async def _exchange(self, call: StoreCall, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        answer: Exchanged
        if self._after == "claim":
            answer = await call(settlements, claim)
            if not answer.claimed:
                return answer
            self._die(answer.claimed[0].lease)
            return structs.replace(answer, claimed=answer.claimed[1:])
        if not settlements:
            return await call(settlements, claim)  # type: ignore[no-any-return]
        self._die(settlements[0].lease)
        answer = await call(settlements[1:] if self._after == "effect" else settlements, claim)
        others: list[Settled] = answer.settled if self._after == "effect" else answer.settled[1:]
        return structs.replace(answer, settled=["lost", *others])

    def _die(self, lease: Lease) -> None:
        self._died = lease
        self._calls.attempts_died += 1


class FlakyStore(_Fault):
    """Calls to the store fail with StoreUnavailable, each with this probability, in an order that a seed decides."""

    def __init__(self, calls: StoreCalls, p: float, on: Collection[str], seed: int, lose: Losable) -> None:
        super().__init__(calls)
        if not 0 <= p <= 1:
            raise InvalidValue("p", "a probability from 0 to 1", p)
        unknown = [verb for verb in ([on] if isinstance(on, str) else on) if verb not in VERBS]
        if isinstance(on, str) or unknown:
            raise InvalidValue("on", "some of the verbs " + ", ".join(VERBS), on)
        if lose not in get_args(Losable):
            raise InvalidValue("lose", "one of " + ", ".join(get_args(Losable)), lose)
        self._p = p
        self._on = frozenset(on)
        self._random = random.Random(seed)
        self._lose = lose
        #: How many calls have failed.
        self.failures = 0

    def __enter__(self) -> FlakyStore:
        """Begin to fail."""
        self._enter()
        self._calls.is_flaky = self._p < 1  # in an outage, another try cannot help
        return self

    async def __aenter__(self) -> FlakyStore:
        """Begin to fail."""
        return self.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The store is reliable again."""
        super().__exit__(kind, error, traceback)
        self._calls.is_flaky = False

    async def _layer(self, verb: str, call: StoreCall, *args: Any, **kwargs: Any) -> Any:
        # Both numbers are drawn in every call, so that the same seed gives the same failures whatever is lost.
        fails, answer_lost = self._random.random() < self._p, self._random.random() < 0.5
        if verb not in self._on or not fails:
            return await call(*args, **kwargs)
        self.failures += 1
        if self._lose == "answer" or (self._lose == "either" and answer_lost):
            await call(*args, **kwargs)
            raise StoreUnavailable(f"flaky_store lost the answer to {verb}")
        raise StoreUnavailable(f"flaky_store lost the call of {verb}")


class MakesCrash(Protocol):
    """The fixture `crash`: `with crash(after="effect") as crashed:`."""

    def __call__(self, *, after: CrashPoint) -> Crash:
        """The worker of the next attempt dies after this step: claim, effect or settle."""


class MakesFlakyStore(Protocol):
    """The fixture `flaky_store`: `with flaky_store(0.3):`."""

    def __call__(
        self, p: float, on: Collection[str] = ("exchange",), *, seed: int = 0, lose: Losable = "call"
    ) -> FlakyStore:
        """Calls of these verbs fail with this probability. `lose` says whether the call is lost, or its answer."""
