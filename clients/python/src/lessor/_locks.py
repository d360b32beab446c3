"""The protocol of Mutex and Election, as flows: see MUTEX.md, which all clients of Lessor follow."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lessor import _clock, _leases, errors
from lessor._flow import Flow, Json, Sleep, Stream, check_event, send

if TYPE_CHECKING:
    from lessor._leases import Scope

MAX_PLAIN_NAME = 248
#: How often waiters read the lock at least, in seconds.
READ_INTERVAL = 5.0
#: The longest random wait of waiters after a release, in seconds.
MAX_STAGGER = 0.1
#: A session that has held a lock for this long, with pauses of at most `STREAK_PAUSE`, lets others go first, in seconds.
MAX_STREAK, STREAK_PAUSE = 1.0, 0.2
#: How long after its last create an acquisition may leave a lock object behind, in seconds.
CLEAN_UP_FOR = 60.0
CLEAN_UP_INTERVAL = 1.0

_TEMPORARY = (
    errors.ConflictError,
    errors.UnauthorizedError,
    errors.ThrottledError,
    errors.ServerError,
    errors.NoResponseError,
)
_PLAIN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def object_name(name: str) -> str:
    """The name of the lock object."""
    if len(name) <= MAX_PLAIN_NAME and _PLAIN_NAME.fullmatch(name):
        return f"lock.{name}"
    return "lock-sha256." + hashlib.sha256(name.encode()).hexdigest()


def random_id() -> str:
    """32 random hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SessionView:
    """What the protocol needs to know of a session."""

    lease: str
    lease_uid: str
    holder: str
    #: Whether the session is valid now.
    is_valid: Callable[[], bool]
    #: The acquisitions of this session that have ended, and may have left a lock object.
    ended: set[str] = field(default_factory=set)
    #: For each lock object that this session has released lately: since when it had held it, and until when.
    streaks: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Acquisition:
    """One call of lock, try_lock or campaign."""

    name: str
    value: str = ""
    id: str = field(default_factory=random_id)
    #: When the last create was sent.
    last_create: float = 0.0
    #: Whether a create got no answer, and may be done later.
    uncertain: bool = False
    #: Whether the lock object was there.
    acquired: bool = False

    def may_leave_an_object(self) -> bool:
        """Whether a lock object may be there, or appear, though the caller doesn't hold the lock."""
        return self.uncertain or self.acquired


@dataclass(frozen=True)
class Lock:
    """A lock that was acquired."""

    key: str
    uid: str
    token: int
    acquired_at: float = field(default_factory=lambda: _clock.now())  # noqa: PLW0108 - Tests replace the clock.


@dataclass(frozen=True)
class Leader:
    """The leader of an election."""

    value: str
    #: The fencing token of the leader.
    token: int
    holder: str


def acquire(
    scope: Scope,
    session: SessionView,
    acquisition: Acquisition,
    deadline: float | None,
    *,
    only_try: bool = False,
) -> Flow[Lock]:
    """Acquires the lock. Raises `TimeoutError` after the deadline, or `LockedError` if it is to be tried only."""
    failures = 0
    if not only_try:
        yield Sleep(_limited(_courtesy(session, object_name(acquisition.name)), deadline))
    while True:
        try:
            # After a failure, the create may have been done, so read first.
            found = None if failures else (yield from _create(scope, session, acquisition, deadline))
            if found is None:
                found = yield from _take_over_or_wait(scope, session, acquisition, deadline, only_try)
            if found is not None:
                acquisition.acquired = True
                return _acquired(session, found)
            failures = 0
        except _TEMPORARY as error:
            failures += 1
            yield Sleep(_limited(_leases.delay(failures, errors.retry_after(error)), deadline))
            _check(session, deadline)


def _courtesy(session: SessionView, key: str) -> float:
    """How long to let others go first. Otherwise one that locks in a loop would always be faster than who waits."""
    began, ended = session.streaks.get(key, (0.0, 0.0))
    since = _clock.now() - ended
    if since > STREAK_PAUSE or ended - began < MAX_STREAK:
        return 0.0
    session.streaks.pop(key, None)
    return max(0.0, random.uniform(MAX_STAGGER, 2 * MAX_STAGGER) - since)


def _released(session: SessionView, lock: Lock) -> None:
    """Notes the end of a hold, for `_courtesy`."""
    now = _clock.now()
    # Others of this session's threads may do the same meanwhile.
    for key, (_, ended) in list(session.streaks.items()):
        if lock.acquired_at - ended > STREAK_PAUSE:
            session.streaks.pop(key, None)
    began, _ = session.streaks.get(lock.key, (lock.acquired_at, now))
    session.streaks[lock.key] = began, now


def _create(scope: Scope, session: SessionView, acquisition: Acquisition, deadline: float | None) -> Flow[Json | None]:
    """Creates the lock object. None if there is one."""
    _check(session, deadline)
    body: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": object_name(acquisition.name),
            "annotations": {"lessor.dev/lease": session.lease},
        },
        "data": {
            "name": acquisition.name,
            "lease": session.lease,
            "leaseUID": session.lease_uid,
            "acquisition": acquisition.id,
            "holder": session.holder,
            "value": acquisition.value,
        },
    }
    # Set before the request, as the caller may be cancelled meanwhile.
    certain, acquisition.uncertain = not acquisition.uncertain, True
    acquisition.last_create = _clock.now()
    try:
        answer = yield from send(scope.create(scope.config_maps(), body))
    except errors.LessorError as error:
        if certain and not isinstance(error, (errors.NoResponseError, errors.ServerError)):
            acquisition.uncertain = False
        if isinstance(error, errors.ExistsError):
            return None
        raise
    acquisition.uncertain = not certain
    return answer.object


def _take_over_or_wait(
    scope: Scope, session: SessionView, acquisition: Acquisition, deadline: float | None, only_try: bool
) -> Flow[Json | None]:
    """The lock object if it is ours. Otherwise removes a dead one, or waits until it is gone, and returns None."""
    name = object_name(acquisition.name)
    path = f"{scope.config_maps()}/{name}"
    try:
        found = (yield from send(scope.get(path))).object
    except errors.NotFoundError:
        return None
    data, metadata = found.get("data") or {}, found["metadata"]
    if data.get("acquisition") == acquisition.id and data.get("leaseUID") == session.lease_uid:
        return found
    if not data.get("leaseUID"):
        raise errors.InvalidError(f'configmap "{name}" is not a lock: delete it, or use another name')
    leftover = data["leaseUID"] == session.lease_uid and data.get("acquisition") in session.ended
    if leftover or (yield from _is_dead(scope, found)):
        # Whatever the answer, another create follows.
        with contextlib.suppress(errors.NotFoundError, errors.ConflictError):
            yield from send(scope.delete(path, uid=metadata["uid"], resourceVersion=metadata["resourceVersion"]))
        return None
    if only_try:
        raise errors.LockedError(f'"{acquisition.name}" is locked by "{data.get("holder", "")}"')
    yield from _wait_gone(scope, name, metadata["resourceVersion"], deadline)
    _check(session, deadline)
    return None


def _is_dead(scope: Scope, found: Json) -> Flow[bool]:
    """Whether the lease of a lock has ended."""
    data = found["data"]
    try:
        lease = yield from _leases.get(scope, data.get("lease", ""))
    except errors.NotFoundError:
        return True
    return lease["metadata"]["uid"] != data["leaseUID"] or _leases.is_ended(lease)


def _wait_gone(scope: Scope, name: str, version: str, deadline: float | None) -> Flow[None]:
    """Waits until the lock object is deleted, the watch breaks, or some seconds have passed."""
    left = _limited(READ_INTERVAL * random.uniform(0.8, 1.2), deadline)
    gone: list[bool] = []

    def on_event(event: Json) -> bool:
        check_event(event)
        if event["type"] == "DELETED":
            gone.append(True)
        return bool(gone)

    query = _leases.watch_query(f"metadata.name={name}", version, left)
    try:
        yield Stream(scope.config_maps(), query, on_event, timeout=max(0.05, left))
    except (errors.NoResponseError, errors.NotFoundError):
        return  # The time is over, or the watch broke, or 410: read again.
    if gone:
        # So that not all waiters create at once.
        yield Sleep(_limited(random.uniform(0.0, MAX_STAGGER), deadline))


def _acquired(session: SessionView, found: Json) -> Lock:
    # The session counts now, after the answer has arrived.
    if not session.is_valid():
        raise errors.SessionExpiredError
    metadata = found["metadata"]
    return Lock(metadata["name"], metadata["uid"], int(metadata["resourceVersion"]))


def _check(session: SessionView, deadline: float | None) -> None:
    if not session.is_valid():
        raise errors.SessionExpiredError
    if deadline is not None and _clock.now() >= deadline:
        raise TimeoutError("the lock could not be acquired in time")


def _limited(seconds: float, deadline: float | None) -> float:
    return seconds if deadline is None else max(0.0, min(seconds, deadline - _clock.now()))


def release(scope: Scope, session: SessionView, lock: Lock) -> Flow[None]:
    """Deletes the lock object. Repeats that until it is known to be done, or the session has ended."""
    failures = 0
    while True:
        try:
            with contextlib.suppress(errors.NotFoundError, errors.ConflictError):
                yield from send(scope.delete(f"{scope.config_maps()}/{lock.key}", uid=lock.uid))
            _released(session, lock)
            return
        except errors.LessorError as error:
            if not error.is_temporary or not session.is_valid():
                raise
            failures += 1
            yield Sleep(_leases.delay(failures, errors.retry_after(error)))


def clean_up(scope: Scope, session: SessionView, acquisition: Acquisition) -> Flow[None]:
    """Deletes what a create without an answer leaves behind, even later."""
    path = f"{scope.config_maps()}/{object_name(acquisition.name)}"
    until = acquisition.last_create + CLEAN_UP_FOR
    while session.is_valid():
        try:
            found = (yield from send(scope.get(path))).object
            if (found.get("data") or {}).get("acquisition") == acquisition.id:
                yield from send(scope.delete(path, uid=found["metadata"]["uid"]))
        except errors.LessorError:
            pass  # The next round, or the end of the lease, removes it.
        if _clock.now() >= until:
            return
        yield Sleep(CLEAN_UP_INTERVAL)


def proclaim(scope: Scope, lock: Lock, value: str) -> Flow[None]:
    """Changes the value of the leader, and leaves the token where readers find it: the version changes."""
    patch: Json = {"metadata": {"uid": lock.uid}, "data": {"value": value, "token": str(lock.token)}}
    try:
        yield from send(scope.patch(f"{scope.config_maps()}/{lock.key}", patch))
    except (errors.NotFoundError, errors.ReplacedError) as error:
        raise errors.NotLeaderError from error


def leader(scope: Scope, name: str) -> Flow[Leader]:
    """Reads the present leader."""
    try:
        found = (yield from send(scope.get(f"{scope.config_maps()}/{object_name(name)}"))).object
        if not (found.get("data") or {}).get("leaseUID") or (yield from _is_dead(scope, found)):
            raise errors.NoLeaderError
    except errors.NotFoundError as error:
        raise errors.NoLeaderError from error
    return _leader(found)


def observe(scope: Scope, name: str, report: Callable[[Leader], bool]) -> Flow[None]:
    """Reports each leader and each of its values, until `report` returns true."""
    failures, last = 0, None
    selector = f"metadata.name={object_name(name)}"
    while True:
        try:
            query = {"fieldSelector": selector}
            listed = (yield from send(scope.get(scope.config_maps(), query=query))).object
            failures = 0
            for item in listed.get("items") or []:
                if item["metadata"]["resourceVersion"] != last and not (yield from _is_dead(scope, item)):
                    last = item["metadata"]["resourceVersion"]
                    if report(_leader(item)):
                        return
            seen: list[str] = []
            done: list[bool] = []

            def on_event(event: Json, seen: list[str] = seen, done: list[bool] = done) -> bool:
                check_event(event)
                if event["type"] in ("ADDED", "MODIFIED") and (event["object"].get("data") or {}).get("leaseUID"):
                    seen.append(event["object"]["metadata"]["resourceVersion"])
                    if report(_leader(event["object"])):
                        done.append(True)
                return bool(done)

            version = listed["metadata"]["resourceVersion"]
            query = _leases.watch_query(selector, version, _leases.WATCH_SECONDS)
            try:
                yield Stream(scope.config_maps(), query, on_event, timeout=_leases.WATCH_SILENCE)
            finally:
                last = seen[-1] if seen else last
            if done:
                return
        except errors.LessorError as error:
            if not error.is_temporary and not isinstance(error, errors.NotFoundError):
                raise
        failures += 1
        yield Sleep(_leases.delay(failures))


def _leader(found: Json) -> Leader:
    data = found["data"]
    token = data.get("token") or found["metadata"]["resourceVersion"]
    return Leader(data.get("value", ""), int(token), data.get("holder", ""))
