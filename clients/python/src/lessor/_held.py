"""What a held lease knows of itself, with threads or asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lessor import _clock, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from lessor._flow import Json
    from lessor._keeper import Kept, Loss
    from lessor._leases import Held


class Event(Protocol):
    """An event of threading or asyncio."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    def set(self) -> None:
        """It happens."""


class HeldState:
    """The lease as last renewed, and its loss."""

    def __init__(self, held: Held, lost: Event) -> None:
        self._last = held
        self._event = lost
        self._loss: Loss | None = None
        self._kept: Kept | None = None
        self._margin: float | None = None
        self._callbacks: list[Callable[[errors.LeaseLostError], None]] = []

    def is_alive(self) -> bool:
        """Whether the lease is certainly alive. Call it directly before an action that requires the lease.

        It reads the clock itself, so it is right even if the process or the machine was suspended.
        """
        return not self._event.is_set() and _clock.now() < self.lost_at

    def check(self) -> None:
        """Raises `LeaseLostError` unless the lease is certainly alive."""
        loss = self.loss
        if loss is not None:
            raise loss
        if not self.is_alive():
            raise errors.LeaseLostError(errors.LossReason.NOT_RENEWED)

    @property
    def loss(self) -> errors.LeaseLostError | None:
        """Why the lease is lost. None if it isn't."""
        return None if self._loss is None else self._loss.error()

    def on_loss(self, callback: Callable[[errors.LeaseLostError], None]) -> None:
        """Calls `callback` once the lease is lost. It runs in the thread that renews all leases, so it must not block."""
        self._callbacks.append(callback)
        if self._event.is_set() and self._loss is not None and callback in self._callbacks:
            self._callbacks.remove(callback)
            callback(self._loss.error())

    @property
    def name(self) -> str:
        """The name."""
        return self._last.name

    @property
    def uid(self) -> str:
        """The uid, which no other lease has."""
        return self._last.uid

    @property
    def lease(self) -> Json:
        """The object in the last response."""
        return self._held.lease

    @property
    def ttl(self) -> float:
        """The granted TTL in seconds, which may differ from the requested one."""
        return self._held.validity.ttl

    @property
    def deadline(self) -> float:
        """The lease is alive until then at least, in seconds of CLOCK_BOOTTIME. The deadline of the operator is later."""
        return self._held.validity.deadline

    @property
    def lost_at(self) -> float:
        """When the lease counts as lost without another renewal: before `deadline`, by the margin."""
        return self._held.validity.lost_at(self._margin)

    @property
    def fencing_token(self) -> int:
        """Greater than the token of every earlier lease of this name."""
        return self._held.fencing_token

    @property
    def _held(self) -> Held:
        kept = self._kept
        return self._last if kept is None else kept.held

    def _lose(self, loss: Loss) -> None:
        self._loss = loss
        self._event.set()
        while self._callbacks:
            self._callbacks.pop()(loss.error())
