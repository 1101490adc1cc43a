"""The HTTP API as an OpenAPI document, made from the types of the screens and the acts."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import msgspec
from starlette.responses import Response

from jobmill._version import __version__
from jobmill.dashboard.acts import ACTS
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.problems import Problem
from jobmill.dashboard.screens import SCREENS, Screen


def openapi(base: str) -> dict[str, Any]:
    """The whole document. `base` is the path at which the dashboard is mounted."""
    types = [*(data_type(screen) for screen in SCREENS), Done, Problem]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    paths = {
        re.sub(r"\{(\w+):\w+\}", r"{\1}", screen.path): {"get": _get(screen, by_type[data_type(screen)])}
        for screen in SCREENS
    }
    paths |= {f"/acts/{name}": {"post": _post(name, by_type[Done])} for name in ACTS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Jobmill dashboard", "version": __version__},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def data_type(screen: Screen) -> Any:
    """The Struct that a screen returns; some may also answer with a redirection."""
    returned = typing.get_type_hints(screen.read)["return"]
    options = [one for one in typing.get_args(returned) or (returned,) if not issubclass(one, Response)]
    return options[0]


def _get(screen: Screen, schema: Any) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)(?::\w+)?\}", screen.path)
    return {
        "summary": inspect.getdoc(screen.read),
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {"200": _json("The data of the page", schema), "default": _problem()},
    }


def _post(name: str, schema: Any) -> dict[str, Any]:
    permission, act = ACTS[name]
    return {
        "summary": inspect.getdoc(act),
        # An act without one says in its summary what it needs.
        "description": f"Needs the permission `{permission}`." if permission else "",
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": _json("What was done", schema), "default": _problem()},
    }


def _json(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _problem() -> dict[str, Any]:
    return _json("Why there is no answer", {"$ref": "#/components/schemas/Problem"})
