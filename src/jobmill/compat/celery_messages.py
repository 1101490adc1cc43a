"""Reads Celery's messages as kombu writes them to Redis: task protocols 1 and 2."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from msgspec import structs

from jobmill.compat.found import (
    ForeignJob,
    NotImportable,
    expect,
    expect_arguments,
    expect_instant,
    seconds_to_ms,
)
from jobmill.compat.plain import TOO_LARGE, decompress, read_json, read_msgpack, read_pickle
from jobmill.compat.tagged import from_tagged
from jobmill.core.payload import MAX_BYTES
from jobmill.errors import InvalidValue

JSON, MSGPACK, PICKLE = "application/json", "application/x-msgpack", "application/x-python-serialize"
#: Parts of a workflow. Without them, an imported job would run alone, and what comes after it would be lost.
WORKFLOW = ("callbacks", "errbacks", "chain", "chord")


def read_message(raw: bytes, queue: str, *, now_ms: int, allow_pickle: bool = False) -> ForeignJob:
    """One entry of a queue's list."""
    return _read(read_json(raw, "the message"), queue, now_ms, allow_pickle)


def read_unacked(
    raw: bytes, queues: dict[tuple[str, str], str], *, now_ms: int, allow_pickle: bool = False
) -> ForeignJob:
    """One value of the hash `unacked`; `queues` has the queue of each exchange and routing key."""
    entry = read_json(raw, "the message")
    if not isinstance(entry, list) or len(entry) != 3:
        raise NotImportable("damaged: an unacknowledged message is not a list of three")
    exchange, routing_key = (str(part or "") for part in entry[1:])
    found = _read(entry[0], queues.get((exchange, routing_key), routing_key), now_ms, allow_pickle)
    return structs.replace(found, unacknowledged=True)


def _read(message: Any, queue: str, now_ms: int, allow_pickle: bool) -> ForeignJob:
    expect(message, dict, "the message")
    headers = expect(message.get("headers") or {}, dict, "headers")
    id = headers.get("id")
    try:
        if "task" in headers:
            args, kwargs, embedded = _three(_body(message, headers, allow_pickle))
            return _found(message, {**expect(embedded, dict, "the body"), **headers}, args, kwargs, queue, now_ms)
        body = expect(_body(message, headers, allow_pickle), dict, "the body")
        id = body.get("id")
        return _found(message, body, body.get("args", []), body.get("kwargs", {}), queue, now_ms)
    except NotImportable as error:
        raise NotImportable(error.reason, id if isinstance(id, str) else "?") from None
    except InvalidValue as error:
        raise NotImportable(f"damaged: {error.without_value()}", id if isinstance(id, str) else "?") from None


def _three(body: Any) -> tuple[Any, Any, Any]:
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise NotImportable("damaged: the body is not a list of args, kwargs and options")
    return body[0], body[1], body[2] or {}


def _body(message: dict[str, Any], headers: dict[str, Any], allow_pickle: bool) -> Any:
    text = expect(message.get("body"), str, "the body")
    properties = expect(message.get("properties") or {}, dict, "properties")
    if len(text) > 2 * MAX_BYTES:
        raise NotImportable(TOO_LARGE)
    encoding = properties.get("body_encoding")
    if encoding not in ("base64", None):
        raise NotImportable("its body_encoding is not base64")
    try:
        data = base64.b64decode(text, validate=True) if encoding else text.encode()
    except (binascii.Error, ValueError):
        raise NotImportable("damaged: the body is not base64") from None
    if headers.get("compression"):
        data = decompress(data, expect(headers["compression"], str, "compression"))
    if len(data) > MAX_BYTES:
        raise NotImportable(TOO_LARGE)
    kind = message.get("content-type")
    if kind == PICKLE:
        return read_pickle(data, allow_pickle=allow_pickle)
    if kind not in (JSON, MSGPACK):
        raise NotImportable("its serializer is not json, msgpack or pickle")
    return from_tagged(read_json(data, "the body") if kind == JSON else read_msgpack(data))


def _found(
    message: dict[str, Any], about: dict[str, Any], args: Any, kwargs: Any, queue: str, now_ms: int
) -> ForeignJob:
    given, named = expect_arguments(args, kwargs)
    for part in WORKFLOW:
        if about.get(part):
            raise NotImportable(f"it is part of a workflow ({part}), and the rest would be lost")
    if about.get("group") or about.get("taskset"):
        raise NotImportable("it is part of a workflow (group), and the rest would be lost")
    expires_ms = expect_instant(about.get("expires"), "expires")
    if expires_ms is not None and expires_ms <= now_ms:
        raise NotImportable("it has expired")
    limit = (expect(about.get("timelimit") or [None], (list, tuple), "timelimit") or [None])[0]
    properties = message.get("properties") or {}
    return ForeignJob(
        system="celery",
        id=expect(about.get("id"), str, "id"),
        name=expect(about.get("task"), str, "task"),
        queue=queue,
        args=given,
        kwargs=named,
        due_ms=expect_instant(about.get("eta"), "eta"),
        priority=expect(properties.get("priority") or 0, int, "priority"),
        timeout_ms=None if limit is None else seconds_to_ms(limit, "timelimit"),
        expires_ms=expires_ms,
    )
