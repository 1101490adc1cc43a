"""How an isolated process finds a handler: by the name of its module and of its function."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from msgspec import Struct

from jobmill.errors import InvalidValue
from jobmill.handlers.handler import Handler

#: The `__name__` of a main file that runs again in another process, so that `if __name__ == "__main__"` is false. It is
#: the name that multiprocessing uses.
MAIN_AGAIN = "__mp_main__"

#: True while a process imports a handler that it is to run. A worker must not start then.
finding = False


class Where(Struct, frozen=True, kw_only=True):
    """Where another process finds a handler."""

    module: str
    qualname: str
    name: str
    #: For a handler in `__main__`: the module that was run with `python -m`, or the file of the script.
    main_module: str | None = None
    main_file: str | None = None


def check_isolatable(handler: Handler[..., Any]) -> None:
    """Refuse a handler that a separate process could not find, before any job is claimed for it."""
    if finding:
        raise InvalidValue(
            "isolate",
            'a main file that starts its worker under `if __name__ == "__main__":`',
            handler,
            "the process of an isolated job runs that file again to find the handler",
        )
    where_is(handler)


def where_is(handler: Handler[..., Any]) -> Where:
    """Where another process finds the handler; InvalidValue if it cannot."""
    if os.name != "posix":
        raise InvalidValue("isolate", "a POSIX system (process groups and inherited pipes)", os.name)
    name = getattr(handler.fn, "__module__", None) or ""
    qualname = getattr(handler.fn, "__qualname__", None) or ""
    module = sys.modules.get(name)
    if module is None or _look_up(module, qualname, handler.name) is not handler:
        raise InvalidValue(
            "isolate",
            "a handler that another process can import",
            handler,
            f"define it at the top level of a module, not inside a function, and under one name in {name or 'it'}",
        )
    main_module = main_file = None
    if name == "__main__":
        # `python -m app` has a spec, `python app.py` a file. The spec of a directory or an archive is named __main__.
        spec_name = getattr(module.__spec__, "name", "__main__")
        main_module = None if spec_name == "__main__" else spec_name
        main_file = getattr(module, "__file__", None)
        if main_module is None and main_file is None:
            raise InvalidValue("isolate", "a handler in a file, which another process can import", handler)
    return Where(
        module=name,
        qualname=qualname,
        name=handler.name,
        main_module=main_module,
        main_file=None if main_file is None else os.path.abspath(main_file),
    )


def import_handler(where: Where) -> Handler[..., Any]:
    """The handler, in another process than the worker."""
    global finding  # noqa: PLW0603 - process-wide: code that is imported now must not start a worker
    finding = True
    try:
        module = _main_again(where) if where.module == "__main__" else importlib.import_module(where.module)
    finally:
        finding = False
    handler = _look_up(module, where.qualname, where.name)
    if handler is None:
        raise InvalidValue("isolate", f"a handler named {where.name} in {where.module}", where.qualname)
    return handler


def _look_up(module: ModuleType, qualname: str, name: str) -> Handler[..., Any] | None:
    """The handler in a module, by the name of its function, else by any name."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    for one in (found, *vars(module).values()):
        if isinstance(one, Handler) and one.name == name:
            return one
    return None


def _main_again(where: Where) -> ModuleType:
    """The worker's main module, which runs once more under another name, as multiprocessing does it."""
    import runpy

    if MAIN_AGAIN in sys.modules:
        return sys.modules[MAIN_AGAIN]
    if where.main_module is not None:
        content = runpy.run_module(where.main_module, run_name=MAIN_AGAIN, alter_sys=True)
    else:
        content = runpy.run_path(str(where.main_file), run_name=MAIN_AGAIN)
    module = ModuleType(MAIN_AGAIN)
    vars(module).update(content)
    sys.modules["__main__"] = sys.modules[MAIN_AGAIN] = module
    return module
