"""Reads data that others wrote, and that may be damaged or malicious: JSON, msgpack, compressed data and pickles.

Nothing here calls anything that the data names, and nothing takes much more memory than `MAX_BYTES`.
"""

from __future__ import annotations

import bz2
import io
import lzma
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from jobmill.compat.found import NotImportable
from jobmill.core.payload import MAX_BYTES

_MIB = 1024 * 1024
MAX_LZMA_BYTES = 100 * _MIB
TOO_LARGE = f"its payload is larger than {MAX_BYTES // _MIB} MB"
NEEDS_PICKLE = "it is a pickle: give --allow-pickle to read plain data out of pickles"

#: The only names that a pickle may use. All are immutable types that do nothing but hold a time.
_TYPES = {("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")}
#: The opcodes of plain data. Others import, build objects, or take memory that the data only claims to have.
# fmt: off
_OPCODES = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1",
    "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST",
    "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL",
    "STACK_GLOBAL", "REDUCE",
))
# fmt: on
#: The largest number of a memo entry: unpickling allocates a table of that length.
_MAX_MEMO = 1_000_000


def decompress(data: bytes, kind: str) -> bytes:
    """Decompress data of a kind that kombu knows; refused above `MAX_BYTES`, before it takes memory."""
    makers: dict[str, Any] = {
        "application/x-gzip": zlib.decompressobj,
        "application/x-bz2": bz2.BZ2Decompressor,
        # A header may claim a dictionary of gigabytes.
        "application/x-lzma": lambda: lzma.LZMADecompressor(memlimit=MAX_LZMA_BYTES),
    }
    if kind not in makers:
        raise NotImportable(f"its compression is not one of {', '.join(makers)}")
    try:
        reader = makers[kind]()
        text: bytes = reader.decompress(data, MAX_BYTES + 1)
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        raise NotImportable("damaged: its compressed data cannot be read") from None
    if len(text) > MAX_BYTES:
        raise NotImportable(TOO_LARGE)
    if not reader.eof:
        raise NotImportable("damaged: its compressed data ends too early")
    return text


def read_json(data: bytes | str, what: str = "its data") -> Any:
    """A JSON document."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
        raise NotImportable(f"damaged: {what} is not JSON") from None


def read_msgpack(data: bytes) -> Any:
    """A msgpack document."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, TypeError):
        raise NotImportable("damaged: its data is not msgpack") from None


def read_any(data: bytes, *, allow_pickle: bool) -> Any:
    """JSON, msgpack or a pickle, as the first byte says."""
    if len(data) > MAX_BYTES:
        raise NotImportable(TOO_LARGE)
    first = data[:1]
    if first in (b"{", b"["):
        return read_json(data)
    if first == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return read_pickle(data, allow_pickle=allow_pickle)
    if b"\x81" <= first <= b"\x9f" or first in (b"\xde", b"\xdf", b"\xdc", b"\xdd"):
        return read_msgpack(data)
    raise NotImportable("its serializer is unknown: not JSON, msgpack or pickle")


# ---------------------------------------------------------------------------------------------------- pickles


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _TYPES:
            raise NotImportable("its pickle holds an object that is not plain data")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise NotImportable("its pickle refers to an object outside of it")


def read_pickle(data: bytes, *, allow_pickle: bool) -> Any:
    """The plain data in a pickle: None, bools, numbers, texts, bytes, lists, tuples, dicts and datetimes.

    First its opcodes are checked without running any of them. So a pickle that names a function is refused before a
    single object of it exists.
    """
    if not allow_pickle:
        raise NotImportable(NEEDS_PICKLE)
    if len(data) > MAX_BYTES:
        raise NotImportable(TOO_LARGE)
    try:
        _check_opcodes(data)
        value = _PlainUnpickler(io.BytesIO(data)).load()
    except NotImportable:
        raise
    except Exception:  # a damaged pickle raises nearly anything
        raise NotImportable("damaged: its pickle cannot be read") from None
    _check_items(value)
    return value


def _check_opcodes(data: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _OPCODES:
            raise NotImportable("its pickle holds an object that is not plain data")
        if opcode.name == "GLOBAL" and tuple(str(argument).split(" ")) not in _TYPES:
            raise NotImportable("its pickle holds an object that is not plain data")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > _MAX_MEMO:
            raise NotImportable("damaged: its pickle claims too much memory")


def _check_items(value: Any) -> None:
    """Refuse a value with a cycle, or with lists that contain one list many times: as JSON it would not end.

    Each container is counted once, whatever the number of its owners, so that this takes no longer than the pickle.
    """
    counts: dict[int, int] = {}
    owners: set[int] = set()
    waiting = [(value, False)]
    while waiting:
        one, is_counted = waiting.pop()
        items = _items(one)
        if is_counted:
            counts[id(one)] = 1 + sum(counts.get(id(item), 1) for item in items)
            owners.discard(id(one))
            if 2 * counts[id(one)] > MAX_BYTES:
                raise NotImportable(TOO_LARGE)
        elif id(one) in owners:
            raise NotImportable("its pickle holds a list or dict that contains itself")
        elif items and id(one) not in counts:
            owners.add(id(one))
            waiting.append((one, True))
            waiting.extend((item, False) for item in items)


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple) else ()
