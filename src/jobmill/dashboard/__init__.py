"""The dashboard: pages about a store and acts on its jobs, as an ASGI app to serve alone or to mount in another app."""

from __future__ import annotations

from jobmill.errors import MissingExtra

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:
    raise MissingExtra("the dashboard needs starlette and jinja2: pip install 'jobmill[dashboard]'") from error

from jobmill.dashboard.access import ACTIONS, Access
from jobmill.dashboard.app import Dashboard

__all__ = ["ACTIONS", "Access", "Dashboard"]
