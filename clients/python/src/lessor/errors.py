"""Why a request failed, or a lease was lost, with the API server's message where there is one."""

from __future__ import annotations

import enum
import json
from typing import Any

ENDED_MESSAGE = "lease has ended: grant a new one"


class LessorError(Exception):
    """The base of all errors of this package."""

    #: Whether another attempt may succeed without anything else being changed.
    is_temporary = False

    def hint(self) -> str | None:
        """What the user can do about the error, if its message doesn't tell."""
        return None


class NotFoundError(LessorError):
    """The object doesn't exist (404)."""


class NotInstalledError(LessorError):
    """The API server doesn't serve Leases of lessor.dev (404 without the name of an object)."""

    def __init__(self) -> None:
        super().__init__("Lessor is not installed in this cluster: install its Helm chart, or apply deploy/lessor.yaml")


class ExistsError(LessorError):
    """An object of this name exists (409)."""


class EndedError(LessorError):
    """The lease has ended, and can't be renewed."""

    def __init__(self) -> None:
        super().__init__(ENDED_MESSAGE)


class ReplacedError(LessorError):
    """The lease is gone, and another of its name exists."""

    def __init__(self) -> None:
        super().__init__(
            "the lease is gone, and another lease of this name exists: grant a lease with another name, or renew "
            "the other lease by its name"
        )


class NotGrantedError(LessorError):
    """The primary didn't grant the lease in time."""

    def __init__(self, lease: str, waited: float) -> None:
        super().__init__(
            f'lease "{lease}" was created, but not granted within {waited:.1f} s: check with `kubectl lease status` '
            "that the operator is running and serves this namespace"
        )


class UnauthorizedError(LessorError):
    """The user is not authenticated (401)."""


class ForbiddenError(LessorError):
    """The user lacks a right (403)."""

    def hint(self) -> str | None:
        """The role that has the right."""
        message = str(self)
        if ".lessor.dev" not in message:
            return "ask an administrator for this right in this namespace"
        reads = any(f"cannot {verb} " in message for verb in ("get", "list", "watch"))
        role = "view" if reads else "edit"
        return (
            f"the role {role} includes this right through lessor-{role}: kubectl create rolebinding NAME "
            f"--clusterrole={role} --user=USER --namespace=NAMESPACE"
        )


class InvalidError(LessorError):
    """The request is invalid (400, 422)."""


class AnnotationError(LessorError):
    """The annotations of an object are invalid, or would become so."""

    #: The key that two annotations attach to different leases.
    key: str | None = None


class ConflictError(LessorError):
    """Other writers changed the object at the same time, repeatedly (409)."""

    is_temporary = True


class ThrottledError(LessorError):
    """The API server limits the rate of requests (429)."""

    is_temporary = True

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("the API server is overloaded (429 Too Many Requests)")
        #: The seconds after which the API server will accept another request.
        self.retry_after = retry_after


class ServerError(LessorError):
    """The API server failed (5xx)."""

    is_temporary = True

    def __init__(self, message: str) -> None:
        super().__init__(f"API server error: {message}")


class NoResponseError(LessorError):
    """No response arrived. The request may have had its effect."""

    is_temporary = True

    def __init__(self, message: str) -> None:
        super().__init__(f"no response from the API server: {message}")


class LossReason(enum.Enum):
    """Why a holder has lost its lease."""

    #: It has ended.
    ENDED = ENDED_MESSAGE
    #: A user has deleted it.
    REVOKED = "the lease was revoked: grant a new one"
    #: It doesn't exist any more.
    GONE = "the lease is gone: grant a new one"
    #: Another lease has its name.
    REPLACED = "the lease is gone, and another lease of this name exists"
    #: It has reached its maximum lifetime.
    MAX_LIFETIME = "the lease has reached its maximum lifetime: grant a new one"
    #: It couldn't be renewed in time. On the server it may live longer, but the holder can't rely on that.
    NOT_RENEWED = "the lease could not be renewed in time"


class LeaseLostError(LessorError):
    """The lease is lost: stop the work that it protects."""

    def __init__(self, reason: LossReason, cause: LessorError | None = None) -> None:
        super().__init__(f"{reason.value}: {cause}" if cause else reason.value)
        self.reason = reason


class LockedError(LessorError):
    """Another session holds the lock."""


class LockReleasedError(LessorError):
    """The lock isn't held."""

    def __init__(self) -> None:
        super().__init__("the lock is not held: lock it first")


class SessionExpiredError(LessorError):
    """The session is lost or closed, so it can't hold a lock."""

    def __init__(self) -> None:
        super().__init__("session expired: make a new one")


class NotLeaderError(LessorError):
    """This session isn't the leader of the election."""

    def __init__(self) -> None:
        super().__init__("not the leader of this election: campaign again")


class NoLeaderError(LessorError):
    """The election has no leader."""

    def __init__(self) -> None:
        super().__init__("the election has no leader")


def retry_after(error: LessorError) -> float | None:
    """The seconds after which the API server will accept another request, if it has said that."""
    return error.retry_after if isinstance(error, ThrottledError) else None


def of_response(status: int, retry_after_text: str | None, body: bytes) -> LessorError:
    """The error in a response."""
    answer = _status(body)
    # A proxy in front of the API server may answer in a format of its own.
    message = str(answer.get("message") or f"HTTP status {status}")
    details = answer.get("details") or {}
    match status:
        case 401:
            return UnauthorizedError(message)
        case 403:
            return ForbiddenError(message)
        case 404:
            return NotFoundError(message) if details.get("name") else NotInstalledError()
        case 409 if answer.get("reason") == "AlreadyExists":
            return ExistsError(message)
        case 409:
            return ConflictError(message)
        case 410:
            return NotFoundError(message)
        case 422 if any(cause.get("field") == "metadata.uid" for cause in details.get("causes") or []):
            return ReplacedError()
        case 422 if ENDED_MESSAGE in message:
            return EndedError()
        case 429:
            return ThrottledError(_seconds(retry_after_text) or details.get("retryAfterSeconds"))
        case _ if 400 <= status < 500:
            return InvalidError(message)
        case _:
            return ServerError(message)


def _status(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
