"""The verb diagnose: settings and the state of the server that endanger jobs. INFO says all of it."""

from __future__ import annotations

from collections.abc import Callable

from jobmill.core.findings import Finding, Level, StoreFacts, reachable
from jobmill.stores.common.response import response_ms
from jobmill.stores.redis.connection.pipelined import pack
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.queues import all_queues
from jobmill.stores.redis.read import depths
from jobmill.stores.redis.url import slot_of

# Of the memory that the server may use.
FULL, ALMOST_FULL = 0.95, 0.8

Info = dict[str, str]


async def diagnose(c: RedisContext) -> list[Finding]:
    """See the port. Of several servers, the one that is worst counts."""
    connections = c.client.here()
    servers: dict[str, Info] = {}
    answers_ms = 0.0
    for address in await connections.primaries():
        connection = await connections.at(address)
        answers_ms = max(answers_ms, await response_ms(lambda: connection.send(pack(("TIME",)))))  # noqa: B023
        reply: bytes = await connection.send(pack(("INFO",)))
        lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
        servers[str(address or c.url.text)] = {name: value for name, colon, value in lines if colon}
    checks: tuple[Callable[[Info], Finding], ...] = (_eviction, _memory, _append_only, _persistence)
    findings = [_worst({name: check(info) for name, info in servers.items()}) for check in checks]
    return [_facts(list(servers.values()), answers_ms), *findings, await _flow_slots(c)]


def _facts(servers: list[Info], answers_ms: float) -> Finding:
    """What all servers together have, and the slowest answer. Valkey names a version of Redis too."""
    product = "Valkey" if "valkey_version" in servers[0] else "Redis"
    versions = {info.get("valkey_version") or info.get("redis_version", "unknown") for info in servers}
    facts = StoreFacts(
        product=product,
        version=" and ".join(sorted(versions)),
        response_ms=answers_ms,
        size_bytes=sum(int(info.get("used_memory", 0)) for info in servers),
    )
    return reachable(facts)


def _worst(findings: dict[str, Finding]) -> Finding:
    levels: list[Level] = ["ok", "warning", "error"]
    server, finding = max(findings.items(), key=lambda one: levels.index(one[1].level))
    finding.evidence["server"] = server
    return finding


def _eviction(info: Info) -> Finding:
    policy, maximum = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    evidence = {"maxmemory_policy": policy, "maxmemory": maximum}
    if policy in ("noeviction", "unknown"):
        return Finding(check="eviction_policy", text=f"the eviction policy is {policy}", evidence=evidence)
    return Finding(
        check="eviction_policy",
        level="error" if maximum else "warning",
        text=f"the eviction policy is {policy}: the server may delete keys of jobs when its memory is full",
        evidence=evidence,
        remedy="CONFIG SET maxmemory-policy noeviction, also in the configuration file",
    )


def _memory(info: Info) -> Finding:
    used = int(info.get("used_memory", 0))
    maximum = int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0))
    share = used / maximum if maximum else 0.0
    text = f"{share:.0%} of the memory is used" if maximum else "the server does not say how much memory it may use"
    evidence = {"used_memory": used, "maximum": maximum}
    if share < ALMOST_FULL:
        return Finding(check="memory", text=text, evidence=evidence)
    return Finding(
        check="memory",
        level="error" if share >= FULL else "warning",
        text=text,
        evidence=evidence,
        remedy="raise maxmemory, or keep final jobs for a shorter time (keep_succeeded, keep_failed)",
    )


def _append_only(info: Info) -> Finding:
    if info.get("aof_enabled", "1") == "1":
        return Finding(check="append_only", text="each write goes to the append-only file")
    saved = info.get("rdb_last_save_time", "unknown")
    return Finding(
        check="append_only",
        level="warning",
        text="after a crash of the server, jobs that were enqueued or settled since its last snapshot are lost",
        evidence={"aof_enabled": False, "rdb_last_save_time": saved},
        remedy="CONFIG SET appendonly yes, also in the configuration file",
    )


def _persistence(info: Info) -> Finding:
    fields = ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
    evidence = {field: info[field] for field in fields if field in info}
    failed = [field for field, status in evidence.items() if status != "ok"]
    if not failed:
        return Finding(
            check="persistence", text="the server could write its data when it last tried", evidence=evidence
        )
    return Finding(
        check="persistence",
        level="error",
        text=f"the server could not write its data: {', '.join(failed)}",
        evidence=evidence,
        remedy="see the log of the server: the disk may be full, or its folder not writable",
    )


async def _flow_slots(c: RedisContext) -> Finding:
    """On a cluster, a flow cannot have queues on several nodes."""
    slots = {queue: slot_of(c.key(queue)) for queue in (await all_queues(c) if c.url.kind == "cluster" else ())}
    parents = (
        [depth.queue for depth in await depths(c, list(slots)) if depth.held] if len(set(slots.values())) > 1 else []
    )
    evidence = {"slots": len(set(slots.values())), "queues_with_parents": parents[:20]}
    if not parents:
        return Finding(check="flow_slots", text="no flow is spread over several slots", evidence=evidence)
    return Finding(
        check="flow_slots",
        level="warning",
        text="the queues are in several slots of the cluster: a flow works only among queues of one slot",
        evidence=evidence,
        remedy="use a prefix with a hash tag, such as {bull}, for queues that flows share",
    )
