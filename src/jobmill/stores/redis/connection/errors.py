"""Error replies of a server and errors of redis-py, as Jobmill's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from jobmill.errors import LoginRefused, StoreError, StoreUnavailable
from jobmill.stores.redis.url import Address, RedisUrl


class NoScript(StoreError):
    """The server does not know this script: it was restarted, or somebody called SCRIPT FLUSH."""


class Moved(StoreError):
    """Another node of the cluster has this key: permanently, or (`ask`) for this one command while the slot moves."""

    def __init__(self, reply: str, slot: int, address: Address, *, ask: bool) -> None:
        super().__init__(reply)
        self.slot = slot
        self.address = address
        self.ask = ask


#: Trying again later may work.
_UNAVAILABLE = {
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
_LOGIN = {
    "NOAUTH": "it requires a password: redis://user:password@host",
    "WRONGPASS": "login refused: it does not know this user with this password",
}
#: Somebody has to change something.
_ERRORS = {
    "NOPERM": "its ACL does not allow this user what Jobmill needs: see ACL SETUSER",
    "WRONGTYPE": "a key under this prefix is not what BullMQ keeps there: something else uses it, or another prefix is "
    "meant (?prefix=…)",
    "BULLMQ5": "BullMQ 5 uses this queue, and jobs would be lost: add layout=5 to the URL in every Python process, as "
    "in redis://host:6379/0?layout=5",
    "MISCONF": "it refuses writes because it cannot save its data; see its log",
    "CROSSSLOT": "all keys of a queue must be on one node: its name or the prefix needs a hash tag, such as {mail}",
}

#: A script used a key that the node does not have, or no longer has.
_NON_LOCAL = "non local key"
#: Before Redis 7 an error within a script comes with its position in front: "ERR Error running script (call to f_…):
#: @user_script:1: -OOM command not allowed".
_IN_SCRIPT = re.compile(r"ERR Error running script .*?@user_script: ?\d+: -?([A-Z]+) ", re.DOTALL)


def code_of(reply: str) -> str:
    """The word that tells errors apart."""
    in_script = _IN_SCRIPT.match(reply)
    if in_script is not None:
        return in_script[1]
    return "TRYAGAIN" if _NON_LOCAL in reply else reply.partition(" ")[0]


def failure(reply: str, url: str, host: str = "") -> StoreError:
    """The error for an error reply of a server of this URL, at this host."""
    code = code_of(reply)
    if code == "NOSCRIPT":
        return NoScript(reply)
    if code in ("MOVED", "ASK"):
        return _moved(reply, host)
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"Redis at {url} cannot be used now: {_UNAVAILABLE[code]}; it replied: {reply}")
    if code in _LOGIN:
        return LoginRefused(f"Redis at {url}: {_LOGIN[code]}; it replied: {reply}")
    if code in _ERRORS:
        return StoreError(f"Redis at {url}: {_ERRORS[code]}; it replied: {reply}")
    return StoreError(f"Redis at {url} replied: {reply}")


def _moved(reply: str, host: str) -> Moved:
    code, slot, address = reply.split(" ")[:3]
    there, _, port = address.rpartition(":")
    # A node that does not know its own name leaves it out: then it is the host that was asked.
    return Moved(reply, int(slot), Address(there or host, int(port)), ask=code == "ASK")


@contextmanager
def translated_errors(url: RedisUrl, seconds: float) -> Iterator[None]:
    """Raise errors of redis-py as ours. It removes the code from error replies. `seconds`: the deadline."""
    try:
        yield
    except TimeoutError as error:  # the deadline; redis-py has a TimeoutError of its own
        raise StoreUnavailable(f"Redis at {url.text} could not be reached within {seconds:g} s") from error
    except AuthenticationError as error:
        raise failure(f"{'WRONGPASS' if 'password' in url.options else 'NOAUTH'} {error}", url.text) from error
    except NoPermissionError as error:
        raise failure(f"NOPERM {error}", url.text) from error
    except ResponseError as error:
        raise failure(str(error), url.text) from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis at {url.text} cannot be reached: {error}") from error
