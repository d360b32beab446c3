"""Both variants on a real API server with the operator: needs KUBECONFIG and NAMESPACE."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from typing import Any

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config

import lessor
from lessor import _clock, aio

NAMESPACE = os.environ["NAMESPACE"]
TTL = 8
# With 1,000, one process took 10 % of a core with threads, and 14 % with asyncio, at a TTL of 120 s.
MANY = int(os.environ.get("LEASES", "200"))


@pytest.fixture(scope="module")
def client() -> lessor.LeaseClient:
    config.load_config()
    return lessor.LeaseClient(NAMESPACE, field_manager="python-tests")


def new(name: str) -> str:
    return f"{name}-{secrets.token_hex(3)}"


def make_map(name: str, **data: str) -> str:
    metadata = kubernetes_client.V1ObjectMeta(name=name)
    kubernetes_client.CoreV1Api().create_namespaced_config_map(
        NAMESPACE, kubernetes_client.V1ConfigMap(metadata=metadata, data=data)
    )
    return name


def keys(name: str) -> set[str] | None:
    try:
        found: Any = kubernetes_client.CoreV1Api().read_namespaced_config_map(name, NAMESPACE)
    except kubernetes_client.ApiException as error:
        assert error.status == 404
        return None
    return set(found.data or {})


def wait(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


def test_a_lease_is_kept_alive_for_a_block_and_revoked_after_it(client: lessor.LeaseClient) -> None:
    name = new("kept")
    with client.lease(name, ttl=TTL, holder="python") as held:
        assert held.ttl == TTL
        assert held.fencing_token > 0
        assert not held.lost.wait(TTL * 1.5)
        assert held.is_alive()
    assert client.wait_gone(name, timeout=30)


def test_a_revocation_is_reported_at_once_and_the_name_is_free_afterwards(client: lessor.LeaseClient) -> None:
    name = new("revoked")
    held = client.grant(name, 600)
    held.keep_alive()
    with pytest.raises(lessor.ExistsError):
        client.grant(name, 600)
    time.sleep(1)
    client.revoke(name)
    assert held.lost.wait(5)
    assert not held.is_alive()
    assert client.wait_gone(name, timeout=30)
    again = client.grant(name, 600)
    assert again.fencing_token > held.fencing_token
    with pytest.raises(lessor.ReplacedError):
        held.renew()
    again.revoke()
    again.revoke()


def test_a_lease_that_has_ended_can_not_be_renewed(client: lessor.LeaseClient) -> None:
    name = new("ended")
    held = client.grant(name, 1, retain=True)
    wait(lambda: client.get(name)["status"].get("endTime"))
    assert held.deadline < _clock.now()
    with pytest.raises(lessor.EndedError, match="grant a new one"):
        held.renew()
    with pytest.raises(lessor.EndedError):
        client.renew(name)
    client.revoke(name)


def test_what_is_attached_goes_with_the_lease_and_what_is_detached_stays(client: lessor.LeaseClient) -> None:
    name, whole, shared = new("attached"), make_map(new("whole"), a="1"), make_map(new("shared"), gone="1", stays="2")
    held = client.grant(name, 60)
    assert client.attach(name, lessor.config_map(whole)).changed
    assert not client.attach(name, lessor.config_map(whole)).changed
    client.attach(
        name,
        lessor.config_map(shared),
        [
            "gone",
            "stays",
        ],
    )
    assert client.detach(name, lessor.config_map(shared), ["stays"])
    client.register(name, shared, "registered", "value")
    held.revoke()
    wait(lambda: keys(whole) is None)
    wait(lambda: keys(shared) == {"stays"})


def test_many_leases_are_kept_alive_by_few_threads_and_one_watch(client: lessor.LeaseClient) -> None:
    prefix = new("many")
    ttl = 60
    held: list[lessor.HeldLease] = []

    def grant(numbers: range) -> None:
        for number in numbers:
            lease = client.grant(f"{prefix}-{number}", ttl, wait=60)
            lease.keep_alive()
            held.append(lease)

    granters = [threading.Thread(target=grant, args=[range(part, MANY, 8)]) for part in range(8)]
    for granter in granters:
        granter.start()
    for granter in granters:
        granter.join()
    assert len(held) == MANY
    begin, cpu = time.monotonic(), time.process_time()
    time.sleep(ttl * 0.5)
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("lessor")]
    used = (time.process_time() - cpu) / (time.monotonic() - begin)
    print(f"{MANY} leases: {len(threads)} threads, {used:.0%} of a core")
    assert threads.count("lessor-watch") == 1
    assert len(threads) <= 10
    assert all(lease.is_alive() for lease in held)
    assert all(lease.lease["spec"].get("renewTime") for lease in held)
    for lease in held:
        lease.stop()
        lease.revoke()


def test_a_mutex_excludes_both_variants_from_one_another(client: lessor.LeaseClient) -> None:
    name = new("mutex")

    async def asyncio_variant() -> int:
        async with aio.LeaseClient(NAMESPACE) as leases, aio.session(leases, 30, holder="asyncio") as session:
            mutex = aio.Mutex(session, name)
            with pytest.raises(lessor.LockedError, match="threads"):
                await mutex.try_lock()
            async with asyncio.timeout(20), mutex:
                assert mutex.held()
                return mutex.token

    with lessor.Session(client, 30, holder="threads") as session:
        mutex = lessor.Mutex(session, name)
        mutex.lock(timeout=20)
        token = mutex.token
        threading.Timer(3, mutex.unlock).start()
        assert asyncio.run(asyncio_variant()) > token


def test_the_lock_of_a_holder_that_vanished_is_free_after_its_ttl(client: lessor.LeaseClient) -> None:
    name = new("crash")
    first, second = lessor.Session(client, TTL), lessor.Session(client, 60)
    mutex = lessor.Mutex(first, name)
    mutex.lock(timeout=20)
    token = mutex.token
    first.orphan()
    assert not mutex.held()
    begin = time.monotonic()
    other = lessor.Mutex(second, name)
    other.lock(timeout=TTL * 4)
    print(f"handed over after {time.monotonic() - begin:.1f} s")
    assert other.token > token
    second.close()


def test_an_election_hands_over_at_once_after_a_resignation(client: lessor.LeaseClient) -> None:
    name = f"/{new('election')}/"
    with lessor.Session(client, 30, holder="one") as one, lessor.Session(client, 30, holder="two") as two:
        first, second = lessor.Election(one, name), lessor.Election(two, name)
        first.campaign("10.0.0.1", timeout=20)
        first.proclaim("10.0.0.2")
        leader = second.leader()
        assert (leader.value, leader.holder, leader.token) == ("10.0.0.2", "one", first.token)
        campaign = threading.Thread(target=second.campaign, args=["10.0.0.3", 20])
        campaign.start()
        time.sleep(1)
        assert not second.held()
        first.resign()
        begin = time.monotonic()
        campaign.join(20)
        print(f"handed over after {time.monotonic() - begin:.2f} s")
        assert second.held()
        assert first.leader().value == "10.0.0.3"


def test_asyncio_holds_a_lease_and_cancels_what_it_guards(client: lessor.LeaseClient) -> None:
    name, shared = new("asyncio"), new("endpoints")

    async def run() -> None:
        async with aio.LeaseClient(NAMESPACE, field_manager="python-tests") as leases:
            with pytest.raises(lessor.LeaseLostError):
                async with leases.lease(name, ttl=TTL, holder="asyncio") as held:
                    await leases.register(name, shared, "a", "1")
                    assert await held.guard(asyncio.sleep(TTL * 1.5, "kept")) == "kept"
                    await leases.revoke(name)
                    await held.guard(asyncio.sleep(60))
            assert await leases.wait_gone(name, timeout=30)

    asyncio.run(run())
    assert keys(shared) == set()


def test_asyncio_keeps_many_leases_alive_with_one_watch(client: lessor.LeaseClient) -> None:
    prefix, ttl = new("coro"), 60

    async def run() -> None:
        async with aio.LeaseClient(NAMESPACE, field_manager="python-tests") as leases:
            slots = asyncio.Semaphore(16)

            async def grant(number: int) -> aio.HeldLease:
                async with slots:
                    lease = await leases.grant(f"{prefix}-{number}", ttl, wait=60)
                    lease.keep_alive()
                    return lease

            held = await asyncio.gather(*(grant(number) for number in range(MANY)))
            begin, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(ttl * 0.5)
            used = (time.process_time() - cpu) / (time.monotonic() - begin)
            tasks = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lessor")]
            print(f"{MANY} leases: {len(tasks)} tasks, {used:.0%} of a core")
            assert tasks.count("lessor-watch") == 1
            assert all(lease.is_alive() for lease in held)

            async def revoke(lease: aio.HeldLease) -> None:
                async with slots:
                    lease.stop()
                    await lease.revoke()

            await asyncio.gather(*(revoke(lease) for lease in held))

    asyncio.run(run())
