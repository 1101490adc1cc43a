"""What a server says when it does not do what it was asked, as Jobmill says it."""

from __future__ import annotations

import re

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.url import Address


class NoScript(StoreError):
    """The server does not know this script (any more): it started anew, or somebody said SCRIPT FLUSH."""


class Moved(StoreError):
    """Another node of the cluster has this key; for good, or (ask) for this one command while the slot moves."""

    def __init__(self, said: str, slot: int, address: Address, *, ask: bool) -> None:
        super().__init__(said)
        self.slot = slot
        self.address = address
        self.ask = ask


#: Trying again later may work.
_AWAY = {
    "LOADING": "it is starting and reads its data",
    "READONLY": "this server is a replica and takes no writes (a failover?)",
    "MASTERDOWN": "this replica has lost its primary",
    "CLUSTERDOWN": "the cluster has lost nodes, or is forming",
    "TRYAGAIN": "the queue's slot is moving to another node",
    "BUSY": "a script has been running for long; SCRIPT KILL ends it",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write)",
    "OOM": "maxmemory is reached; raise maxmemory, or let retention remove jobs (keep_succeeded, keep_failed)",
    "UNBLOCKED": "the server became a replica",
}
#: Somebody has to do something.
_ERRORS = {
    "NOAUTH": "it wants a password: redis://user:password@host",
    "WRONGPASS": "it does not know this user with this password",
    "NOPERM": "its ACL does not allow this user what Jobmill needs: see ACL SETUSER",
    "WRONGTYPE": "a key under this prefix is not what BullMQ keeps there: something else uses it, or another prefix is "
    "meant (?prefix=…)",
    "MISCONF": "it refuses writes because it cannot save its data; see its log",
    "CROSSSLOT": "all keys of a queue must be on one node: its name or the prefix needs a hash tag, such as {mail}",
}


#: A script met a key that the node does not have (any more).
_NON_LOCAL = "non local key"
#: Before Redis 7 an error within a script is told with its place in front: "ERR Error running script (call to f_…):
#: @user_script:1: -OOM command not allowed".
_IN_SCRIPT = re.compile(r"ERR Error running script .*?@user_script: ?\d+: -?([A-Z]+) ", re.DOTALL)


def code_of(said: str) -> str:
    """The word that tells errors apart."""
    in_script = _IN_SCRIPT.match(said)
    if in_script is not None:
        return in_script[1]
    return "TRYAGAIN" if _NON_LOCAL in said else said.partition(" ")[0]


def failure(said: str, url: str, host: str = "") -> StoreError:
    """The error for an error reply, of a server of this URL, at this host."""
    code = code_of(said)
    if code == "NOSCRIPT":
        return NoScript(said)
    if code in ("MOVED", "ASK"):
        return _moved(said, host)
    if code in _AWAY:
        return StoreUnavailable(f"Redis at {url} cannot be used now: {_AWAY[code]}; it said: {said}")
    if code in _ERRORS:
        return StoreError(f"Redis at {url}: {_ERRORS[code]}; it said: {said}")
    return StoreError(f"Redis at {url} said: {said}")


def _moved(said: str, host: str) -> Moved:
    code, slot, address = said.split(" ")[:3]
    there, _, port = address.rpartition(":")
    # Nodes that do not know their own name leave it out: it is that of the one that says so.
    return Moved(said, int(slot), Address(there or host, int(port)), ask=code == "ASK")
