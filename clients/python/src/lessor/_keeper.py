"""Keeping leases alive: what is due when, and what a response or a watched version means. Pure; the clock is passed in.

One `Keeper` serves all leases of a client. Its driver calls `poll`, sends what it returns, reports the outcome, and calls
`poll` again at `wake_at` at the latest.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from lessor import _leases, errors
from lessor._flow import REQUEST_TIMEOUT, Flow, Json, Sleep, Stream, check_event, send
from lessor._leases import Held, Scope
from lessor._validity import resource_version
from lessor.errors import LessorError, LossReason

log = logging.getLogger("lessor")

#: The maximum number of leases in one response.
PAGE_SIZE = 500
#: The shortest timeout of a renewal, in seconds.
MIN_TIMEOUT = 0.05
#: The shortest pause after a failure, in seconds.
MIN_PAUSE = 0.05
#: How many outdated entries a queue may have beside as many as there are leases.
SPARE_ENTRIES = 64
#: The longest time between two looks at the clock, because timers don't run while the machine is suspended.
READ_INTERVAL = 1.0


@dataclass(frozen=True)
class Loss:
    """The loss of a lease."""

    reason: LossReason
    cause: LessorError | None = None

    def error(self) -> errors.LeaseLostError:
        """The loss as an error."""
        return errors.LeaseLostError(self.reason, self.cause)


class Kept:
    """A lease that is kept alive. Not thread-safe."""

    def __init__(self, held: Held, margin: float | None, watched: bool, on_lost: Callable[[Loss], None]) -> None:
        self.held = held
        self.margin = margin
        self.watched = watched
        self.loss: Loss | None = None
        self.stopped = False
        self.renewals = 0
        self.failures = 0
        self.error: LessorError | None = None
        #: The entry of the keeper's queue that counts.
        self.ticket = 0
        self._on_lost = on_lost
        self._in_flight = False
        self._changed_meanwhile = False
        self._next = self._third()

    @property
    def lost_at(self) -> float:
        """When the lease counts as lost without another renewal."""
        return self.held.validity.lost_at(self.margin)

    @property
    def wake_at(self) -> float:
        """When this lease has to be looked at."""
        return self.lost_at if self._in_flight else min(self._next, self.lost_at)

    def is_alive(self, now: float) -> bool:
        """Whether the lease is certainly alive."""
        return self.loss is None and now < self.lost_at

    def is_over(self) -> bool:
        """Whether it is renewed no more."""
        return self.stopped or self.loss is not None

    def timeout(self, now: float) -> float:
        """The timeout of a renewal that is sent now, so that another fits after it."""
        return min(REQUEST_TIMEOUT, max(MIN_TIMEOUT, (self.lost_at - now) / 2))

    def is_due(self, now: float) -> bool:
        """Whether a renewal has to be sent. Reports the loss instead if it is too late."""
        if self.is_over():
            return False
        if now >= self.lost_at:
            self.lose(self._not_renewed())
            return False
        if self._in_flight or now < self._next:
            return False
        self._in_flight = True
        return True

    def renewed(self, held: Held, now: float) -> None:
        """A renewal was accepted."""
        self._in_flight = False
        if self.is_over():
            return
        self.held, self.renewals, self.failures, self.error = held, self.renewals + 1, 0, None
        self._next = now if self._changed_meanwhile else self._third()
        self._changed_meanwhile = False
        log.debug("lease %s: renewed", held.name)

    def failed(self, error: LessorError, now: float) -> None:
        """A renewal failed."""
        self._in_flight = False
        if self.is_over():
            return
        reason = {
            errors.EndedError: LossReason.ENDED,
            errors.NotFoundError: LossReason.GONE,
            errors.ReplacedError: LossReason.REPLACED,
        }.get(type(error))
        if reason is not None:
            self.lose(Loss(reason))
            return
        self.failures, self.error = self.failures + 1, error
        log.warning("lease %s: can't renew, tries again: %s", self.held.name, error)
        pause = min(_leases.delay(self.failures), self.held.validity.ttl / 10)
        # At most half of the remaining time, so that at least one more attempt fits.
        self._next = now + max(MIN_PAUSE, min(max(pause, errors.retry_after(error) or 0.0), (self.lost_at - now) / 2))

    def observe(self, version: Json | None, now: float) -> None:
        """The watch shows this version of the lease, or that it is gone."""
        if self.is_over():
            return
        if version is None:
            self.lose(Loss(LossReason.GONE))
        # The watch may lag behind the renewals.
        elif resource_version(version) <= resource_version(self.held.lease):
            return
        elif version["metadata"].get("uid") != self.held.uid:
            self.lose(Loss(LossReason.REPLACED))
        elif _leases.is_ended(version):
            self.lose(Loss(LossReason.ENDED))
        elif _leases.is_deleting(version):
            self.lose(Loss(LossReason.REVOKED))
        elif _terms(version) != _terms(self.held.lease):
            # A renewal returns the TTL that is granted now. The API server may have accepted the one in flight before.
            self._changed_meanwhile = self._in_flight
            self._next = now

    def lose(self, loss: Loss) -> None:
        """Reports the loss, once."""
        if self.loss is None and not self.stopped:
            self.loss = loss
            log.warning("lease %s: lost: %s", self.held.name, loss.error())
            self._on_lost(loss)

    def _not_renewed(self) -> Loss:
        if self.held.validity.capped:
            return Loss(LossReason.MAX_LIFETIME)
        return Loss(LossReason.NOT_RENEWED, self.error or errors.NoResponseError("none in time"))

    def _third(self) -> float:
        """A third of the TTL after the last renewal, with jitter, so that holders that start together don't renew together."""
        validity = self.held.validity
        return validity.since + validity.ttl / 3 * random.uniform(0.9, 1.1)


class Keeper:
    """All leases of a client that are kept alive. Not thread-safe."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        #: When to look at the lease of a name. Entries with another ticket than their lease are outdated.
        self._queue: list[tuple[float, int, str]] = []
        self._tickets = itertools.count(1)

    def add(self, kept: Kept) -> None:
        """Keeps a lease alive from now on."""
        other = self.kept.get(kept.held.name)
        if other is not None and not other.is_over():
            raise errors.InvalidError(f'lease "{kept.held.name}" is kept alive already')
        self.kept[kept.held.name] = kept
        self.touch(kept)

    def remove(self, kept: Kept) -> None:
        """Renews a lease no more."""
        kept.stopped = True
        if self.kept.get(kept.held.name) is kept:
            del self.kept[kept.held.name]

    def touch(self, kept: Kept) -> None:
        """To be called after each change of a kept lease."""
        if kept.is_over():
            if self.kept.get(kept.held.name) is kept:
                del self.kept[kept.held.name]
        else:
            kept.ticket = next(self._tickets)
            heapq.heappush(self._queue, (kept.wake_at, kept.ticket, kept.held.name))
        # An entry of a lease with a long TTL would stay long after the lease.
        if len(self._queue) > 2 * len(self.kept) + SPARE_ENTRIES:
            self._queue = [(kept.wake_at, kept.ticket, name) for name, kept in self.kept.items()]
            heapq.heapify(self._queue)

    def poll(self, now: float) -> list[Kept]:
        """The leases to be renewed now, the most urgent first. Reports those that are lost."""
        due = []
        while self._queue and self._queue[0][0] <= now:
            _, ticket, name = heapq.heappop(self._queue)
            kept = self.kept.get(name)
            if kept is None or ticket != kept.ticket:
                continue  # Something has changed since.
            if kept.is_due(now):
                due.append(kept)
            self.touch(kept)
        return due

    def wake_at(self) -> float | None:
        """When to call `poll` at the latest. None if nothing is kept."""
        return self._queue[0][0] if self.kept and self._queue else None

    def observe(self, name: str, version: Json | None, now: float) -> None:
        """The watch shows this version of a lease, or that it is gone."""
        kept = self.kept.get(name)
        if kept is not None and kept.watched:
            kept.observe(version, now)
            self.touch(kept)

    def watched(self) -> frozenset[tuple[str, str]]:
        """The names and uids of the leases to be watched."""
        return frozenset((name, kept.held.uid) for name, kept in self.kept.items() if kept.watched)

    def selector(self) -> str | None:
        """The field selector of the one watch that serves them all; None without a watch."""
        names = [name for name, kept in self.kept.items() if kept.watched]
        if not names:
            return None
        return f"metadata.name={names[0]}" if len(names) == 1 else ""


def watch(
    scope: Scope,
    selector: str,
    watched: Callable[[], frozenset[tuple[str, str]]],
    observe: Callable[[str, Json | None], None],
) -> Flow[None]:
    """Watches the leases of a selector for ever. Returns if the right is missing: renewals find the same out later."""
    failures = 0
    version: list[str] = []
    forward = _forward(watched, observe, version)
    while True:
        begin = list(version)
        try:
            if not version:
                version.append((yield from _list(scope, selector, watched, observe)))
                begin = list(version)
            query = _leases.watch_query(selector, version[0], _leases.WATCH_SECONDS)
            yield Stream(scope.leases(), query, forward, timeout=_leases.WATCH_SILENCE)
        except (errors.ForbiddenError, errors.UnauthorizedError, errors.NotInstalledError):
            return
        except errors.NotFoundError:
            version.clear()  # 410: it is too old.
        except errors.LessorError as error:
            yield Sleep(errors.retry_after(error) or 0.0)
        failures = 0 if version and version != begin else failures + 1
        if failures:
            yield Sleep(_leases.delay(failures))


def _list(
    scope: Scope,
    selector: str,
    watched: Callable[[], frozenset[tuple[str, str]]],
    observe: Callable[[str, Json | None], None],
) -> Flow[str]:
    """Reads the leases page by page, and returns the version to watch from."""
    # A lease that is made after the list isn't in it, so who is watched is asked before.
    missing = {name for name, _ in watched()}
    query = {"limit": str(PAGE_SIZE), **({"fieldSelector": selector} if selector else {})}
    while True:
        page = (yield from send(scope.get(scope.leases(), query=query))).object
        for lease in page.get("items") or []:
            missing.discard(lease["metadata"]["name"])
            observe(lease["metadata"]["name"], lease)
        token = page["metadata"].get("continue")
        if not token:
            for name in missing:
                observe(name, None)
            return str(page["metadata"]["resourceVersion"])
        query["continue"] = token


def _forward(
    watched: Callable[[], frozenset[tuple[str, str]]],
    observe: Callable[[str, Json | None], None],
    version: list[str],
) -> Callable[[Json], bool]:
    def on_event(event: Json) -> bool:
        check_event(event)
        metadata = event["object"]["metadata"]
        version[:] = [metadata["resourceVersion"]]
        if event["type"] in ("ADDED", "MODIFIED"):
            observe(metadata["name"], event["object"])
        # The deletion of an earlier lease of the name means nothing.
        elif event["type"] == "DELETED" and (metadata["name"], metadata["uid"]) in watched():
            observe(metadata["name"], None)
        return False

    return on_event


def _terms(lease: Json) -> tuple[object, ...]:
    """The fields that determine when a lease ends, except renewals."""
    spec, status = lease["spec"], lease.get("status") or {}
    return spec.get("ttlSeconds"), spec.get("maxLifetimeSeconds"), status.get("grantedTTLSeconds")
