"""The tick over HTTP: `TickEndpoint`, an ASGI app of one route, to be served by itself or mounted in another app."""

from __future__ import annotations

from jobmill.http.endpoint import TickEndpoint

__all__ = ["TickEndpoint"]
