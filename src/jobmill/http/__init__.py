"""Ticks over HTTP: `TickEndpoint`, an ASGI app with one route, to serve alone or to mount in another app."""

from __future__ import annotations

from jobmill.http.endpoint import TickEndpoint

__all__ = ["TickEndpoint"]
