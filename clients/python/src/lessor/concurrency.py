"""Mutex and Election, with the names and semantics of etcd's `clientv3/concurrency`, and fencing tokens.

They exclude those of Lessor's clients in Go and Rust, too.

    with Session(LeaseClient(), ttl=15) as session, Mutex(session, "reports") as mutex:
        write(report, token=mutex.token)
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, TypeVar

from lessor import _clock, _locks, errors
from lessor._locks import Acquisition, Leader, Lock, SessionView, random_id
from lessor._threads import Interrupt, Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from lessor._flow import Flow
    from lessor.client import HeldLease, LeaseClient

__all__ = ["Election", "Leader", "Mutex", "Session"]

T = TypeVar("T")


class Session:
    """A lease that is kept alive for the locks of this process."""

    def __init__(
        self, client: LeaseClient, ttl: float = 60.0, *, holder: str = "", margin: float | None = None
    ) -> None:
        self.client = client
        self._closed = threading.Event()
        self._interrupt = Interrupt()
        #: The lease. Nothing else may renew or revoke it.
        self.lease: HeldLease = client.grant(f"session-{random_id()}", ttl, holder=holder or None)
        #: Set once the session is lost.
        self.lost = self.lease.lost
        self._view = SessionView(self.lease.name, self.lease.uid, holder, self.is_valid)
        self.lease.on_loss(lambda _: self._interrupt.set())
        self.lease.keep_alive(margin=margin)

    def is_valid(self) -> bool:
        """Whether locks of this session are certainly held."""
        return not self._closed.is_set() and self.lease.is_alive()

    def close(self) -> None:
        """Ends the session, and with it all its locks."""
        self.orphan()
        if self.lease.loss is None:
            self.lease.revoke()

    def orphan(self) -> None:
        """Ends the session for this process. Its lease and its locks live until its deadline."""
        self._closed.set()
        self._interrupt.set()
        self.lease.stop()

    def __enter__(self) -> Session:
        """Begins a block at whose end the session is closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the session."""
        if error is None:
            self.close()
        else:
            # The error of the block is the one to report. Without a revocation the lease expires.
            with contextlib.suppress(errors.LessorError):
                self.close()

    def _run(self, flow: Flow[T]) -> T:
        """Runs a flow that stops once the session is lost."""
        try:
            return self.client.run(flow, self._interrupt)
        except Interrupted as error:
            raise errors.SessionExpiredError from error

    def _acquire(self, acquisition: Acquisition, timeout: float | None, *, only_try: bool) -> Lock:
        deadline = None if timeout is None else _clock.now() + timeout
        try:
            return self._run(_locks.acquire(self.client.scope, self._view, acquisition, deadline, only_try=only_try))
        except BaseException:
            self._ended(acquisition)
            raise

    def _release(self, acquisition: Acquisition, lock: Lock) -> None:
        try:
            self._run(_locks.release(self.client.scope, self._view, lock))
            acquisition.acquired = False
        finally:
            self._ended(acquisition)

    def _ended(self, acquisition: Acquisition) -> None:
        """Removes in the background what the acquisition may leave behind."""
        if acquisition.may_leave_an_object() and self.is_valid():
            self._view.ended.add(acquisition.id)
            threading.Thread(target=self._clean_up, args=[acquisition], name="lessor-clean-up", daemon=True).start()

    def _clean_up(self, acquisition: Acquisition) -> None:
        with contextlib.suppress(errors.LessorError):
            self._run(_locks.clean_up(self.client.scope, self._view, acquisition))
            self._view.ended.discard(acquisition.id)


class _Lockable:
    """What a Mutex and an Election have in common: at most one session holds the lock of a name."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name
        self._acquired: tuple[Acquisition, Lock] | None = None

    @property
    def key(self) -> str:
        """The name of the lock's ConfigMap."""
        return _locks.object_name(self.name)

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier holder. Give it along with each protected write."""
        acquired = self._acquired
        if acquired is None:
            raise errors.NotLeaderError if isinstance(self, Election) else errors.LockReleasedError
        return acquired[1].token

    def held(self) -> bool:
        """Whether the lock is certainly held. Call it directly before an action that requires the lock."""
        return self._acquired is not None and self.session.is_valid()

    def _take(self, value: str, timeout: float | None, *, only_try: bool = False) -> None:
        acquisition = Acquisition(self.name, value)
        lock = self.session._acquire(acquisition, timeout, only_try=only_try)  # noqa: SLF001
        self._acquired = acquisition, lock

    def _give_back(self) -> bool:
        """Releases the lock. Returns whether it was held."""
        acquired, self._acquired = self._acquired, None
        if acquired is not None:
            self.session._release(*acquired)  # noqa: SLF001
        return acquired is not None


class Mutex(_Lockable):
    """A lock that at most one session holds, in the namespace of its client."""

    def lock(self, timeout: float | None = None) -> None:
        """Waits until the lock is acquired.

        Raises `TimeoutError` after `timeout` seconds, and `SessionExpiredError` once the session is lost.
        """
        self._take("", timeout)

    def try_lock(self) -> None:
        """Acquires the lock if it is free. Raises `LockedError` if another session holds it."""
        self._take("", None, only_try=True)

    def unlock(self) -> None:
        """Releases the lock."""
        if not self._give_back():
            raise errors.LockReleasedError

    def __enter__(self) -> Mutex:
        """Locks for a block."""
        self.lock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlocks. The error of the block is the one to report."""
        try:
            self._give_back()
        except errors.LessorError:
            if error is None:
                raise


class Election(_Lockable):
    """An election: one of many sessions leads, with a value that all can read."""

    def campaign(self, value: str, timeout: float | None = None) -> None:
        """Waits until this session leads, and publishes `value`.

        Raises `TimeoutError` after `timeout` seconds, and `SessionExpiredError` once the session is lost.
        """
        self._take(value, timeout)

    def proclaim(self, value: str) -> None:
        """Publishes another value. Raises `NotLeaderError` if this session doesn't lead."""
        acquired = self._acquired
        if acquired is None:
            raise errors.NotLeaderError
        self.session._run(_locks.proclaim(self.session.client.scope, acquired[1], value))  # noqa: SLF001

    def resign(self) -> None:
        """Leads no more."""
        self._give_back()

    def leader(self) -> Leader:
        """The present leader. Raises `NoLeaderError` if there is none."""
        return self.session.client.run(_locks.leader(self.session.client.scope, self.name))

    def observe(self) -> Iterator[Leader]:
        """Each leader and each of its values from now on, until the session is lost or the iterator is closed."""
        found: queue.SimpleQueue[Leader | BaseException] = queue.SimpleQueue()
        interrupt = Interrupt()
        client = self.session.client

        def report(leader: Leader) -> bool:
            found.put(leader)
            return False

        def follow() -> None:
            try:
                client.run(_locks.observe(client.scope, self.name, report), interrupt)
            except Interrupted:
                found.put(errors.SessionExpiredError())
            except errors.LessorError as error:
                found.put(error)

        self.session._interrupt.add(interrupt.set)  # noqa: SLF001
        threading.Thread(target=follow, name="lessor-observe", daemon=True).start()
        try:
            while True:
                next_one = found.get()
                if isinstance(next_one, BaseException):
                    raise next_one
                yield next_one
        finally:
            interrupt.set()
            self.session._interrupt.remove(interrupt.set)  # noqa: SLF001
