"""The client with asyncio, on kubernetes_asyncio, against the fake API server behind HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_asyncio import client as kubernetes_client

import lessor
from lessor import _clock, aio
from tests.fake import CONFIG_MAPS, LEASES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.server import Server


def run(server: Server, test: Callable[[aio.LeaseClient], Coroutine[Any, Any, None]]) -> None:
    async def with_client() -> None:
        configuration = kubernetes_client.Configuration(host=server.url)
        configuration.api_key = {"BearerToken": "Bearer secret"}
        async with kubernetes_client.ApiClient(configuration) as api_client:
            await test(aio.LeaseClient(api_client=api_client))
            for _ in range(50):
                if not own_tasks():
                    break
                await asyncio.sleep(0.05)
            assert not own_tasks()

    asyncio.run(with_client())


def own_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lessor")]


async def wait(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        await asyncio.sleep(0.02)


def test_a_lease_is_held_for_a_block_and_revoked_at_its_end(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        async with client.lease("web-1", ttl=2, holder="web-1") as held:
            assert await held.guard(asyncio.sleep(3, "done")) == "done"
            held.check()
            with pytest.raises(lessor.ExistsError):
                await client.grant("web-1", 60)
        assert server.api.get(LEASES, "web-1") is None
        assert server.authorizations == {"Bearer secret"}

    run(server, test)


def test_guarded_work_is_cancelled_when_the_lease_is_lost(server: Server) -> None:
    finished = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            finished.append(True)

    async def test(client: aio.LeaseClient) -> None:
        async def block() -> None:
            async with client.lease("web-1", ttl=60) as held:
                asyncio.get_running_loop().call_later(0.5, server.revoke, "web-1")
                await held.guard(work())

        with pytest.raises(lessor.LeaseLostError, match="grant a new one"):
            await block()
        assert finished

    run(server, test)


def test_a_server_that_hangs_loses_the_lease_before_its_deadline(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        held = await client.grant("web-1", 3)
        held.keep_alive(watch=False)
        server.hang = True
        await asyncio.wait_for(held.lost.wait(), 10)
        assert _clock.now() < held.deadline
        assert held.loss is not None
        assert held.loss.reason is lessor.LossReason.NOT_RENEWED
        server.hang = False

    run(server, test)


def test_a_key_is_registered_attached_and_detached(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        await client.register("web-1", "endpoints", "web-1", "10.0.0.17:8080")
        stored = server.api.get(CONFIG_MAPS, "endpoints")
        assert stored is not None
        assert stored["metadata"]["annotations"] == {"key.lessor.dev/web-1": "web-1"}
        assert (await client.attach("web-2", lessor.config_map("endpoints"), ["web-1"])).moved_from == {"web-1"}
        assert await client.detach("web-2", lessor.config_map("endpoints"))

    run(server, test)


def test_a_thousand_leases_are_kept_alive_by_one_task_and_one_watch(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        held = []
        for number in range(1000):
            server.make_lease(f"lease-{number}", 60)
            held.append(await client.renew(f"lease-{number}"))
            held[-1].keep_alive()
        await wait(lambda: server.watches == 1)
        assert len(own_tasks()) <= 2
        assert all(lease.is_alive() for lease in held)
        server.revoke("lease-500")
        await asyncio.wait_for(held[500].lost.wait(), 5)
        assert sum(lease.lost.is_set() for lease in held) == 1
        for lease in held:
            lease.stop()
        await wait(lambda: server.watches == 0)

    run(server, test)


def test_two_sessions_exclude_one_another(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        async with aio.session(client, 60, holder="one") as one, aio.session(client, 60, holder="two") as two:
            first, second = aio.Mutex(one, "reports"), aio.Mutex(two, "reports")
            async with first:
                assert first.held()
                with pytest.raises(lessor.LockedError, match="one"):
                    await second.try_lock()
                with pytest.raises(TimeoutError):
                    await second.lock(timeout=0.3)
                token = first.token
                waiting = asyncio.create_task(second.lock())
                await asyncio.sleep(0.3)
                assert not waiting.done()
            await asyncio.wait_for(waiting, 5)
            assert second.token > token
            await second.unlock()

    run(server, test)


def test_a_cancelled_wait_leaves_no_lock_behind(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        async with aio.session(client, 60) as session:
            server.hang = True
            waiting = asyncio.create_task(aio.Mutex(session, "reports").lock())
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            # The server goes on with what it was sent.
            server.hang = False
            await wait(
                lambda: server.api.get(CONFIG_MAPS, "lock.reports") is None and server.api.requests[-1][0] == "DELETE"
            )

    run(server, test)


def test_a_wait_for_a_lock_ends_with_the_session(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        one, two = await aio.Session.new(client, 60), await aio.Session.new(client, 60)
        await aio.Mutex(one, "reports").lock()
        asyncio.get_running_loop().call_later(0.5, server.revoke, two.lease.name)
        with pytest.raises(lessor.SessionExpiredError):
            async with asyncio.timeout(5):
                await aio.Mutex(two, "reports").lock()
        await one.close()

    run(server, test)


def test_an_election_reports_its_leaders(server: Server) -> None:
    async def test(client: aio.LeaseClient) -> None:
        seen = []

        async def observe(election: aio.Election) -> None:
            async for leader in election.observe():
                seen.append(leader.value)  # noqa: PERF401 - One after the other.

        async with aio.session(client, 60, holder="one") as session:
            election = aio.Election(session, "reports")
            observer = asyncio.create_task(observe(election))
            await election.campaign("10.0.0.1")
            await wait(lambda: seen == ["10.0.0.1"])
            await election.proclaim("10.0.0.2")
            leader = await election.leader()
            assert (leader.value, leader.token) == ("10.0.0.2", election.token)
            await wait(lambda: seen == ["10.0.0.1", "10.0.0.2"])
            await election.resign()
            with pytest.raises(lessor.NoLeaderError):
                await election.leader()
        with pytest.raises(lessor.SessionExpiredError):
            await asyncio.wait_for(observer, 5)

    run(server, test)


def test_credentials_of_a_plugin_are_fetched_again_when_they_expire(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib, time\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "expires = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() + 5))\n"
        "status = {'token': f'token-{number}', 'expirationTimestamp': expires}\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', 'status': status}))\n"
    )
    execute = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": "test", "user": {"exec": execute}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig))
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    async def test() -> None:
        async with aio.LeaseClient() as client, client.lease("web-1", ttl=3) as held:
            await asyncio.sleep(2)
            held.check()

    asyncio.run(test())
    assert len(server.authorizations) > 1, server.authorizations
