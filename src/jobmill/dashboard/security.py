"""Headers of all answers, and which requests are refused because of where they come from."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from jobmill.http.auth import is_direct_from_loopback, is_loopback

#: No form of the dashboard is larger: it holds the ids of one page, or a payload.
MAX_BODY: Final = 2 * 1024 * 1024


def headers(frame_ancestors: str) -> dict[str, str]:
    """The headers of every answer. Nothing is loaded from elsewhere, and no style or script is inline."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {frame_ancestors}"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def is_from_this_machine(request: Request) -> bool:
    """Whether a program on this machine sends the request, and no proxy and no page of another site is in between.

    The name in `Host` counts as well: a page of another site can give its own name the address of this machine.
    """
    host = _without_port(request.headers.get("host", "").lower())
    return is_direct_from_loopback(request.scope) and (host == "localhost" or is_loopback(host))


def is_same_origin(request: Request) -> bool:
    """Whether a request that changes something comes from a page of the dashboard, or from a program.

    Browsers send at least one of these two headers with every POST. A page of another site can make a browser send a
    form, but no JSON and no token, without being asked first.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is not None:
        _, mark, host = origin.partition("://")
        return mark != "" and host.lower() == request.headers.get("host", "").lower()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or request.headers.get("authorization", "").lower().startswith("bearer ")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
