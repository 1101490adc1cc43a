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
    _check_models(fn, f"the parameter {name!r}", kind)


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
    _check_models(fn, "the result", kind)
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


def _check_models(fn: Callable[..., Any], what: str, kind: Any) -> None:
    """Refuse models of pydantic that would be read back with other values, and secrets outside of models."""
    for part in _dumped_parts(kind, set()):
        if secret := _secret(part):
            raise InvalidValue(
                "handler",
                f"no secrets of pydantic in {what}",
                fn,
                f"{secret} would be stored as asterisks; pass a reference and read the secret in the handler, "
                "or let a field_serializer return get_secret_value()",
            )
        for field, alias in _ambiguous(part):
            raise InvalidValue(
                "handler",
                f"no alias in {what} that is the name of another field",
                fn,
                f"{part.__name__}.{field} has the alias {alias!r}; rename one of them, or set serialize_by_alias=True",
            )


def _dumped_parts(kind: Any, seen: set[int]) -> Iterator[Any]:
    """All parts of an annotation, also in models of pydantic, that are written without a serializer of the user."""
    args = typing.get_args(kind)
    if id(kind) in seen or any(map(_is_serializer, args)):
        return
    seen.add(id(kind))
    yield kind
    for part in (*args, *_fields(kind), *_dumped_fields(kind)):
        yield from _dumped_parts(part, seen)


def _secret(kind: Any) -> str | None:
    """The name of a secret type, which a model writes as asterisks."""
    bases = getattr(typing.get_origin(kind) or kind, "__mro__", ())
    names = (one.__name__ for one in bases if one.__module__ == "pydantic.types" and one.__name__ in _SECRETS)
    return next(names, None)


def _ambiguous(model: Any) -> Iterator[tuple[str, str]]:
    """The fields of a model that would get the value of another field, because their alias is its name."""
    if getattr(model, "__pydantic_decorators__", None) is None or _config(model).get("serialize_by_alias"):
        return
    fields = getattr(model, "model_fields", {})
    for name, field in fields.items():
        for alias in getattr(field.validation_alias, "choices", (field.validation_alias,)):
            if alias == name:
                break
            if isinstance(alias, str) and alias in fields:
                yield name, alias


def _dumped_fields(model: Any) -> list[Any]:
    """The annotations of the fields that a pydantic model writes without a serializer of the user."""
    dumps = getattr(model, "__pydantic_decorators__", None)
    if dumps is None or dumps.model_serializers or _config(model).get("json_encoders"):
        return []
    serialized = {name for one in dumps.field_serializers.values() for name in one.info.fields}
    return [
        field.annotation
        for name, field in getattr(model, "model_fields", {}).items()
        if not field.exclude and not serialized & {name, "*"} and not any(map(_is_serializer, field.metadata))
    ]


def _config(model: Any) -> Any:
    return getattr(model, "model_config", {})


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
