"""URLs of stores: how they are split, and what messages may show of them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from jobmill.errors import InvalidValue

#: A host and a port: a name, an address in brackets, or an escaped path of a socket.
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]*)(?::(\d{1,5}))?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{,30}")
ESCAPES = "in user names and passwords write / as %2F, ? as %3F, # as %23, % as %25, : as %3A and @ as %40"
_QUOTES = ('"', "'", "`", "“", "”", "„", "‘", "’", "«")
FILE_ADVICE = "for a file write sqlite:///jobs.db (absolute: sqlite:////var/jobs.db)"


def scheme_of(url: object, form: str) -> str:
    """The scheme of a URL, in lower case. What does not begin with `scheme://` is refused.

    Without the slashes, `user:password@host` would be taken for the name of a database.
    """
    if not isinstance(url, str):  # the type alone is shown: bytes may hold a password
        raise InvalidValue("url", f"a str: {form}", type(url), FILE_ADVICE)
    scheme, separator, _ = url.partition("://")
    if separator and _SCHEME.fullmatch(scheme):
        return scheme.lower()
    advice = f"write :// after the scheme; {FILE_ADVICE}" if ":" in url else FILE_ADVICE
    if url[:1].isspace():
        advice = "it begins with a blank; remove it"
    elif url.startswith(_QUOTES):
        advice = "it is in quotes; remove them"
    raise InvalidValue("url", form, without_credentials(url), advice)


def split_url(url: str, form: str) -> SplitResult:
    """Split a URL, or refuse it with the form that is expected, without showing its password.

    A password with an unescaped `/`, `?` or `#` would end the part with the host too early, and the rest of the
    password would be taken for a host, a database or an option. An @ or # after the hosts is a sign of that.
    """
    scheme_of(url, form)
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may show the password
        raise InvalidValue("url", form, without_credentials(url), ESCAPES) from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    rest = url.partition("://")[2][len(parts.netloc) :]
    if "@" in rest or "#" in rest or not all(HOST.fullmatch(host) for host in hosts):
        raise InvalidValue("url", form, without_credentials(url), ESCAPES)
    return parts


def without_credentials(url: str) -> str:
    """A URL as messages may show it: user and host, but neither password nor options, which may hold secrets too."""
    if not set(":@?=") & set(url):  # a path, or a word
        return url
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return f"{known[0]}:…" if (known := _SCHEME.match(url)) and url[known.end()] == ":" else "…"
    credentials, at, location = rest.rpartition("@")
    location = re.split("[?#]", location)[0]
    hosts = location.partition("/")[0].split(",")
    # If the hosts have another form, or if a character in front of the last @ ends them, it is not certain where the
    # password begins and ends.
    if set("/?#") & set(credentials) or not all(HOST.fullmatch(host) for host in hosts):
        return f"{scheme}://…"
    return f"{scheme}://{credentials.partition(':')[0]}{at}{location}"
