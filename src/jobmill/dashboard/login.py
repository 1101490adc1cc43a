"""The token of a dashboard: sent as a bearer token, given once in a form or a link, and then kept as a cookie."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from jobmill.http.auth import check_token

COOKIE: Final = "jobmill_dashboard"
_KEPT_S: Final = 30 * 24 * 60 * 60


class Login:
    """Checks the token. The cookie holds a keyed hash of its end, so that the token itself is stored nowhere."""

    def __init__(self, token: str) -> None:
        self._token = check_token(token).encode("ascii")

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def knows(self, request: Request, now_s: int) -> bool:
        """Whether a request has the token, or the cookie that a login set."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(given.strip())
        until, _, mark = request.cookies.get(COOKIE, "").partition(".")
        if not until.isascii() or not until.isdecimal() or len(until) > 12 or int(until) < now_s:
            return False
        return hmac.compare_digest(mark.encode("utf-8", "replace"), self._mark(until).encode())

    def remember(self, response: Response, request: Request, now_s: int, path: str) -> None:
        """Set the cookie."""
        until = str(now_s + _KEPT_S)
        response.set_cookie(
            COOKIE,
            f"{until}.{self._mark(until)}",
            max_age=_KEPT_S,
            path=path or "/",
            # The header of a proxy is as good here: who invents it only hides the cookie from their own browser.
            secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower()),
            httponly=True,
            samesite="strict",
        )

    def _mark(self, until: str) -> str:
        return hmac.new(self._token, f"jobmill dashboard until {until}".encode(), hashlib.sha256).hexdigest()
