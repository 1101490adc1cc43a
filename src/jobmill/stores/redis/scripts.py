"""Our Lua scripts, one file for each verb; `--- include NAME` inserts a file of `lib/` that several verbs share."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

_LUA = files("jobmill.stores.redis") / "lua"
_INCLUDE = re.compile(r"^--- include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|^\s*\n", re.MULTILINE)


class Script:
    """A Lua script. The server knows it by the hash of its source."""

    __slots__ = ("sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = sha1(source.encode(), usedforsecurity=False).hexdigest()


def _load(verb: str) -> Script:
    text = (_LUA / f"{verb}.lua").read_text()
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda found: (_LUA / "lib" / f"{found[1]}.lua").read_text(), text)
    # The slow log of a server shows the beginning of a script: the name of the verb.
    return Script(f"-- jobmill {verb}\n" + _COMMENT.sub("", text))


ANNOUNCE = _load("announce")
AUDIT = _load("audit")
CHANGE = _load("change")
CLEAN = _load("clean")
CONFIGURE = _load("configure")
CONFIGURE_LANE = _load("configure_lane")
DEPENDENCIES = _load("dependencies")
DEPTHS = _load("depths")
EACH = _load("each")
EDGES = _load("edges")
ENQUEUE = _load("enqueue")
ENQUEUE_BY_POLICY = _load("enqueue_by_policy")
EXCHANGE = _load("exchange")
EXTEND = _load("extend")
FLOW = _load("flow")
FLOW_COUNTS = _load("flow_counts")
FLOWS = _load("flows")
FSCK = _load("fsck")
GET = _load("get")
HEAL_LANES = _load("heal_lanes")
LANES = _load("lanes")
LENGTHS = _load("lengths")
MATCHING = _load("matching")
PAGE = _load("page")
PURGE = _load("purge")
RECOVER = _load("recover")
RELAY = _load("relay")
REPORT = _load("report")
SCHEDULE = _load("schedule")
SIGNAL = _load("signal")
STEP = _load("step")
