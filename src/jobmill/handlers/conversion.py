"""Conversion: values of handlers as plain JSON values, and stored JSON as the types of annotations."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from jobmill.core.payload import check_json
from jobmill.errors import InvalidValue
from jobmill.handlers.annotations import UNION_ADVICE, check_result
from jobmill.handlers.placeholders import FoundPlaceholder, Placeholder

# Messages of msgspec that contain a key or a value. A key may look like a path, so that no path is kept after it.
_KEYS = re.compile(r"^Object contains unknown field .*", re.DOTALL)
_VALUES = re.compile(r"^(Invalid (?:enum )?value) (?:.*( - at .*)|.*)", re.DOTALL)


def result_decoder(fn: Callable[..., Any], *, keep_result: bool = True) -> Callable[[Raw], Any]:
    """Decodes a stored result as the type of the function's return annotation; refuses one that cannot be stored."""
    kind = signature_of(fn)[1].get("return", Any) if keep_result else Any
    check_result(fn, kind)
    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=from_json)
    except TypeError:
        decoder = msgspec.json.Decoder()

    def decode(result: Raw) -> Any:
        try:
            return decoder.decode(result)
        except (ValueError, RecursionError) as error:
            expected, public = f"a value that fits the annotation {kind}", public_message(error)
            raise InvalidValue("result", expected, cut(result), str(error), public=public) from None

    return decode


def to_plain(value: object, field: str) -> Any:
    """Values of known types (dataclasses, Structs, datetimes, UUIDs, pydantic models …) as plain JSON values."""
    try:
        check_json(value, field)
    except InvalidValue as refused:
        return _converted(value, field, refused)
    return value


def _converted(value: object, field: str, refused: InvalidValue) -> Any:
    # Builtin values that are not JSON (NaN, bytes, sets, cycles …) stay refused. msgspec converts the types that it
    # knows, and the result is checked again.
    if type(refused.given).__module__ == "builtins":
        raise refused
    try:
        value = _converted_parts(value, {})
    except (TypeError, ValueError, RecursionError) as error:
        public = f"converting a value of type {type(refused.given).__name__} raised {type(error).__name__}"
        raise InvalidValue(refused.field, "a JSON value", refused.given, str(error), public=public) from None
    check_json(value, field)
    return value


def _converted_parts(value: Any, seen: dict[int, Any]) -> Any:
    """Convert all values whose types are not builtin, with msgspec. (Alone, msgspec would also convert sets.)"""
    kind = type(value)
    if kind is Placeholder:
        raise FoundPlaceholder
    if kind not in (dict, list, tuple):
        return value if kind.__module__ == "builtins" else _to_builtins(value)
    # Convert a value only once if it occurs several times. Otherwise lists that share one list could fill the memory.
    if id(value) not in seen:
        seen[id(value)] = (
            {_converted_parts(key, seen): _converted_parts(item, seen) for key, item in value.items()}
            if kind is dict
            else [_converted_parts(item, seen) for item in value]
        )
    return seen[id(value)]


def _to_builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_to_json, builtin_types=(bytes, bytearray, memoryview))


def _to_json(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def from_json(kind: type, value: Any) -> Any:
    """A value of a type that msgspec does not know, such as a model of pydantic."""
    if kind is object:
        return value
    if hasattr(kind, "model_validate"):
        try:
            # `model_dump` writes the names of fields. Without this, pydantic would look for their aliases only.
            return kind.model_validate(value, by_name=True) if _can_use_names(kind) else kind.model_validate(value)
        except ValueError as error:
            if not hasattr(error, "errors"):
                raise
            raise RefusedPart(*_model_messages(kind, error.errors(include_input=False))) from None
    text = f"cannot convert JSON to {kind.__qualname__}"
    raise RefusedPart(text, text)


@functools.cache
def _can_use_names(kind: Any) -> bool:
    """Whether a model takes the names of fields where they have aliases: pydantic 2.11 and newer."""
    return "by_name" in inspect.signature(kind.model_validate).parameters


class RefusedPart(ValueError):
    """A type refused a part of a payload. `public` says why without values and keys of the payload."""

    def __init__(self, message: str, public: str) -> None:
        super().__init__(message)
        self.public = public


def _model_messages(kind: Any, errors: list[dict[str, Any]]) -> tuple[str, str]:
    """The errors of a pydantic model, and the same with only names of its fields and messages without values."""
    try:
        names = {*_properties(kind.model_json_schema()), *_properties(kind.model_json_schema(by_alias=False))}
    except Exception:  # some types have no schema
        names = set(getattr(kind, "model_fields", ()))
    messages, public = [], []
    for one in errors:
        messages.append(f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}")
        where = ".".join(part if part in names else "[...]" for part in one["loc"]) or "value"
        # An error that is not of pydantic itself has no URL. A message that was made from values has a context.
        public.append(f"{where}: {one['msg'] if 'url' in one and 'ctx' not in one else one['type']}")
    return "; ".join(messages), "; ".join(public)


def public_message(error: Exception) -> str:
    """What is wrong with a payload, without its values and keys, which may be secrets: for `job.error` and logs."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not isinstance(error, msgspec.MsgspecError) or not frame.f_globals["__name__"].startswith("jobmill."):
        return type(error).__name__  # code of a type wrote the message
    text, cause = str(error), error.__cause__
    if cause is not None:
        # Code of a type raised the cause, and msgspec added the path.
        return (cause.public if isinstance(cause, RefusedPart) else type(cause).__name__) + text[len(str(cause)) :]
    return _VALUES.sub(r"\1\2", _KEYS.sub("Object contains an unknown field", text))


def with_advice(error: Exception) -> str:
    """Why msgspec refuses a type, and for a union what to do."""
    return f"{error}; {UNION_ADVICE}" if str(error).startswith("Type unions") else str(error)


def _properties(schema: Any) -> Iterator[str]:
    """The names of all fields in a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from _properties(part)


def signature_of(fn: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature of a function, and its annotations as types."""
    if isinstance(fn, type) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidValue("handler", "a function that returns, not a class and nothing that yields", fn)
    try:
        return inspect.signature(fn), typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise InvalidValue(
            "handler",
            "annotations that can be resolved when the handler is defined",
            fn,
            f"{error}; import the type at module level, not under TYPE_CHECKING",
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidValue("handler", "a function with a signature", fn, str(error)) from None


def cut(payload: Raw) -> str:
    """The beginning of JSON, as errors show it."""
    return bytes(payload)[:200].decode(errors="replace")
