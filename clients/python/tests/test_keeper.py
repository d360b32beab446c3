"""Keeping leases of a fake server alive, in simulated time."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lessor import _leases, errors
from lessor._keeper import Keeper, Kept, Loss, watch
from lessor._leases import Scope
from lessor.errors import LossReason
from tests.fake import CONFIG_MAPS, LEASES
from tests.world import Fate, Process, World

TTL = 30
SCOPE = Scope("default")


class Holder:
    """A lease that is kept alive in a simulated world."""

    def __init__(
        self, world: World, name: str = "a", *, ttl: int = TTL, margin: float | None = None, **spec: Any
    ) -> None:
        self.world = world
        self.losses: list[tuple[float, Loss]] = []
        self.keeper = Keeper()
        self.renewals: list[float] = []
        self.looks = 0
        self.held = world.finish(_leases.grant(SCOPE, name, {"ttlSeconds": ttl, **spec}, {}, 15.0), 0.1)
        self.kept = Kept(self.held, margin, True, lambda loss: self.losses.append((world.time, loss)))
        self.keeper.add(self.kept)
        self.look()

    def look(self) -> None:
        for kept in self.keeper.poll(self.world.time):
            self.renewals.append(self.world.time)
            flow = _leases.renew(SCOPE, kept.held, kept.timeout(self.world.time))
            self.world.start(flow, self._renewed)
        self.looks += 1
        this, wake_at = self.looks, self.keeper.wake_at()
        if wake_at is not None:
            pause = max(0.0005, min(1.0, wake_at - self.world.time))
            self.world.after(pause, lambda: self.look() if self.looks == this else None)

    def _renewed(self, process: Process) -> None:
        if isinstance(process.error, errors.LessorError):
            self.kept.failed(process.error, self.world.time)
        else:
            self.kept.renewed(process.result(), self.world.time)
        self.keeper.touch(self.kept)
        self.look()

    def follow(self, selector: str = "") -> None:
        def observe(name: str, version: Any) -> None:
            self.keeper.observe(name, version, self.world.time)
            self.look()

        self.world.start(watch(SCOPE, selector, self.keeper.watched, observe))

    def is_alive(self) -> bool:
        return self.kept.is_alive(self.world.time)

    def lost(self, within: float = 3 * TTL) -> LossReason:
        self.world.run(within)
        assert len(self.losses) == 1, self.losses
        return self.losses[0][1].reason

    def early(self) -> float:
        """How long before the end on the server the loss was reported."""
        return self.deadline() - self.losses[0][0]

    def deadline(self) -> float:
        return self.world.api.deadlines.get("a", float("-inf"))


def test_a_lease_is_renewed_at_a_third_of_its_ttl(world: World) -> None:
    holder = Holder(world)
    world.run(20 * TTL)
    assert holder.is_alive()
    assert 56 <= len(holder.renewals) <= 67


def test_holders_that_begin_together_do_not_renew_together(world: World) -> None:
    holders = [Holder(world, f"lease-{number}") for number in range(8)]
    world.run(TTL / 2)
    firsts = {holder.renewals[0] - holder.held.validity.since for holder in holders}
    assert len(firsts) > 4
    assert min(firsts) >= 9
    assert max(firsts) <= 11.1


@pytest.mark.parametrize("fate", [Fate(refused=503), Fate(refused=403), Fate(refused=429), Fate(lost="request")])
def test_a_lease_that_cannot_be_renewed_is_lost_before_its_deadline(world: World, fate: Fate) -> None:
    holder = Holder(world)
    deadline = holder.deadline()
    world.fate = lambda _: fate
    assert holder.lost() is LossReason.NOT_RENEWED
    assert 1 <= deadline - holder.losses[0][0] < 2
    assert not holder.is_alive()
    assert len(holder.renewals) <= 20
    before = len(holder.renewals)
    world.run(TTL)
    assert len(holder.renewals) == before, "it renews a lost lease"


def test_an_outage_within_the_ttl_is_survived(world: World) -> None:
    holder = Holder(world)
    world.fate = lambda _: Fate(refused=503)
    world.run(TTL * 0.8)
    assert holder.is_alive()
    assert holder.kept.failures > 2
    world.fate = lambda _: Fate()
    world.run(TTL)
    assert holder.is_alive()
    assert holder.kept.failures == 0


def test_a_retry_after_is_obeyed_as_far_as_the_deadline_allows(world: World) -> None:
    holder = Holder(world)
    fates = [Fate(refused=429, retry_after="4"), Fate(refused=429, retry_after="60")]
    world.fate = lambda _: fates.pop(0) if fates else Fate()
    world.run(2 * TTL)
    assert holder.is_alive()
    assert 4 <= holder.renewals[1] - holder.renewals[0] <= 4.1
    assert holder.renewals[2] - holder.renewals[1] > 4


def test_one_request_that_hangs_does_not_lose_the_lease(world: World) -> None:
    holder = Holder(world)
    fates = [Fate(lost="request")]
    world.fate = lambda _: fates.pop() if fates else Fate()
    world.run(2 * TTL)
    assert holder.is_alive()


def test_a_slow_server_does_not_lose_the_lease(world: World) -> None:
    holder = Holder(world)
    world.fate = lambda _: Fate(before=TTL / 6, after=TTL / 8)
    world.run(5 * TTL)
    assert holder.is_alive()


def test_an_ended_lease_is_lost_at_the_next_renewal_and_renewed_no_more(world: World) -> None:
    holder = Holder(world)
    world.fate = lambda _: Fate(refused=0)
    world.api.revoke("a")
    assert holder.lost() is LossReason.GONE
    assert len(holder.renewals) == 1


def test_a_lease_of_the_same_name_made_since_is_not_renewed(world: World) -> None:
    holder = Holder(world)
    world.api.revoke("a")
    world.finish(_leases.grant(SCOPE, "a", {"ttlSeconds": 600}, {}, 15.0), 0.1)
    assert holder.lost() is LossReason.REPLACED
    lease = world.api.get(LEASES, "a")
    assert lease is not None
    assert "renewTime" not in lease["spec"]


def test_a_revocation_is_reported_at_once_by_the_watch(world: World) -> None:
    holder = Holder(world, ttl=600)
    holder.follow("metadata.name=a")
    world.run(5)
    world.api.revoke("a")
    world.run(0.2)
    assert [loss.reason for _, loss in holder.losses] == [LossReason.GONE]


def test_the_deletion_of_an_earlier_lease_of_the_name_means_nothing(world: World) -> None:
    Holder(world)
    world.api.revoke("a")
    holder = Holder(world)
    # A watch that begins before all of this.
    seen: list[Any] = []

    def observe(name: str, version: Any) -> None:
        seen.append(version)
        holder.keeper.observe(name, version, world.time)

    flow = watch(SCOPE, "", holder.keeper.watched, observe)
    next(flow)
    assert not holder.losses
    for _, _, event in world.api.events:
        if event["type"] == "DELETED" and (event["object"]["metadata"]["name"], event["object"]["metadata"]["uid"]) in (
            holder.keeper.watched()
        ):
            observe("a", None)
        elif event["type"] != "DELETED":
            observe("a", event["object"])
    assert seen
    assert not holder.losses


def test_a_ttl_shortened_by_another_client_is_renewed_in_time(world: World) -> None:
    holder = Holder(world, ttl=600)
    holder.follow("metadata.name=a")
    world.run(2)
    lease = world.api.get(LEASES, "a")
    assert lease is not None
    lease["status"]["grantedTTLSeconds"] = 10
    world.api.handle("PATCH", f"{LEASES}/a", {}, {"spec": {"ttlSeconds": 10}})
    world.run(60)
    assert holder.is_alive()
    assert holder.kept.held.validity.ttl == 10


def test_a_longer_margin_reports_the_loss_earlier(world: World) -> None:
    holder = Holder(world, margin=8)
    deadline = holder.deadline()
    world.fate = lambda _: Fate(refused=500)
    holder.lost()
    assert 8 <= deadline - holder.losses[0][0] < 9


def test_each_attempt_has_a_new_renew_time_even_after_a_lost_response(world: World) -> None:
    holder = Holder(world)
    fates = [Fate(lost="response")] * 3
    world.fate = lambda _: fates.pop() if fates else Fate()
    world.run(2 * TTL)
    assert holder.is_alive()
    patches = [event["object"]["spec"].get("renewTime") for _, _, event in world.api.events]
    times = [text for text in patches if text]
    assert len(set(times)) == len(times)


def test_leases_that_were_stopped_leave_nothing_behind(world: World) -> None:
    holder = Holder(world, ttl=3600)
    stopped: weakref.WeakSet[Kept] = weakref.WeakSet()
    for number in range(1000):
        held = world.finish(_leases.grant(SCOPE, f"b-{number}", {"ttlSeconds": 3600}, {}, 15.0), 0.1)
        kept = Kept(held, None, True, lambda _: None)
        stopped.add(kept)
        holder.keeper.add(kept)
        holder.keeper.remove(kept)
        del kept
    assert len(stopped) == 0
    assert len(holder.keeper._queue) < 100


def test_the_queue_does_not_grow(world: World) -> None:
    holder = Holder(world)
    world.run(300 * TTL)
    assert holder.is_alive()
    assert len(holder.keeper._queue) < 10


def test_a_clock_that_jumps_by_a_suspension_loses_the_lease_at_once(world: World) -> None:
    holder = Holder(world)
    world.run(5)
    world.time += 2 * TTL
    assert not holder.is_alive(), "before any timer has run"
    world.run(0.01)
    assert holder.losses


def test_a_silent_namespace_costs_one_list_and_one_watch(world: World) -> None:
    holder = Holder(world)
    holder.follow()
    before = len(world.api.requests)
    world.run(9)
    assert world.api.requests[before:] == [("GET", LEASES)]
    assert ("GET", CONFIG_MAPS) not in world.api.requests


FATES = st.builds(
    Fate,
    before=st.one_of(st.floats(0.001, 0.05), st.floats(0.001, 20)),
    after=st.one_of(st.floats(0.001, 0.05), st.floats(0.001, 20)),
    lost=st.sampled_from(["", "", "", "", "request", "response"]),
    refused=st.sampled_from([0, 0, 0, 0, 0, 429, 500, 503, 409, 403]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fates=st.lists(FATES, max_size=40), then_lost=st.booleans())
def test_the_loss_is_reported_before_the_lease_ends(
    monkeypatch: pytest.MonkeyPatch, fates: list[Fate], then_lost: bool
) -> None:
    world = World(monkeypatch)
    holder = Holder(world)
    rest = list(fates)
    world.fate = lambda _: rest.pop(0) if rest else Fate(lost="request") if then_lost else Fate(refused=503)

    def check() -> None:
        world.api.tick()
        ended = "a" not in world.api.deadlines
        assert not (ended and holder.is_alive()), "it counts as alive after its end"
        if ended:
            assert holder.losses, "the loss wasn't reported before the end"

    for _ in range(2000):
        world.run(0.487, check)
        if holder.losses:
            break
    assert holder.losses
