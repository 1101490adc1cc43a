"""Our Lua, one file a verb; what several share is put in where a line says `--- include NAME`."""

from __future__ import annotations

import re
from importlib.resources import files

from jobmill.stores.redis.script import Script

_LUA = files("jobmill.stores.redis") / "lua"
_INCLUDE = re.compile(r"^--- include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|^\s*\n", re.MULTILINE)


def _load(verb: str) -> Script:
    text = (_LUA / f"{verb}.lua").read_text()
    whole = _INCLUDE.sub(lambda found: (_LUA / "lib" / f"{found[1]}.lua").read_text(), text)
    # A server shows the beginning in its slow log: what the verb is.
    return Script(f"-- jobmill {verb}\n" + _COMMENT.sub("", whole))


CHANGE = _load("change")
CLEAN = _load("clean")
CONFIGURE = _load("configure")
ENQUEUE = _load("enqueue")
EXCHANGE = _load("exchange")
EXTEND = _load("extend")
GET = _load("get")
PAGE = _load("page")
PURGE = _load("purge")
RECOVER = _load("recover")
REPORT = _load("report")
SCHEDULE = _load("schedule")
