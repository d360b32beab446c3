"""The client with threads, on the official package, against the fake API server behind HTTP."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kubernetes import client as kubernetes_client

import lessor
from lessor import _clock
from tests.fake import CONFIG_MAPS, LEASES
from tests.server import Server


@pytest.fixture
def client(server: Server) -> lessor.LeaseClient:
    configuration = kubernetes_client.Configuration(host=server.url)
    configuration.api_key = {"BearerToken": "Bearer secret"}
    return lessor.LeaseClient(api_client=kubernetes_client.ApiClient(configuration))


def wait(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lessor")]


def test_a_lease_is_held_for_a_block_and_revoked_at_its_end(client: lessor.LeaseClient, server: Server) -> None:
    with client.lease("web-1", ttl=2, holder="web-1") as held:
        assert held.is_alive()
        assert held.fencing_token > 0
        assert not held.lost.wait(3)
        held.check()
        assert held.lease["spec"]["holder"] == "web-1"
    assert server.api.get(LEASES, "web-1") is None
    assert server.authorizations == {"Bearer secret"}
    wait(lambda: not own_threads())


def test_a_lease_that_is_lost_in_its_block_is_an_error_after_it(client: lessor.LeaseClient, server: Server) -> None:
    with pytest.raises(lessor.LeaseLostError, match="grant a new one") as caught:  # noqa: SIM117
        with client.lease("web-1", ttl=60) as held:
            server.revoke("web-1")
            assert held.lost.wait(3)
            assert not held.is_alive()
            with pytest.raises(lessor.LeaseLostError):
                held.check()
    assert caught.value.reason is lessor.LossReason.GONE


def test_the_error_of_a_block_is_the_one_that_is_reported(client: lessor.LeaseClient, server: Server) -> None:
    with pytest.raises(ZeroDivisionError), client.lease("web-1", ttl=60):
        raise ZeroDivisionError
    assert server.api.get(LEASES, "web-1") is None


def test_a_server_that_hangs_loses_the_lease_before_its_deadline(client: lessor.LeaseClient, server: Server) -> None:
    held = client.grant("web-1", 3)
    held.keep_alive(watch=False)
    losses: list[lessor.LeaseLostError] = []
    held.on_loss(losses.append)
    server.hang = True
    assert held.lost.wait(10)
    assert _clock.now() < held.deadline
    assert losses[0].reason is lessor.LossReason.NOT_RENEWED
    server.hang = False


def test_a_loss_is_raised_after_the_block_without_waiting_for_the_server(
    client: lessor.LeaseClient, server: Server
) -> None:
    deadline = 0.0
    with pytest.raises(lessor.LeaseLostError), client.lease("web-1", ttl=3, watch=False) as held:
        server.hang = True
        assert held.lost.wait(10)
        deadline = held.deadline
    assert _clock.now() < deadline
    server.hang = False


def test_a_name_that_is_taken_is_refused(client: lessor.LeaseClient) -> None:
    client.grant("web-1", 60)
    with pytest.raises(lessor.ExistsError):
        client.grant("web-1", 60)


def test_a_lease_that_is_not_granted_in_time_is_an_error_that_says_what_to_do(
    client: lessor.LeaseClient, server: Server
) -> None:
    server.api.grants = False
    with pytest.raises(lessor.NotGrantedError, match="kubectl lease status"):
        client.grant("web-1", 60, wait=0.5)


def test_a_missing_server_is_an_error_of_this_package() -> None:
    api_client = kubernetes_client.ApiClient(kubernetes_client.Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(lessor.NoResponseError):
        lessor.LeaseClient(api_client=api_client).get("web-1")


def test_a_key_is_registered_attached_and_detached(client: lessor.LeaseClient, server: Server) -> None:
    client.grant("web-1", 60)
    client.register("web-1", "endpoints", "web-1", "10.0.0.17:8080")
    stored = server.api.get(CONFIG_MAPS, "endpoints")
    assert stored is not None
    assert stored["metadata"]["annotations"] == {"key.lessor.dev/web-1": "web-1"}
    target = lessor.config_map("endpoints")
    assert client.attach("web-2", target, ["web-1"]).moved_from == {"web-1"}
    assert client.detach("web-2", target)
    assert not client.detach("web-2", target)
    with pytest.raises(lessor.InvalidError):
        client.attach("web-2", target, ["no/key"])
    with pytest.raises(lessor.NotFoundError):
        client.attach("web-2", lessor.config_map("missing"))


def test_a_thousand_leases_are_kept_alive_by_few_threads_and_one_watch(
    client: lessor.LeaseClient, server: Server
) -> None:
    held = []
    for number in range(1000):
        server.make_lease(f"lease-{number}", 60)
        held.append(client.renew(f"lease-{number}"))
        held[-1].keep_alive()
    wait(lambda: server.watches == 1)
    assert len(own_threads()) <= 10
    assert all(lease.is_alive() for lease in held)
    server.revoke("lease-500")
    assert held[500].lost.wait(5)
    assert sum(lease.lost.is_set() for lease in held) == 1
    for lease in held:
        lease.stop()
    wait(lambda: not own_threads())
    wait(lambda: server.watches == 0)


def test_two_sessions_exclude_one_another(client: lessor.LeaseClient) -> None:
    with lessor.Session(client, 60, holder="one") as one, lessor.Session(client, 60, holder="two") as two:
        first, second = lessor.Mutex(one, "reports"), lessor.Mutex(two, "reports")
        with first:
            assert first.held()
            with pytest.raises(lessor.LockedError, match="one"):
                second.try_lock()
            with pytest.raises(TimeoutError):
                second.lock(timeout=0.3)
            token = first.token
            waiting = threading.Thread(target=second.lock)
            waiting.start()
            time.sleep(0.5)
            assert not second.held()
        with pytest.raises(lessor.LockReleasedError):
            first.unlock()
        waiting.join(5)
        assert second.token > token
        second.unlock()


def test_a_wait_for_a_lock_ends_with_the_session(client: lessor.LeaseClient, server: Server) -> None:
    one, two = lessor.Session(client, 60), lessor.Session(client, 60)
    lessor.Mutex(one, "reports").lock()
    threading.Timer(1.0, lambda: server.revoke(two.lease.name)).start()
    begin = time.monotonic()
    with pytest.raises(lessor.SessionExpiredError):
        lessor.Mutex(two, "reports").lock()
    assert time.monotonic() - begin < 3
    one.close()
    with pytest.raises(lessor.SessionExpiredError):
        lessor.Mutex(one, "reports").lock()


def test_an_election_has_a_leader_that_all_can_read(client: lessor.LeaseClient) -> None:
    with lessor.Session(client, 60, holder="one") as session:
        election = lessor.Election(session, "/jobs/reports/")
        with pytest.raises(lessor.NoLeaderError):
            election.leader()
        seen: list[str] = []

        def observe() -> None:
            try:
                seen.extend(leader.value for leader in lessor.Election(session, "/jobs/reports/").observe())
            except lessor.SessionExpiredError:
                seen.append("end")

        observer = threading.Thread(target=observe)
        observer.start()
        election.campaign("10.0.0.1")
        election.proclaim("10.0.0.2")
        leader = election.leader()
        assert (leader.value, leader.holder, leader.token) == ("10.0.0.2", "one", election.token)
        time.sleep(1)
        election.resign()
        with pytest.raises(lessor.NotLeaderError):
            election.proclaim("10.0.0.3")
    observer.join(5)
    assert seen[-2:] == ["10.0.0.2", "end"] or seen[-1:] == ["end"]
