"""The spec of a lease to grant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lessor.errors import InvalidError

if TYPE_CHECKING:
    from lessor._flow import Json


def lease_spec(
    ttl: float,
    *,
    holder: str | None = None,
    max_lifetime: float | None = None,
    warn_before: float | None = None,
    retain: bool = False,
    renew_from: Json | None = None,
) -> Json:
    """The spec; durations are in seconds, and rounded up to whole ones."""
    optional = {
        "holder": holder,
        "maxLifetimeSeconds": _rounded_up(max_lifetime),
        "warnBeforeSeconds": _rounded_up(warn_before),
        "afterExpiry": "Retain" if retain else None,
        "renewFrom": renew_from,
    }
    spec: Json = {name: value for name, value in optional.items() if value is not None}
    return {"ttlSeconds": _rounded_up(ttl), **spec}


def _rounded_up(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds):
        raise InvalidError(f"invalid duration {seconds}: a number of seconds, like 15")
    return math.ceil(seconds)
