"""Targets: finds the client or the crontab that `module:jobs` or `app.py:jobs` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jobmill.cli.runner import Unusable

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.crontab import Crontab

T = TypeVar("T")

#: Where our own files are.
_JOBMILL = str(Path(__file__).parents[1]) + os.sep


def use_url(url: str | None) -> None:
    """A module that calls `connect()` without a URL gets this one, also in child processes."""
    if url is not None:
        os.environ["JOBMILL_URL"] = url


def is_url_given() -> bool:
    """Whether --url is on the command line. A module may override the URL of the environment."""
    return click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE


def load_client(target: str, *, checks_url: bool = False, needs_handlers: bool = True) -> Client:
    """Import the module, with the working directory on the path, and return its client."""
    from jobmill.client.client import Client

    client = _load(target, Client, "jobs = jobmill.connect()")
    if needs_handlers and not client.handlers:
        where = target.rpartition(":")[0] if _has_attribute(target) else target
        raise Unusable(f"{target} has no handlers; import the modules that define them in {where}")
    if checks_url:
        _check_url(client, target)
    return client


def _check_url(client: Client, target: str) -> None:
    """Refuse a --url that the module does not use: the command would work on another store."""
    from jobmill.stores import store_for

    given = store_for(os.environ["JOBMILL_URL"])
    if (given.name, given.address) != (client.store.name, client.store.address):
        advice = "call connect() without a URL in that module"
        raise Unusable(f"{target} connects to another store, so --url has no effect; {advice}")


def load_crontab(target: str) -> Crontab:
    """Import the module, and return its crontab."""
    from jobmill.crontab import Crontab

    return _load(target, Crontab, "crontab = Crontab(store, on_document=handler)")


def _load(target: str, kind: type[T], example: str) -> T:
    """The object of this type that a target names; messages show an example of its definition."""
    where, _, attribute = target.rpartition(":") if _has_attribute(target) else (target, "", "")
    name = kind.__name__.lower()
    if not where or (where.startswith(".") and not where.endswith(".py")):
        shown = f"app.py:{example.partition(' ')[0]}"
        raise Unusable(f"expected module:{name} or file.py:{name}, such as {shown}, got {target!r}")
    module = _import(where)
    known = {key: value for key, value in vars(module).items() if isinstance(value, kind)}
    if attribute:
        found: Any = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise Unusable(f"{where} has no {attribute!r}; {name}s there: {', '.join(known) or 'none'}")
            found = getattr(found, part)
        if not isinstance(found, kind):
            expected = f"a {name}: {example.partition(' = ')[2]}"
            raise Unusable(f"{where}:{attribute} is of type {type(found).__name__}, expected {expected}")
        return found
    if not known:
        raise Unusable(f"there is no {name} in {where}; expected one such as {example}")
    if len({id(one) for one in known.values()}) > 1:
        named = " or ".join(f"{where}:{key}" for key in known)
        raise Unusable(f"there are several {name}s in {where}: use {named}")
    return next(iter(known.values()))


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
    """The error with its position in the user's code: the last frame that is neither ours nor importlib's."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
    own = [one for one in frames if not one.filename.startswith(_JOBMILL)]
    position = f" ({os.path.relpath(own[-1].filename)}:{own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        position = f" ({error.filename}:{error.lineno})"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return Unusable(f"{where} cannot be imported: {type(error).__name__}: {message}{position}")
