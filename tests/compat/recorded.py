"""What the real Celery, RQ and arq wrote to Redis, recorded: `python -m tests.compat.recorded` records it anew."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from bench.peers import apart

HERE = Path(__file__).parent
SYSTEMS = ("celery", "rq", "arq")


def write(system: str, url: str) -> dict[str, str]:
    """Let the real system write its jobs; their ids, by what they are."""
    found = [str(apart.HOME / system)] if system != "rq" else []
    if found and (why := apart.missing(system)) is not None:
        raise AssertionError(why)
    ran = subprocess.run(
        [sys.executable, HERE / f"write_{system}.py", url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    ids: dict[str, str] = json.loads(ran.stdout)
    return ids


def dump(url: str) -> dict[str, Any]:
    """All keys of a database."""
    keys: dict[str, Any] = {}
    with redis.Redis.from_url(url) as client:
        for key in sorted(client.scan_iter()):
            kind = client.type(key).decode()
            read: Any = {
                "string": lambda key=key: client.get(key),
                "list": lambda key=key: client.lrange(key, 0, -1),
                "set": lambda key=key: sorted(client.smembers(key)),
                "hash": lambda key=key: [list(pair) for pair in client.hgetall(key).items()],
                "zset": lambda key=key: [list(pair) for pair in client.zrange(key, 0, -1, withscores=True)],
            }.get(kind, lambda key=key: client.dump(key))
            keys[_coded(key)] = {"type": kind, "value": _coded(read())}
    return keys


def load(url: str, keys: dict[str, Any]) -> None:
    """The same keys in another database."""
    with redis.Redis.from_url(url) as client:
        for coded, entry in keys.items():
            key, value = _decoded(coded), _decoded(entry["value"])
            match entry["type"]:
                case "string":
                    client.set(key, value)
                case "list":
                    client.rpush(key, *value)
                case "set":
                    client.sadd(key, *value)
                case "hash":
                    client.hset(key, mapping=dict(value))
                case _:
                    client.zadd(key, dict(value))


def recording(system: str) -> dict[str, Any]:
    """`ids` and `keys`."""
    recorded: dict[str, Any] = json.loads((HERE / "recorded" / f"{system}.json").read_text())
    return recorded


def _coded(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return "=" + value.decode("ascii")
        except UnicodeDecodeError:
            return "~" + base64.b64encode(value).decode()
    return [_coded(item) for item in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        return value[1:].encode() if value[0] == "=" else base64.b64decode(value[1:])
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    """Record all systems."""
    from tests.kit.redis import RedisServer

    for system in SYSTEMS:
        with RedisServer() as server:
            url = server.url()
            recorded = {"ids": write(system, url), "keys": dump(url)}
        (HERE / "recorded").mkdir(exist_ok=True)
        text = json.dumps(recorded, indent=1).replace(f"@{socket.gethostname()}", "@shop")
        (HERE / "recorded" / f"{system}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
