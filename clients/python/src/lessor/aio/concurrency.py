"""Mutex and Election with asyncio: see `lessor.concurrency`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from lessor import _clock, _locks, errors
from lessor._locks import Acquisition, Leader, Lock, SessionView, random_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from lessor._flow import Flow
    from lessor.aio.client import HeldLease, LeaseClient

__all__ = ["Election", "Leader", "Mutex", "Session"]

T = TypeVar("T")


class Session:
    """A lease that is kept alive for the locks of this process. Made by `Session.new`, or by `async with session(…)`."""

    def __init__(self, client: LeaseClient, lease: HeldLease, holder: str, margin: float | None) -> None:
        self.client = client
        #: The lease. Nothing else may renew or revoke it.
        self.lease = lease
        #: Set once the session is lost.
        self.lost = lease.lost
        self._closed = asyncio.Event()
        self._view = SessionView(lease.name, lease.uid, holder, self.is_valid)
        self._background: set[asyncio.Task[None]] = set()
        lease.keep_alive(margin=margin)

    @staticmethod
    async def new(client: LeaseClient, ttl: float = 60.0, *, holder: str = "", margin: float | None = None) -> Session:
        """Grants the lease of a session, and keeps it alive."""
        lease = await client.grant(f"session-{random_id()}", ttl, holder=holder or None)
        return Session(client, lease, holder, margin)

    def is_valid(self) -> bool:
        """Whether locks of this session are certainly held."""
        return not self._closed.is_set() and self.lease.is_alive()

    async def close(self) -> None:
        """Ends the session, and with it all its locks."""
        self.orphan()
        if self.lease.loss is None:
            await self.lease.revoke()

    def orphan(self) -> None:
        """Ends the session for this process. Its lease and its locks live until its deadline."""
        self._closed.set()
        self.lease.stop()
        for task in self._background:
            task.cancel()

    async def __aenter__(self) -> Session:
        """Begins a block at whose end the session is closed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the session."""
        if error is None:
            await self.close()
        else:
            # The error of the block is the one to report. Without a revocation the lease expires.
            with contextlib.suppress(errors.LessorError):
                await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        """Runs a flow that stops once the session is lost."""
        running = asyncio.ensure_future(self.client.run(flow))
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self.lost.wait()),
            asyncio.ensure_future(self._closed.wait()),
        ]
        try:
            await asyncio.wait([running, *ends], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            raise errors.SessionExpiredError
        finally:
            for end in ends:
                end.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait([running])

    async def _acquire(self, acquisition: Acquisition, timeout: float | None, *, only_try: bool) -> Lock:  # noqa: ASYNC109
        deadline = None if timeout is None else _clock.now() + timeout
        try:
            return await self._run(
                _locks.acquire(self.client.scope, self._view, acquisition, deadline, only_try=only_try)
            )
        except BaseException:
            self._ended(acquisition)
            raise

    async def _release(self, acquisition: Acquisition, lock: Lock) -> None:
        try:
            await self._run(_locks.release(self.client.scope, self._view, lock))
            acquisition.acquired = False
        finally:
            self._ended(acquisition)

    def _ended(self, acquisition: Acquisition) -> None:
        """Removes in the background what the acquisition may leave behind."""
        if acquisition.may_leave_an_object() and self.is_valid():
            self._view.ended.add(acquisition.id)
            task = asyncio.create_task(self._clean_up(acquisition), name="lessor-clean-up")
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _clean_up(self, acquisition: Acquisition) -> None:
        with contextlib.suppress(errors.LessorError):
            await self._run(_locks.clean_up(self.client.scope, self._view, acquisition))
            self._view.ended.discard(acquisition.id)


@contextlib.asynccontextmanager
async def session(
    client: LeaseClient, ttl: float = 60.0, *, holder: str = "", margin: float | None = None
) -> AsyncIterator[Session]:
    """A session for the block."""
    async with await Session.new(client, ttl, holder=holder, margin=margin) as new:
        yield new


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

    async def _take(self, value: str, timeout: float | None, *, only_try: bool = False) -> None:  # noqa: ASYNC109
        acquisition = Acquisition(self.name, value)
        lock = await self.session._acquire(acquisition, timeout, only_try=only_try)  # noqa: SLF001
        self._acquired = acquisition, lock

    async def _give_back(self) -> bool:
        """Releases the lock. Returns whether it was held."""
        acquired, self._acquired = self._acquired, None
        if acquired is not None:
            await self.session._release(*acquired)  # noqa: SLF001
        return acquired is not None


class Mutex(_Lockable):
    """A lock that at most one session holds, in the namespace of its client."""

    async def lock(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - As without asyncio.
        """Waits until the lock is acquired.

        Raises `TimeoutError` after `timeout` seconds, and `SessionExpiredError` once the session is lost.
        """
        await self._take("", timeout)

    async def try_lock(self) -> None:
        """Acquires the lock if it is free. Raises `LockedError` if another session holds it."""
        await self._take("", None, only_try=True)

    async def unlock(self) -> None:
        """Releases the lock."""
        if not await self._give_back():
            raise errors.LockReleasedError

    async def __aenter__(self) -> Mutex:
        """Locks for a block."""
        await self.lock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlocks. The error of the block is the one to report."""
        try:
            await self._give_back()
        except errors.LessorError:
            if error is None:
                raise


class Election(_Lockable):
    """An election: one of many sessions leads, with a value that all can read."""

    async def campaign(self, value: str, timeout: float | None = None) -> None:  # noqa: ASYNC109 - As without asyncio.
        """Waits until this session leads, and publishes `value`.

        Raises `TimeoutError` after `timeout` seconds, and `SessionExpiredError` once the session is lost.
        """
        await self._take(value, timeout)

    async def proclaim(self, value: str) -> None:
        """Publishes another value. Raises `NotLeaderError` if this session doesn't lead."""
        acquired = self._acquired
        if acquired is None:
            raise errors.NotLeaderError
        await self.session._run(_locks.proclaim(self.session.client.scope, acquired[1], value))  # noqa: SLF001

    async def resign(self) -> None:
        """Leads no more."""
        await self._give_back()

    async def leader(self) -> Leader:
        """The present leader. Raises `NoLeaderError` if there is none."""
        return await self.session.client.run(_locks.leader(self.session.client.scope, self.name))

    async def observe(self) -> AsyncIterator[Leader]:
        """Each leader and each of its values from now on, until the session is lost or the iterator is closed."""
        found: asyncio.Queue[Leader | None] = asyncio.Queue()

        def report(leader: Leader) -> bool:
            found.put_nowait(leader)
            return False

        task = asyncio.ensure_future(self.session._run(_locks.observe(self.session.client.scope, self.name, report)))  # noqa: SLF001
        task.add_done_callback(lambda _: found.put_nowait(None))
        try:
            while (leader := await found.get()) is not None:
                yield leader
            task.result()
        finally:
            task.cancel()
