"""URLs of stores: what messages may show of them."""

from __future__ import annotations


def without_credentials(url: str) -> str:
    """A URL as messages may show it: user and host, but neither password nor options, which may hold secrets too."""
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    if not separator or "?" in credentials:  # where the password is cannot be told
        return f"{scheme.partition(':')[0]}://…"
    return f"{scheme}{separator}{credentials.partition(':')[0]}{at}{host.partition('?')[0]}"
