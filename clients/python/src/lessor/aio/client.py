"""Leases on kubernetes_asyncio, for programs with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from lessor import _clock, _leases, errors
from lessor._flow import REQUEST_TIMEOUT
from lessor._held import HeldState
from lessor._keeper import Kept
from lessor._leases import AttachOutcome, Held, Scope, Target
from lessor._spec import lease_spec
from lessor.aio._loop import KeeperTask, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
    from types import TracebackType

    from lessor._flow import Flow, Json

T = TypeVar("T")


class LeaseClient:
    """Requests for the leases of one namespace. All leases that it keeps alive share one watch.

    Without an `api_client` it makes one: see `lessor.aio.new_api_client`, and `close`. `timeout` is that of each request,
    in seconds.
    """

    def __init__(
        self,
        namespace: str = "default",
        api_client: Any = None,
        *,
        field_manager: str = "lessor-python",
        timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        self.scope = Scope(namespace, field_manager, timeout)
        self._own = api_client is None
        self._transport = Transport(api_client)
        self.keeper = KeeperTask(self.scope, self._transport)

    async def __aenter__(self) -> LeaseClient:
        """Begins a block at whose end the connections are closed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self.close()

    async def close(self) -> None:
        """Closes the connections, unless the caller has given the `api_client`."""
        await self._transport.close(api_client=self._own)

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.scope.namespace

    async def run(self, flow: Flow[T]) -> T:
        """Runs a flow of this package."""
        return await self._transport.run(flow)

    async def grant(
        self,
        name: str,
        ttl: float,
        *,
        holder: str | None = None,
        max_lifetime: float | None = None,
        warn_before: float | None = None,
        retain: bool = False,
        renew_from: Json | None = None,
        labels: Mapping[str, str] | None = None,
        wait: float = 15.0,
    ) -> HeldLease:
        """Grants a lease: creates it, and waits for at most `wait` seconds until the primary has granted it.

        See `lessor.LeaseClient.grant`.
        """
        spec = lease_spec(
            ttl,
            holder=holder,
            max_lifetime=max_lifetime,
            warn_before=warn_before,
            retain=retain,
            renew_from=renew_from,
        )
        return HeldLease(self, await self.run(_leases.grant(self.scope, name, spec, labels or {}, wait)))

    @contextlib.asynccontextmanager
    async def lease(
        self, name: str, ttl: float, *, margin: float | None = None, watch: bool = True, **options: Any
    ) -> AsyncIterator[HeldLease]:
        """Holds a lease for the block: grants it, keeps it alive, and revokes it at the end.

        `options` are those of `grant`, `margin` and `watch` those of `HeldLease.keep_alive`. Raises `LeaseLostError`
        after the block if the lease was lost meanwhile.
        """
        held = await self.grant(name, ttl, **options)
        try:
            held.keep_alive(margin=margin, watch=watch)
            yield held
            loss = held.loss
            if loss is not None:
                raise loss
        except BaseException:
            held.stop()
            # The error of the block is the one to report, and a loss without delay: that lease is over, or about to be.
            if held.loss is None:
                with contextlib.suppress(errors.LessorError):
                    await held.revoke()
            raise
        held.stop()
        await held.revoke()

    async def renew(self, name: str) -> HeldLease:
        """Renews a lease by its name, even if it has another holder. The result can be kept alive."""
        return HeldLease(self, await self.run(_leases.renew_by_name(self.scope, name)))

    async def revoke(self, name: str, uid: str | None = None) -> None:
        """Revokes a lease: ends it now, even if it has another holder. See `lessor.LeaseClient.revoke`."""
        await self.run(_leases.revoke(self.scope, name, uid))

    async def get(self, name: str) -> Json:
        """Reads a lease."""
        return await self.run(_leases.get(self.scope, name))

    async def wait_gone(self, name: str, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - As without asyncio.
        """Waits until a lease is gone, with everything attached to it. Returns false after `timeout` seconds."""
        deadline = None if timeout is None else _clock.now() + timeout
        return await self.run(_leases.wait_gone(self.scope, name, deadline))

    async def attach(self, lease: str, target: Target, keys: Collection[str] = ()) -> AttachOutcome:
        """Attaches `keys` of an object to a lease, or the whole object. See `lessor.LeaseClient.attach`."""
        return await self.run(_leases.attach(self.scope, lease, target, keys))

    async def detach(self, lease: str, target: Target, keys: Collection[str] = ()) -> bool:
        """Detaches `keys` of an object from a lease, or all. Returns whether anything was attached."""
        return await self.run(_leases.detach(self.scope, lease, target, keys))

    async def register(self, lease: str, config_map: str, key: str, value: str) -> None:
        """Sets a key of a ConfigMap and attaches it to a lease in one write. See `lessor.LeaseClient.register`."""
        await self.run(_leases.register(self.scope, lease, config_map, key, value))


class HeldLease(HeldState):
    """A lease that this program was granted or has renewed, with the deadline until which it may rely on it.

    - It never counts as alive once the operator may have expired it, even if the process or the machine was suspended.
    - Once kept alive, it is renewed after a third of its TTL, with jitter. Failed renewals are repeated.
    - `lost` is set before the deadline if the lease couldn't be renewed, and at once if it was revoked.

    The event loop must not be blocked: the lease can't be renewed, or reported as lost, while it doesn't run. `is_alive`
    is right nevertheless.
    """

    def __init__(self, client: LeaseClient, held: Held) -> None:
        #: Set once the lease is lost.
        self.lost = asyncio.Event()
        super().__init__(held, self.lost)
        self._client = client

    def keep_alive(self, *, margin: float | None = None, watch: bool = True) -> None:
        """Renews the lease in the background until it is lost or stopped.

        `margin` is how many seconds before the deadline a lease that can't be renewed counts as lost: the time that the
        holder needs to stop the work. The default is a tenth of the TTL, and at most one second. Without `watch`, a
        revocation is noticed by the next renewal.
        """
        if self._kept is not None:
            raise errors.InvalidError(f'lease "{self.name}" is kept alive already')
        kept = Kept(self._last, margin, watch, self._lose)
        self._client.keeper.add(kept)
        self._kept, self._margin = kept, margin

    def stop(self) -> None:
        """Stops the renewals. The lease lives until its deadline, unless it is revoked."""
        if self._kept is not None:
            self._client.keeper.remove(self._kept)
            self._last, self._kept = self._kept.held, None

    async def guard(self, work: Awaitable[T]) -> T:
        """Runs `work` as long as the lease is alive. Cancels it, and raises `LeaseLostError`, if the lease is lost first."""
        running = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait([running, lost], return_when=asyncio.FIRST_COMPLETED)
            loss = self.loss
            if loss is not None and not running.done():
                raise loss
            return await running
        finally:
            lost.cancel()
            if not running.done():
                running.cancel()
                # Wait until it has cleaned up.
                await asyncio.wait([running])

    async def renew(self) -> None:
        """Renews the lease once, now.

        `EndedError`, `NotFoundError` and `ReplacedError` mean that it is over. After any other error it is alive until
        `deadline`, and another attempt may succeed.
        """
        held = await self._client.run(_leases.renew(self._client.scope, self._held))
        if self._kept is not None:
            self._client.keeper.update(self._kept, held)
        else:
            self._last = held

    async def revoke(self) -> None:
        """Ends the lease now, with everything attached to it. If it is gone already, that is no error."""
        await self._client.run(_leases.revoke_held(self._client.scope, self._held))


@contextlib.asynccontextmanager
async def lease(name: str, ttl: float, *, namespace: str = "default", **options: Any) -> AsyncIterator[HeldLease]:
    """Holds a lease for the block, with a client of its own. See `LeaseClient.lease`."""
    async with LeaseClient(namespace) as client, client.lease(name, ttl, **options) as held:
        yield held
