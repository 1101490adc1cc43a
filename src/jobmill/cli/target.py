"""Targets: finds the client or the crontab that `module:jobs` or `app.py:jobs` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmill.cli.runner import Unusable

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.crontab import Crontab


class TargetKind(NamedTuple):
    """A client or a crontab."""

    name: str
    home: str
    example: str

    @property
    def type(self) -> type:
        """The class, imported only when a command runs."""
        found: type = getattr(importlib.import_module(self.home), self.name.capitalize())
        return found


CLIENT = TargetKind("client", "jobmill.client.client", "jobs = jobmill.connect()")
CRONTAB = TargetKind("crontab", "jobmill.crontab", "crontab = Crontab(store, on_document=handler)")


def load_client(target: str) -> Client:
    """Import the module, with the working directory on the path, and return its client."""
    client: Client = _load(target, CLIENT)
    if not client.handlers:
        where = target.rpartition(":")[0] if _has_attribute(target) else target
        raise Unusable(f"{target} has no handlers; import the modules that define them in {where}")
    return client


def load_crontab(target: str) -> Crontab:
    """Import the module, and return its crontab."""
    crontab: Crontab = _load(target, CRONTAB)
    return crontab


def _load(target: str, kind: TargetKind) -> Any:
    where, _, attribute = target.rpartition(":") if _has_attribute(target) else (target, "", "")
    if not where or (where.startswith(".") and not where.endswith(".py")):
        example = f"app.py:{kind.example.partition(' ')[0]}"
        raise Unusable(f"expected module:{kind.name} or file.py:{kind.name}, such as {example}, got {target!r}")
    module = _import(where)
    return _attribute(module, where, attribute, kind) if attribute else _only_one(module, where, kind)


def _has_attribute(target: str) -> bool:
    # C:\app.py has a colon too.
    _, colon, attribute = target.rpartition(":")
    return bool(colon) and all(part.isidentifier() for part in attribute.split("."))


# ---------------------------------------------------------------------------------------------------- the module


def _import(where: str) -> ModuleType:
    name, file = (where, None) if not where.endswith(".py") else _name_of_file(Path(where))
    if file is None:
        _on_path(Path.cwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Unusable(f"there is no module {name!r} in {Path.cwd()} or on the Python path") from error
        raise _import_error(where, error) from error
    except Exception as error:
        raise _import_error(where, error) from error
    found = getattr(module, "__file__", None)
    if file is not None and (found is None or Path(found).resolve() != file):
        raise Unusable(f"{where} cannot be imported: the name {name!r} is taken by {found or 'Python itself'}")
    return module


def _name_of_file(path: Path) -> tuple[str, Path]:
    """The module name of a file, so that other processes can import it too. Its package's root goes on the path."""
    file = path.resolve()
    if not file.is_file():
        raise Unusable(f"there is no file {path}")
    parts = [file.stem] if file.stem != "__init__" else []
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    _on_path(folder)
    return ".".join(parts), file


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_error(where: str, error: Exception) -> Unusable:
    """The error with its position in the user's code: the last frame outside of Python's import machinery."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
    own = [one for one in frames if one.filename != __file__]
    position = f" ({os.path.relpath(own[-1].filename)}:{own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        position = f" ({error.filename}:{error.lineno})"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return Unusable(f"{where} cannot be imported: {type(error).__name__}: {message}{position}")


# ---------------------------------------------------------------------------------------------------- the object


def _all(module: ModuleType, kind: TargetKind) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, kind.type)}


def _attribute(module: ModuleType, where: str, attribute: str, kind: TargetKind) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(_all(module, kind)) or "none"
            raise Unusable(f"{where} has no {attribute!r}; {kind.name}s there: {known}")
        found = getattr(found, part)
    if not isinstance(found, kind.type):
        expected = f"a {kind.name}: {kind.example.partition(' = ')[2]}"
        raise Unusable(f"{where}:{attribute} is of type {type(found).__name__}, expected {expected}")
    return found


def _only_one(module: ModuleType, where: str, kind: TargetKind) -> Any:
    found = _all(module, kind)
    if len({id(one) for one in found.values()}) == 1:
        return next(iter(found.values()))
    if not found:
        raise Unusable(f"there is no {kind.name} in {where}; expected one such as {kind.example}")
    named = " or ".join(f"{where}:{name}" for name in found)
    raise Unusable(f"there are several {kind.name}s in {where}: use {named}")
