"""Leases on the official Kubernetes client, for programs with threads."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from lessor import _clock, _leases, errors
from lessor._flow import REQUEST_TIMEOUT
from lessor._held import HeldState
from lessor._keeper import Kept
from lessor._leases import AttachOutcome, Held, Scope, Target
from lessor._spec import lease_spec
from lessor._threads import Interrupt, KeeperThread, Transport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lessor._flow import Flow, Json

T = TypeVar("T")


class LeaseClient:
    """Requests for the leases of one namespace. All leases that it keeps alive share a few threads and one watch.

    Without an `api_client` it uses the default configuration of the package kubernetes, as set by
    `kubernetes.config.load_config()`. `timeout` is that of each request, in seconds.
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
        self._transport = Transport(api_client)
        self.keeper = KeeperThread(self.scope, self._transport)

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.scope.namespace

    def run(self, flow: Flow[T], interrupt: Interrupt | None = None) -> T:
        """Runs a flow of this package."""
        return self._transport.run(flow, interrupt)

    def grant(
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

        It lives for `ttl` seconds after its last renewal, and at most for `max_lifetime`. Raises `ExistsError` if a lease
        of this name exists, even one that has ended and isn't released yet: see `wait_gone`. Raises `NotGrantedError` if
        the primary doesn't grant it in time; it exists then, and may be granted and expire later. After a
        `NoResponseError` it may have been created or not.
        """
        spec = lease_spec(
            ttl,
            holder=holder,
            max_lifetime=max_lifetime,
            warn_before=warn_before,
            retain=retain,
            renew_from=renew_from,
        )
        flow = _leases.grant(self.scope, name, spec, labels or {}, wait)
        return HeldLease(self, self.run(flow))

    @contextlib.contextmanager
    def lease(
        self, name: str, ttl: float, *, margin: float | None = None, watch: bool = True, **options: Any
    ) -> Iterator[HeldLease]:
        """Holds a lease for the block: grants it, keeps it alive, and revokes it at the end.

        `options` are those of `grant`, `margin` and `watch` those of `HeldLease.keep_alive`. Raises `LeaseLostError`
        after the block if the lease was lost meanwhile.
        """
        held = self.grant(name, ttl, **options)
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
                    held.revoke()
            raise
        held.stop()
        held.revoke()

    def renew(self, name: str) -> HeldLease:
        """Renews a lease by its name, even if it has another holder. The result can be kept alive."""
        return HeldLease(self, self.run(_leases.renew_by_name(self.scope, name)))

    def revoke(self, name: str, uid: str | None = None) -> None:
        """Revokes a lease: ends it now, even if it has another holder. Everything attached is deleted, and the lease last.

        Returns once the API server has accepted the deletion. With `uid`, a later lease of the same name isn't revoked.
        """
        self.run(_leases.revoke(self.scope, name, uid))

    def get(self, name: str) -> Json:
        """Reads a lease."""
        return self.run(_leases.get(self.scope, name))

    def wait_gone(self, name: str, timeout: float | None = None) -> bool:
        """Waits until a lease is gone, with everything attached to it. Returns false after `timeout` seconds."""
        deadline = None if timeout is None else _clock.now() + timeout
        return self.run(_leases.wait_gone(self.scope, name, deadline))

    def attach(self, lease: str, target: Target, keys: Collection[str] = ()) -> AttachOutcome:
        """Attaches `keys` of an object to a lease, or the whole object if there are none, and to no other lease.

        The lease and the keys may be created later. Nothing is removed as long as the lease doesn't exist.
        """
        return self.run(_leases.attach(self.scope, lease, target, keys))

    def detach(self, lease: str, target: Target, keys: Collection[str] = ()) -> bool:
        """Detaches `keys` of an object from a lease; without keys, the object and all of them.

        Returns whether anything was attached.
        """
        return self.run(_leases.detach(self.scope, lease, target, keys))

    def register(self, lease: str, config_map: str, key: str, value: str) -> None:
        """Sets a key of a ConfigMap and attaches it to a lease in one write, so that it never exists without its lease.

        Creates the ConfigMap if it doesn't exist. The key consists of at most 63 letters, digits, "-", "_" and ".", and
        begins and ends with a letter or digit.
        """
        self.run(_leases.register(self.scope, lease, config_map, key, value))


class HeldLease(HeldState):
    """A lease that this program was granted or has renewed, with the deadline until which it may rely on it.

    - It never counts as alive once the operator may have expired it, even if the process or the machine was suspended.
    - Once kept alive, it is renewed after a third of its TTL, with jitter. Failed renewals are repeated.
    - `lost` is set before the deadline if the lease couldn't be renewed, and at once if it was revoked.

    A lease alone is not a mutex: a process may be suspended between its look at the lease and its write. A system that
    the lease protects compares `fencing_token`, and rejects one smaller than it has accepted.
    """

    def __init__(self, client: LeaseClient, held: Held) -> None:
        #: Set once the lease is lost. Wait for it, or look at it between two steps of the work.
        self.lost = threading.Event()
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

    def renew(self) -> None:
        """Renews the lease once, now.

        `EndedError`, `NotFoundError` and `ReplacedError` mean that it is over. After any other error it is alive until
        `deadline`, and another attempt may succeed.
        """
        held = self._client.run(_leases.renew(self._client.scope, self._held))
        if self._kept is not None:
            self._client.keeper.update(self._kept, held)
        else:
            self._last = held

    def revoke(self) -> None:
        """Ends the lease now, with everything attached to it. If it is gone already, that is no error."""
        self._client.run(_leases.revoke_held(self._client.scope, self._held))


@contextlib.contextmanager
def lease(name: str, ttl: float, *, namespace: str = "default", **options: Any) -> Iterator[HeldLease]:
    """Holds a lease for the block, with a client of its own. See `LeaseClient.lease`."""
    with LeaseClient(namespace).lease(name, ttl, **options) as held:
        yield held
