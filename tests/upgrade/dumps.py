"""Frozen databases: written to a file, and loaded from it into an empty database."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

# psql's own commands, which pg_dump writes around a dump.
_PSQL = re.compile(r"^\\(un)?restrict \S+\n", re.MULTILINE)
#: A setting of newer versions, which older servers refuse.
_NEWER = re.compile(r"^SET transaction_timeout = 0;\n", re.MULTILINE)


def write(path: Path, text: str) -> None:
    """Compress a text, to the same bytes each time."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> str:
    """The text that `write` compressed."""
    return gzip.decompress(path.read_bytes()).decode()


# ---------------------------------------------------------------------------------------------------- PostgreSQL


def dump_postgres(url: str, programs: Path) -> str:
    """A database as SQL that a driver can execute in one call, on any server that is not older."""
    command = [str(programs / "pg_dump"), "--inserts", "--no-owner", "--dbname", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = _NEWER.sub("", _PSQL.sub("", text))
    # The role that loads it may have another name.
    return re.sub(r"^(CREATE POLICY .* TO) postgres ", r"\1 CURRENT_USER ", text, flags=re.MULTILINE)


async def load_postgres(text: str, url: str) -> None:
    from tests.kit.postgres import connected

    async with connected(url) as connection:
        await connection.execute(text)


# ---------------------------------------------------------------------------------------------------- MongoDB


def dump_mongo(database: Any) -> str:
    """The documents of each collection and its indexes, as canonical Extended JSON."""
    from bson import json_util

    collections = {
        name: {
            "documents": list(database[name].find(sort=[("_id", 1)])),
            "indexes": [_index(one) for one in database[name].list_indexes() if one["name"] != "_id_"],
        }
        for name in sorted(database.list_collection_names())
    }
    return json_util.dumps(collections, json_options=json_util.CANONICAL_JSON_OPTIONS, ensure_ascii=False, indent=1)


def _index(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name not in ("v", "ns")}


def load_mongo(text: str, database: Any) -> None:
    from bson import json_util

    collections: dict[str, Any] = json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)
    for name, held in collections.items():
        database.create_collection(name)
        if held["indexes"]:
            database.command("createIndexes", name, indexes=held["indexes"])
        if held["documents"]:
            database[name].insert_many(held["documents"])


# ---------------------------------------------------------------------------------------------------- Redis


def dump_redis(client: Any) -> str:
    """Each key of a database: its type, its contents, and how many milliseconds it has left (-1: for ever)."""
    keys = {}
    for key in sorted(client.scan_iter(count=1_000)):
        kind = client.type(key).decode()
        keys[_shown(key)] = {"type": kind, "ttl": client.pttl(key), "value": _contents(client, kind, key)}
    return json.dumps(keys, ensure_ascii=False, indent=1)


def _contents(client: Any, kind: str, key: bytes) -> Any:
    match kind:
        case "string":
            return _shown(client.get(key))
        case "hash":
            return [[_shown(field), _shown(value)] for field, value in client.hgetall(key).items()]
        case "list":
            return [_shown(value) for value in client.lrange(key, 0, -1)]
        case "set":
            return sorted((_shown(value) for value in client.smembers(key)), key=str)
        case "zset":
            return [[_shown(member), repr(score)] for member, score in client.zrange(key, 0, -1, withscores=True)]
        case "stream":
            last = client.xinfo_stream(key)["last-generated-id"]
            entries = [
                [_shown(id), [[_shown(field), _shown(value)] for field, value in fields.items()]]
                for id, fields in client.xrange(key)
            ]
            return {"last": _shown(last), "entries": entries}
    raise ValueError(f"{key!r}: a dump of the type {kind} is not written yet")


def load_redis(text: str, client: Any) -> None:
    for shown, held in json.loads(text).items():
        key = _bytes(shown)
        _put(client, held["type"], key, held["value"])
        if held["ttl"] >= 0:
            client.pexpire(key, held["ttl"])


def _put(client: Any, kind: str, key: bytes, value: Any) -> None:
    match kind:
        case "string":
            client.set(key, _bytes(value))
        case "hash":
            client.hset(key, mapping={_bytes(field): _bytes(text) for field, text in value})
        case "list":
            client.rpush(key, *map(_bytes, value))
        case "set":
            client.sadd(key, *map(_bytes, value))
        case "zset":
            client.zadd(key, {_bytes(member): float(score) for member, score in value})
        case "stream":
            for id, fields in value["entries"]:
                client.xadd(key, {_bytes(field): _bytes(text) for field, text in fields}, id=_bytes(id))
            client.execute_command("XSETID", key, _bytes(value["last"]))


def _shown(value: bytes) -> str | dict[str, str]:
    """Text where it is text, else base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(shown: str | dict[str, str]) -> bytes:
    return shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"])
