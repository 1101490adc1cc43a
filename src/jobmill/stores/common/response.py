"""How long a store takes to answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable


async def response_ms(query: Callable[[], Awaitable[object]]) -> float:
    """How long a query takes. It should read as little as possible, so that only the way to the store counts."""
    began = time.perf_counter()
    await query()
    return round((time.perf_counter() - began) * 1000, 3)
