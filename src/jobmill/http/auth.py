"""Who may have a tick: whoever knows the token or, where there is none, programs on this machine."""

from __future__ import annotations

import hmac
import re
from ipaddress import IPv6Address, ip_address

from jobmill.errors import InvalidValue
from jobmill.http.responses import NO_TOKEN, NOT_LOCAL, Answer, Scope

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")

# With any of these it is not the peer who asks: a proxy passes a request on, whoever wrote those headers, or a browser
# sends what some page told it to. X-Forwarded-… goes by its beginning.
_FOR_ANOTHER = frozenset({b"forwarded", b"via", b"x-real-ip", b"origin"})


class Guard:
    """Lets requests pass, or says why not."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else check_token(token).encode("ascii")

    def refusal(self, scope: Scope) -> Answer | None:
        """The answer to a request that may not pass; None when it may."""
        if self._token is None:
            return None if _is_local(scope) else NOT_LOCAL
        given = _bearer(scope)
        return None if given is not None and hmac.compare_digest(given, self._token) else NO_TOKEN


def check_token(token: object) -> str:
    """A token that can stand in a header. What is wrong with another is said without showing it."""
    expected = "1 to 4096 visible ASCII characters without spaces"
    if not isinstance(token, str):
        raise InvalidValue("token", expected, type(token))
    if not _TOKEN.fullmatch(token):
        raise InvalidValue("token", expected, f"a text of {len(token)}, too long or with others" if token else token)
    return token


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own: 127.0.0.0/8, ::1, and the former as ::ffff:127.x.x.x."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local(scope: Scope) -> bool:
    # No address, no trust: a server may not tell it, and behind a Unix socket there is nearly always a proxy.
    client = scope.get("client")
    if not client or not is_loopback(client[0]):
        return False
    names = [name.lower() for name, _ in scope["headers"]]
    return not any(name in _FOR_ANOTHER or name.startswith(b"x-forwarded-") for name in names)


def _bearer(scope: Scope) -> bytes | None:
    """The token that a request brings; None unless it says exactly one."""
    said = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(said) != 1:
        return None
    scheme, _, token = said[0].strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
