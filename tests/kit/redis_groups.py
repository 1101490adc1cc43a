"""Several Redis servers that belong together: a cluster, and a primary with a replica that sentinels watch.

with RedisCluster(replicas=1) as cluster:
    asyncio.run(use(cluster.url()))
    dead = cluster.primary_of("{mail}")
    dead.kill()
    cluster.await_failover(dead)
"""

from __future__ import annotations

import contextlib
import signal
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from redis.crc import key_slot

from tests.kit.processes import Group, Server, wait_until
from tests.kit.redis import Installation, RedisServer

SLOTS = 16_384
PRIMARIES = 3
#: A node of a cluster listens at its port and at this much above, for the others.
BUS = 10_000
#: Who is silent for so long is taken for dead: short enough for tests, long enough for a busy machine.
DEAD_AFTER_MS = 1_000
#: Where nobody can take over, a node that had no processor for a second must not put the cluster out of service.
NEVER_DEAD_MS = 60_000

#: What the sentinels call the primary that they watch.
SERVICE = "jobmill"

#: A replica is sent its primary's data at once, instead of after waiting 5 s for others that might want it too.
PROMPT = {"repl-diskless-sync-delay": "0"}


class RedisCluster(Group):
    """Three primaries with a third of the slots each, and as many replicas of each as asked for."""

    def __init__(self, installation: Installation | None = None, *, replicas: int = 0) -> None:
        dead_after_ms = DEAD_AFTER_MS if replicas else NEVER_DEAD_MS
        self.nodes = [_node(installation, dead_after_ms) for _ in range(PRIMARIES * (1 + replicas))]
        self.servers = self.nodes

    def url(self, **options: str) -> str:
        """Where its nodes are; the options are the URL's query."""
        return f"redis+cluster://{_hosts(self.nodes)}{_query(options)}"

    @contextlib.contextmanager
    def prefix(self) -> Iterator[str]:
        """A prefix of its own that is a hash tag, without keys; at the end of the block the cluster is emptied."""
        try:
            yield self.url(prefix=f"{{t{uuid.uuid4().hex[:12]}}}")
        finally:
            for node in self.primaries():
                node.ask("FLUSHALL")

    def primaries(self) -> list[RedisServer]:
        """Those that serve slots now."""
        ports = {port for _, _, port in self._slots()}
        return [node for node in self.nodes if node.port in ports]

    def primary_of(self, key: str) -> RedisServer:
        """The node that serves this key now."""
        slot = key_slot(key.encode())
        port = next(port for first, last, port in self._slots() if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def await_failover(self, dead: RedisServer) -> None:
        """Block until others serve the slots of a node that was killed, and all who run know."""

        def is_over() -> bool:
            known = [{port for _, _, port in _slots(node)} for node in self._running()]
            return self._is_whole() and all(dead.port not in ports for ports in known)

        wait_until(is_over, f"the cluster's failover from the node at port {dead.port}")

    def start(self) -> None:
        """Start all and make them a cluster."""
        super().start()
        bounds = [SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < PRIMARIES:
                node.ask("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait_until(lambda: all(_knows(node, len(self.nodes)) for node in self.nodes), "the nodes know each other")
        for number, node in enumerate(self.nodes[PRIMARIES:]):
            node.ask("CLUSTER", "REPLICATE", self.nodes[number % PRIMARIES].ask("CLUSTER", "MYID"))
        wait_until(self._is_whole, "the cluster serves all slots")
        wait_until(lambda: all(map(_is_following, self.nodes[PRIMARIES:])), "the replicas follow")

    def _is_whole(self) -> bool:
        return all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in self._running())

    def _running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running]

    def _slots(self) -> list[tuple[int, int, int]]:
        return _slots(self._running()[0])


def _hosts(servers: Sequence[Server]) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _node(installation: Installation | None, dead_after_ms: int) -> RedisServer:
    settings = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(dead_after_ms),
        "cluster-replica-validity-factor": "0",  # a replica may take over, however long its primary is gone
        **PROMPT,
    }
    while True:
        node = RedisServer(installation, settings=settings)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", node.port + BUS))
            return node
        node.close()


def _knows(node: RedisServer, count: int) -> bool:
    """Whether a node has been introduced to all; those that it only heard of cannot be replicated yet."""
    nodes: bytes = node.ask("CLUSTER", "NODES")
    return len(nodes.splitlines()) == count and b"handshake" not in nodes


def _slots(node: RedisServer) -> list[tuple[int, int, int]]:
    """First, last, and the port of the primary that serves them, as a node sees it."""
    return [(first, last, primary[1]) for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS")]


def _is_following(replica: RedisServer) -> bool:
    with replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


class Sentinel(RedisServer):
    """One of those that watch a primary, and agree on which replica takes over."""

    stop_signal = signal.SIGKILL  # what it knows it has written down

    def __init__(self, primary: RedisServer, quorum: int) -> None:
        super().__init__(primary.installation)
        self._file = self.directory / "sentinel.conf"
        self._lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DEAD_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} {10 * DEAD_AFTER_MS}",
        ]

    def command(self) -> Sequence[str | Path]:
        """With a file that it goes on writing."""
        if not self._file.exists():
            self._file.write_text("\n".join(self._lines) + "\n")
            self._file.chmod(0o666)  # its user may be another
        return [super().command()[0], self._file, "--sentinel"]

    def about(self) -> dict[str, Any]:
        """What it knows of the primary."""
        answer: dict[str, Any] = self.ask("SENTINEL MASTER", SERVICE)  # in one word: redis-py knows it by that
        return answer


class RedisSentinel(Group):
    """A primary, a replica, and so many sentinels; all data are in the replica when it takes over, or soon after."""

    def __init__(self, installation: Installation | None = None, *, sentinels: int = 1) -> None:
        self.pair = [RedisServer(installation, settings=PROMPT) for _ in range(2)]
        self.sentinels = [Sentinel(self.pair[0], sentinels // 2 + 1) for _ in range(sentinels)]
        self.servers = [*self.pair, *self.sentinels]

    def url(self, **options: str) -> str:
        """Where the sentinels are; the options are the URL's query."""
        return f"redis+sentinel://{_hosts(self.sentinels)}/{SERVICE}/0{_query(options)}"

    def primary(self) -> RedisServer:
        """The server that the sentinels name now."""
        running = next(sentinel for sentinel in self.sentinels if sentinel.is_running)
        port = running.about()["port"]
        return next(server for server in self.pair if server.port == port)

    def await_failover(self, dead: RedisServer) -> None:
        """Block until the other server of the pair is the primary, and all sentinels that run say so."""
        other = next(server for server in self.pair if server is not dead)

        def is_over() -> bool:
            named = {sentinel.about()["port"] for sentinel in self.sentinels if sentinel.is_running}
            return named == {other.port} and other.ask("ROLE")[0] == b"master"

        wait_until(is_over, f"the sentinels' failover from the server at port {dead.port}")

    def start(self) -> None:
        """Start all and block until the sentinels know of the replica and of each other."""
        for server in self.pair:
            server.start()
        self.pair[1].ask("REPLICAOF", "127.0.0.1", self.pair[0].port)
        wait_until(lambda: _is_following(self.pair[1]), "the replica follows")
        for sentinel in self.sentinels:  # late: they look for replicas at once, and then every 10 s
            sentinel.start()
        wait_until(lambda: all(map(self._is_informed, self.sentinels)), "the sentinels know of all")

    def _is_informed(self, sentinel: Sentinel) -> bool:
        about = sentinel.about()
        return bool(about["num-slaves"] == 1 and about["num-other-sentinels"] == len(self.sentinels) - 1)
