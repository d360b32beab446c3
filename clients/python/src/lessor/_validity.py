"""How long a holder may rely on its lease: pure arithmetic on one response of the API server.

The operator counts the TTL from the instant at which the API server accepted a renewal, and the holder from the instant before
it sent the renewal. So the holder's deadline is always the earlier one, whatever the network and the clocks do.
"""

from __future__ import annotations

import email.utils
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessor._flow import Answer, Json

#: `Date` is rounded down to the second, so the API server's clock was less than this ahead of it.
DATE_PRECISION = 1.0
#: The largest default of the margin, in seconds.
MAX_DEFAULT_MARGIN = 1.0


@dataclass(frozen=True)
class Validity:
    """Until when a holder may rely on its lease, in seconds of the clock."""

    #: How long the lease lives after a renewal.
    ttl: float
    #: The instant before the last renewal was sent.
    since: float
    #: The lease is alive until then at least.
    deadline: float
    #: Whether the deadline is the end of the maximum lifetime, which no renewal moves.
    capped: bool
    requested_ttl: int
    #: Set after a change of `spec.ttlSeconds`: the primary hasn't observed it while `status.specGeneration` is below.
    unobserved_below: int | None = None

    @staticmethod
    def of(answer: Answer) -> Validity | None:
        """The validity after a grant or a first renewal. None if the lease isn't granted."""
        requested = int(answer.object["spec"]["ttlSeconds"])
        return Validity(0.0, answer.sent, answer.sent, False, requested).renewed(answer)

    def renewed(self, answer: Answer) -> Validity | None:
        """The validity after another renewal. None if the lease isn't granted."""
        lease = answer.object
        status = lease.get("status") or {}
        granted = status.get("grantedTTLSeconds")
        if granted is None:
            return None
        requested = int(lease["spec"]["ttlSeconds"])
        unobserved_below = self.unobserved_below
        if requested != self.requested_ttl:
            unobserved_below = lease["metadata"].get("generation")
        if unobserved_below is not None and int(status.get("specGeneration") or 0) >= unobserved_below:
            unobserved_below = None
        # While the primary may not have observed a change of the requested TTL: the smaller of the two.
        ttl = float(granted if unobserved_below is None else min(granted, requested))
        left = _lifetime_left(answer)
        capped = left is not None and left <= ttl
        lives = left if left is not None and capped else ttl
        return replace(
            self,
            ttl=ttl,
            since=answer.sent,
            deadline=answer.sent + lives,
            capped=capped,
            requested_ttl=requested,
            unobserved_below=unobserved_below,
        )

    def lost_at(self, margin: float | None) -> float:
        """When a lease that can't be renewed counts as lost, `margin` before its deadline."""
        return self.deadline - (min(MAX_DEFAULT_MARGIN, self.ttl / 10) if margin is None else margin)


def _lifetime_left(answer: Answer) -> float | None:
    """The shortest possible time from the request to the end of the maximum lifetime. None if there is no maximum."""
    lifetime = answer.object["spec"].get("maxLifetimeSeconds")
    granted = parsed((answer.object.get("status") or {}).get("grantTime"))
    if lifetime is None or granted is None:
        return None
    latest_now = (http_date(answer.date) or datetime.now(UTC)) + timedelta(seconds=DATE_PRECISION)
    return max(0.0, float(lifetime) - max(0.0, (latest_now - granted).total_seconds()))


def http_date(text: str | None) -> datetime | None:
    """The value of a header `Date`. None if it is malformed."""
    try:
        return email.utils.parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


def parsed(text: str | None) -> datetime | None:
    """A time of the API, rounded down to microseconds. None if it is malformed, or outside of Python's range."""
    if not text:
        return None
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = (rest[len(digits) :] if dot else whole[19:]).replace("Z", "+00:00").replace("z", "+00:00")
    try:
        return datetime.fromisoformat(f"{whole[:19]}.{digits[:6]:0<6}{zone}")
    except ValueError:
        return None


def renew_time(now: datetime, previous: str | None) -> str:
    """A `renewTime` that differs from `previous`, and is later if `previous` is a time: an unchanged one renews nothing.

    Two renewals may happen within a microsecond, and a clock may step back.
    """
    before = parsed(previous)
    if before is not None and before >= now:
        try:
            now = before + timedelta(microseconds=1)
        except OverflowError:
            now = before - timedelta(microseconds=1)
    return now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def resource_version(lease: Json) -> int:
    """`metadata.resourceVersion`, which only increases."""
    try:
        return int(lease["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return 0
