"""The calls to a store, which a test can watch, lose or delay."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

from jobmill.store import EnqueuesShared, Store

#: One verb of a store, or what stands before it.
StoreCall: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
#: Stands before a store. It gets the name of a verb, the call to make, and its arguments.
Layer: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

VERBS = tuple(
    name for name, verb in vars(Store).items() if inspect.iscoroutinefunction(verb) and name not in ("open", "close")
)


class StoreCalls:
    """Replaces the verbs of one store object by calls that go through layers. The last layer added comes first."""

    def __init__(self, store: Store) -> None:
        self.layers: list[Layer] = []
        #: How many attempts ended because a test let their worker die.
        self.attempts_died = 0
        #: Whether calls of workers may fail because a test wants it.
        self.is_flaky = False
        #: The ids of the jobs that somebody has read.
        self.read: set[str] = set()
        direct = {verb: getattr(store, verb) for verb in VERBS}
        #: The same store without layers, for the kit itself.
        self.direct = cast(Store, SimpleNamespace(**direct, now=store.now, name=store.name))
        for verb, call in direct.items():
            setattr(store, verb, functools.partial(self._through, verb, call))
        if isinstance(store, EnqueuesShared):
            vars(store)["enqueue_shared"] = functools.partial(self._through, "enqueue", store.enqueue_shared)

    async def _through(self, verb: str, call: StoreCall, *args: Any, **kwargs: Any) -> Any:
        for layer in self.layers:
            call = functools.partial(layer, verb, call)
        answer = await call(*args, **kwargs)
        if verb == "get":
            self.read.update(job.id for job in answer if job is not None)
        elif verb == "find":
            self.read.update(job.id for job in answer.jobs)
        return answer
