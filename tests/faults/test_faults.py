"""Jobs are enqueued and worked while a fault happens: none is lost, none runs twice under a claim, workers resume."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.load import LONGER_THAN_THE_LEASE_S, loaded
from tests.faults.operations import LACKING, OPERATIONS, FaultyServer, Operation
from tests.faults.parameters import on_each_fault, on_each_store
from tests.helpers import until

pytestmark = pytest.mark.slow

#: Enough that enqueues, claims and settlements are among the answers that are lost, and each process is cut off.
ANSWERS = 20
CONNECTIONS = 30


@on_each_store
async def test_a_store_has_each_fault_or_says_why_not(server: FaultyServer) -> None:
    lacking = LACKING[server.store_name]
    assert set(server.faults).isdisjoint(lacking)
    assert set(server.faults) | set(lacking) == set(OPERATIONS)


@on_each_fault("kill")
async def test_a_server_that_is_killed_and_started_again(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        for _ in range(3):
            async with server.faults[operation]():
                pass
            await load.resumes()
            await load.moves()
        load.check_workers()


@on_each_fault("pause", "stall")
async def test_a_silence_that_is_longer_than_the_lease(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        await load.begin_long_job()
        async with server.faults[operation]():
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        await load.resumes()
        await load.moves()
        load.check_workers()
    assert load.claimed_again


@on_each_fault("refuse", "read_only")
async def test_refusals_for_longer_than_the_lease(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        await load.begin_long_job()
        async with server.faults[operation]():
            await load.is_noticed()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        await load.resumes()
        await load.moves()
        assert load.refused
        load.check_workers()
    assert load.claimed_again


@on_each_fault("full_disk")
async def test_a_disk_that_is_full_for_a_while(server: FaultyServer, operation: Operation) -> None:
    """No new jobs then. A store may still have room for the end of those that it has."""
    async with loaded(server) as load:
        async with server.faults[operation]():
            await until(lambda: load.refused, 30)
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        await load.resumes()
        await load.moves()
        load.check_workers()


@on_each_fault("cut", "terminate")
async def test_connections_that_end_again_and_again(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        before = server.connections
        async with server.faults[operation]():
            await until(lambda: server.connections >= before + CONNECTIONS, 60)
        await load.resumes()
        await load.moves()
        load.check_workers()


@on_each_fault("crowd")
async def test_connections_that_others_have(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        async with server.faults[operation]():
            await load.is_noticed()
        await load.resumes()
        await load.moves()
        assert load.refused
        load.check_workers()


@on_each_fault("drop_answer")
async def test_answers_that_are_lost_again_and_again(server: FaultyServer, operation: Operation) -> None:
    async with loaded(server) as load:
        async with server.faults[operation]():
            await until(lambda: server.dropped_answers >= ANSWERS, 30)
        await load.resumes()
        await load.moves()
        load.check_workers()


@on_each_fault("delay")
async def test_a_slow_network(server: FaultyServer, operation: Operation) -> None:
    """No call fails for it."""
    async with loaded(server) as load:
        async with server.faults[operation]():
            await load.resumes()
            await load.moves(40)
        assert load.refused == []
        load.check_workers()


@on_each_fault("vanish")
async def test_a_host_that_vanishes(server: FaultyServer, operation: Operation) -> None:
    """Nobody hears of it before the deadline of a call; leases end meanwhile, and new connections are made."""
    async with loaded(server) as load:
        async with server.faults[operation]():
            await load.is_noticed_or_survived()
        await load.resumes()
        await load.moves(100)
        load.check_workers()
