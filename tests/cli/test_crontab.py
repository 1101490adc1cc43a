from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_worker import read_until

APP = """
import asyncio
import logging
import sys
from jobmill.crontab import Crontab, MemoryCrontab

store = MemoryCrontab()
number = 7

async def add():
    await store.add("ada")

async def greet(job):
    print("began", job.id)
    logging.getLogger("app").info("hello %s", job.id)
    try:
        await asyncio.sleep(0.2 if "quick" in sys.argv[-1] else 3600)
    except asyncio.CancelledError:
        logging.getLogger("app").info("cancelled %s", job.id)
        raise
    logging.getLogger("app").info("goodbye %s", job.id)

crontab = Crontab(store, on_document=greet, on_start=add, idle_delay="50ms")
"""


@pytest.fixture
def app(shell: Shell) -> Shell:
    shell.write_app(APP)
    shell.write_app(APP, "quick.py")
    return shell


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_crontab_runs_and_stops_gracefully(app: Shell, number: signal.Signals) -> None:
    crontab = app.start("crontab", "quick.py")
    said = read_until(crontab, "hello ada")
    assert "INFO    crontab quick.py: started" in said
    crontab.send_signal(number)
    _, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 0, rest
    assert rest.index("goodbye ada") < rest.index("crontab quick.py: stopped")


def test_a_second_signal_cancels_handlers(app: Shell) -> None:
    crontab = app.start("crontab", "app:crontab")
    read_until(crontab, "hello ada")
    crontab.send_signal(signal.SIGTERM)
    # Both at once might be taken for one.
    read_until(crontab, "crontab app:crontab: stopping")
    crontab.send_signal(signal.SIGTERM)
    _, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 0
    assert "cancelled ada" in rest


def test_the_shutdown_timeout_cancels_handlers(app: Shell) -> None:
    crontab = app.start("crontab", "app:crontab", "--shutdown-timeout", "10ms", "--quiet")
    # Nothing is logged before that; the handler itself says that it has begun.
    assert crontab.stdout is not None
    assert crontab.stdout.readline() == "began ada\n"
    crontab.send_signal(signal.SIGTERM)
    _, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 0
    assert rest.count("\n") == 1
    assert "1 handler did not end in time" in rest


def test_migrate_creates_the_index_first(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE mails (id INTEGER PRIMARY KEY, sleep_until TEXT)")
    connection.close()
    shell.write_app(
        "from jobmill.crontab import Crontab, SqliteCrontab\n"
        f"store = SqliteCrontab({str(file)!r}, 'mails', interval=None, repeat_until=None, auto_remove=None)\n"
        "crontab = Crontab(store, on_document=print, idle_delay='50ms')\n"
    )
    crontab = shell.start("crontab", "app", "--migrate")
    read_until(crontab, "started")
    crontab.send_signal(signal.SIGTERM)
    crontab.communicate(timeout=20)
    assert crontab.returncode == 0
    with sqlite3.connect(file) as connection:
        (indexes,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'index'").fetchone()
    connection.close()
    assert indexes == 1


OWN = """
from jobmill.crontab import Crontab

class Own:
    async def lock_next(self, lock_until):
        return None

    async def update(self, id, changes):
        pass

    async def remove(self, id):
        pass

    def migrate(self):
        print("migrated", flush=True)

    def close(self):
        print("closed", flush=True)

crontab = Crontab(Own(), on_document=print, idle_delay="50ms")
"""


def test_a_store_may_have_sync_methods(shell: Shell) -> None:
    shell.write_app(OWN)
    crontab = shell.start("crontab", "app", "--migrate")
    read_until(crontab, "started")
    crontab.send_signal(signal.SIGTERM)
    said, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 0, rest
    assert said == "migrated\nclosed\n"


def test_a_crontab_that_ends_by_an_error_fails(shell: Shell) -> None:
    shell.write_app(OWN.replace("return None", "return object()"))
    crontab = shell.start("crontab", "app")
    said, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 1, rest
    assert "stopped by an unexpected error" in rest
    assert said == "closed\n"


def test_a_crontab_that_its_handler_stops_succeeds(shell: Shell) -> None:
    shell.write_app(APP.replace('print("began", job.id)', "await crontab.stop(); return"))
    crontab = shell.start("crontab", "app")
    _, rest = crontab.communicate(timeout=20)
    assert crontab.returncode == 0, rest
    assert "crontab app: stopped" in rest


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["app:nothing"], "app has no 'nothing'; crontabs there: crontab"),
        (["app:number"], "app:number is of type int, expected a crontab: Crontab(store, on_document=handler)"),
        (["empty"], "there is no crontab in empty; expected one such as crontab = Crontab("),
        (["several"], "there are several crontabs in several: use several:a or several:b"),
        ([""], "expected module:crontab or file.py:crontab, such as app.py:crontab, got ''"),
        (["bare", "--migrate"], "the store of bare has no migrate(); create its index yourself"),
        (["app:crontab", "--shutdown-timeout", "soon"], "shutdown_timeout: expected a duration"),
    ],
)
def test_an_invalid_target_is_reported_in_one_line(
    app: Shell, args: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.chdir(app.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("app", "empty", "several", "bare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    app.write_app("", "empty.py")
    app.write_app(APP + "a, b = crontab, Crontab(store, on_document=greet)\ndel crontab", "several.py")
    app.write_app(
        APP + "class Bare:\n    lock_next = update = remove = add\ncrontab = Crontab(Bare(), on_document=greet)",
        "bare.py",
    )
    assert said in app.refused("crontab", *args, code=2)
    for name in ("app", "empty", "several", "bare"):
        sys.modules.pop(name, None)
