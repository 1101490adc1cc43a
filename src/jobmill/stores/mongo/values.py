"""Values as BSON has them: instants, payloads and ids, there and back."""

from __future__ import annotations

import base64
import os
import threading
import time
from typing import Any
from uuid import UUID

import bson
import msgspec
from bson import Binary, DBRef, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument

from jobmill.core.durations import to_datetime
from jobmill.core.payload import MIN_INT
from jobmill.errors import InvalidValue

#: Milliseconds in and out, of any year; a text that is no UTF-8 is read all the same.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
)
#: What a server takes as one document, less what claims and settlements add.
LARGEST = 16 * 1024 * 1024 - 16 * 1024
_MOST_INT = 2**63 - 1


def date(ms: int) -> DatetimeMS:
    """An instant as a document has it."""
    return DatetimeMS(ms)


def ms_of(value: Any) -> int | None:
    """The instant that a document has; None where it has none, or something else."""
    return int(value) if isinstance(value, DatetimeMS) else None


# ---------------------------------------------------------------------------------------------------- payloads


def data_of(payload_json: bytes) -> Any:
    """A payload as other programs find it in a document: plain values, not text."""
    return msgspec.json.decode(payload_json)


def packed(document: dict[str, Any]) -> RawBSONDocument:
    """A document as it goes over the wire; InvalidValue when MongoDB could not hold it."""
    try:
        raw = bson.encode(document, codec_options=CODEC)
    except OverflowError:
        most = f"integers from {MIN_INT} to {_MOST_INT} on MongoDB"
        raise InvalidValue("payload", most, document["data"], "pass larger ones as text") from None
    except (InvalidDocument, ValueError) as error:
        raise InvalidValue("payload", "what BSON can hold: no NUL in keys", document["data"], str(error)) from None
    if len(raw) > LARGEST:
        advice = "store the data elsewhere and pass a reference to it"
        raise InvalidValue("payload", f"a job of at most {LARGEST} bytes of BSON on MongoDB", len(raw), advice)
    return RawBSONDocument(raw, codec_options=_RAW)


_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def payload_of(data: Any) -> bytes:
    """JSON of what a document holds, whoever wrote it; TypeError for what has no meaning there (a regex, code)."""
    return _encode(data)


def _plain(value: Any) -> Any:
    """What JSON has no type for, as Node's JSON.stringify would write it."""
    match value:
        case Int64():
            return int(value)
        case DatetimeMS():
            ms = int(value)
            return to_datetime(ms).isoformat().replace("+00:00", "Z") if 0 <= ms < _YEAR_10000 else ms
        case ObjectId() | Decimal128():
            return str(value)
        case DBRef():
            return value.as_doc()
        case Binary() if value.subtype == 4:
            return str(value.as_uuid())
        case bytes():
            return base64.b64encode(value).decode()
        case UUID():
            return str(value)
    raise TypeError(f"a {type(value).__name__} is no JSON")


_YEAR_10000 = 253_402_300_800_000
_encode = msgspec.json.Encoder(enc_hook=_plain).encode


# ---------------------------------------------------------------------------------------------------- ids


class ObjectIds:
    """Makes ObjectIds that strictly increase within this process, within a second as well: jobs keep their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0
        self._number = 0
        self._process = os.urandom(5)
        os.register_at_fork(after_in_child=self._forget)

    def new(self) -> ObjectId:
        """A fresh one."""
        with self._lock:
            seconds = int(time.time())
            if seconds > self._seconds:
                self._seconds, self._number = seconds, 0
            elif self._number == 0xFFFFFF:
                self._seconds, self._number = self._seconds + 1, 0
            else:
                self._number += 1
            made = self._seconds.to_bytes(4, "big") + self._process + self._number.to_bytes(3, "big")
        return ObjectId(made)

    def _forget(self) -> None:
        # Another thread, which is not here, may have held it; and a child must not make its parent's ids.
        self._lock = threading.Lock()
        self._process = os.urandom(5)


new_object_id = ObjectIds().new


def object_id(id: str) -> ObjectId | None:
    """The ObjectId that an id is; None for an id of the caller's own."""
    return ObjectId(id) if len(id) == 24 and id == id.lower() and ObjectId.is_valid(id) else None


def claim_id(token: str) -> str:
    """A lease's token as Monque writes claim ids: in the form of a UUID."""
    try:
        return str(UUID(hex=token)) if len(token) == 32 else token
    except ValueError:
        return token
