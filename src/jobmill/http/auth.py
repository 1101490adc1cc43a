"""Authorization: requests need the token or, if there is none, must come from this machine."""

from __future__ import annotations

import hmac
import re
from ipaddress import IPv6Address, ip_address

from jobmill.errors import InvalidValue
from jobmill.http.responses import NO_TOKEN, NOT_LOCAL, Scope, TickResponse

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")

# With one of these headers a proxy forwards the request. X-Forwarded-… is matched by its prefix.
_FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip"})


def refusal(scope: Scope, token: str | None) -> TickResponse | None:
    """The response to a refused request; None if the request is accepted."""
    if token is None:
        return None if _is_local(scope) else NOT_LOCAL
    given = _bearer(scope)
    return None if given is not None and hmac.compare_digest(given, token.encode("ascii")) else NO_TOKEN


def check_token(token: object) -> str:
    """Returns a token that a header can hold. The error for an invalid token does not show it."""
    expected = "1 to 4096 visible ASCII characters without spaces"
    if not isinstance(token, str):
        raise InvalidValue("token", expected, type(token))
    if not _TOKEN.fullmatch(token):
        raise InvalidValue("token", expected, f"{len(token)} characters, too many or invalid ones" if token else token)
    return token


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address: 127.0.0.0/8, ::1, or ::ffff:127.x.x.x."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def is_direct_from_loopback(scope: Scope) -> bool:
    """Whether a program on this machine sends the request itself, and does not forward it for another one."""
    # Without an address the request is refused: a Unix socket, for example, usually has a proxy in front.
    client = scope.get("client")
    if not client or not is_loopback(client[0]):
        return False
    names = [name.lower() for name, _ in scope["headers"]]
    return not any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in names)


def _is_local(scope: Scope) -> bool:
    # With `origin`, a web page made a browser send the request.
    return is_direct_from_loopback(scope) and not any(name.lower() == b"origin" for name, _ in scope["headers"])


def _bearer(scope: Scope) -> bytes | None:
    """The token of a request; None unless it has exactly one."""
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
