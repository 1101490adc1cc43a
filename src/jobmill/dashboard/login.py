"""The token of a dashboard: sent as a bearer token, given once in a form or a link, and then kept as a cookie."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from jobmill.http.auth import check_token

log = logging.getLogger("jobmill")

COOKIE: Final = "jobmill_dashboard"
_KEPT_S: Final = 30 * 24 * 60 * 60
#: The log names wrong tokens at most once in this time.
QUIET_S: Final = 60.0


class Login:
    """Checks the token. The cookie holds a keyed hash of its end, so that the token itself is stored nowhere."""

    def __init__(self, token: str) -> None:
        self._token = check_token(token).encode("ascii")
        self._logged_at: float | None = None
        self._not_logged = 0

    def is_token(self, request: Request, given: str) -> bool:
        """Whether this is the token that a request gives. The log says who tries wrong ones, and how many."""
        if hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return True
        # Guessing is no danger to a long random token, so nobody is made to wait. An attempt should be seen.
        now = time.monotonic()
        if self._logged_at is not None and now < self._logged_at + QUIET_S:
            self._not_logged += 1
            return False
        more = f", and {self._not_logged:,} more since the last such line" if self._not_logged else ""
        address = request.client.host if request.client is not None else "an unknown address"
        log.warning("the dashboard refused a wrong token from %s%s", address, more)
        self._logged_at, self._not_logged = now, 0
        return False

    def knows(self, request: Request, now_s: int) -> bool:
        """Whether a request has the token, or the cookie that a login set."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(request, given.strip())
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
