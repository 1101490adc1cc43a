"""Checks of annotations when a handler is defined, so that errors show before its first job runs."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, Union

import msgspec

from jobmill.errors import InvalidValue

_JSON = (dict, list, tuple, str, int, float, bool, types.NoneType)
#: msgspec does not know the constraints of these packages, and would ignore them.
_FOREIGN = ("pydantic", "pydantic_core", "annotated_types")
UNION_ADVICE = "put the union into a model, for example into pydantic.RootModel[Card | Bank]"
#: Types of pydantic that a model writes as asterisks.
_SECRETS = ("Secret", "SecretStr", "SecretBytes")


def check_constraints(fn: Callable[..., Any], name: str, kind: Any, default: Any) -> None:
    """Refuse a parameter with a constraint that would be ignored."""
    for part in (*_defaults([default]), *_parts(kind, set())):
        if _is_foreign(part) or _is_pydantic_dataclass(part):
            raise _ignored(fn, f"the parameter {name!r}", part)
    _check_secrets(fn, f"the parameter {name!r}", kind)


def _ignored(fn: Callable[..., Any], what: str, part: Any) -> InvalidValue:
    advice = "write for example Annotated[int, msgspec.Meta(gt=0)], or use a model"
    if getattr(part, "discriminator", None) is not None:
        advice = UNION_ADVICE
    return InvalidValue(
        "handler",
        f"constraints that can be checked for {what}",
        fn,
        f"{part!r} is checked by pydantic only within a pydantic model; {advice}",
    )


def check_result(fn: Callable[..., Any], kind: Any) -> None:
    """Refuse a return annotation whose values can never be stored, or with a constraint that would be ignored."""
    for part in filter(_is_foreign, _parts(kind, set())):
        raise _ignored(fn, "the result", part)
    _check_secrets(fn, "the result", kind)
    if not _is_storable(kind):
        raise InvalidValue(
            "handler",
            "a return annotation whose values can be stored as JSON",
            fn,
            f"{inspect.formatannotation(kind)} cannot; with keep_result=False the result is dropped on purpose",
        )


def _parts(kind: Any, seen: set[int]) -> Iterator[Any]:
    """All parts of an annotation: its arguments, metadata of Annotated, and annotations and constraints of fields."""
    if id(kind) in seen or hasattr(kind, "model_validate"):  # pydantic checks the fields of its models itself
        return
    seen.add(id(kind))
    yield kind
    if typing.get_origin(kind) is Literal or _is_pydantic_dataclass(kind):
        return
    for part in (*typing.get_args(kind), *_fields(kind)):
        yield from _parts(part, seen)


def _fields(kind: Any) -> list[Any]:
    is_record = dataclasses.is_dataclass(kind) or any(
        hasattr(kind, name) for name in ("__struct_fields__", "__attrs_attrs__", "__total__", "_fields")
    )
    if not is_record:
        return []
    fields = (*getattr(kind, "__dataclass_fields__", {}).values(), *getattr(kind, "__attrs_attrs__", ()))
    named = getattr(kind, "_field_defaults", {}).values()
    defaults = (*(field.default for field in fields), *getattr(kind, "__struct_defaults__", ()), *named)
    try:
        return [*_defaults(defaults), *typing.get_type_hints(kind, include_extras=True).values()]
    except (NameError, TypeError):  # msgspec will report this, with the name of the type
        return []


def _defaults(values: Iterable[Any]) -> list[Any]:
    """The defaults that are a `pydantic.Field(...)`."""
    return [value for value in values if _is_foreign(value) and type(value).__name__ == "FieldInfo"]


def _is_foreign(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] in _FOREIGN and not isinstance(part, type)


def _is_pydantic_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__")


def _check_secrets(fn: Callable[..., Any], what: str, kind: Any) -> None:
    """Refuse secrets of pydantic: a model writes them as asterisks, so that they would be lost."""
    for secret in _secrets(kind, set()):
        raise InvalidValue(
            "handler",
            f"no secrets of pydantic in {what}",
            fn,
            f"{secret} would be stored as asterisks; pass a reference and read the secret in the handler, "
            "or let a field_serializer return get_secret_value()",
        )


def _secrets(kind: Any, seen: set[int]) -> Iterator[str]:
    """The names of the secret types in an annotation, also in the fields of models."""
    args = typing.get_args(kind)
    if id(kind) in seen or any(map(_is_serializer, args)):
        return
    seen.add(id(kind))
    for one in getattr(typing.get_origin(kind) or kind, "__mro__", ()):
        if one.__module__ == "pydantic.types" and one.__name__ in _SECRETS:
            yield one.__name__
    for part in (*args, *_fields(kind), *_dumped_fields(kind)):
        yield from _secrets(part, seen)


def _dumped_fields(model: Any) -> list[Any]:
    """The annotations of the fields that a pydantic model writes without a serializer of the user."""
    dumps, config = getattr(model, "__pydantic_decorators__", None), getattr(model, "model_config", {})
    if dumps is None or dumps.model_serializers or config.get("json_encoders"):
        return []
    serialized = {name for one in dumps.field_serializers.values() for name in one.info.fields}
    return [
        field.annotation
        for name, field in getattr(model, "model_fields", {}).items()
        if not field.exclude and not serialized & {name, "*"} and not any(map(_is_serializer, field.metadata))
    ]


def _is_serializer(part: Any) -> bool:
    return _is_foreign(part) and type(part).__name__ in ("PlainSerializer", "WrapSerializer")


def _is_storable(kind: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _is_storable(args[0])
    if origin in (Union, types.UnionType):
        return any(_is_storable(one) for one in args if one is not types.NoneType)
    if origin in (dict, list, tuple):
        return all(_is_storable(one) for one in args if one is not Ellipsis)
    kind = origin or kind
    return _is_storable_class(kind) if isinstance(kind, type) else True


def _is_storable_class(kind: type) -> bool:
    if kind is object or issubclass(kind, _JSON) or inspect.isabstract(kind) or hasattr(kind, "model_dump"):
        return True
    if kind.__module__ == "builtins":
        return False
    if getattr(kind, "_is_protocol", False) or not isinstance(_info(kind), msgspec.inspect.CustomType):
        return True
    return any(_is_storable_class(one) for one in kind.__subclasses__())


def _info(kind: type) -> msgspec.inspect.Type | None:
    try:
        return msgspec.inspect.type_info(kind)
    except TypeError:  # msgspec can write values that it cannot read
        return None
