"""What this package does, as generators that ask for their I/O.

A flow yields a `Request`, `Sleep` or `Stream`, and is resumed with the result. One driver runs flows in threads, another in
asyncio, so that each decision is written once and tests run it without a server or a clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lessor import errors

T = TypeVar("T")
Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

#: The default timeout of a request, in seconds.
REQUEST_TIMEOUT = 10.0


@dataclass(frozen=True)
class Request:
    """A request, which is sent once. Resumes with a `Response`, or raises `NoResponseError`."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    timeout: float = REQUEST_TIMEOUT


@dataclass(frozen=True)
class Response:
    """A response, whatever its status."""

    status: int
    body: bytes
    #: The clock before the request was sent.
    sent: float
    date: str | None = None
    retry_after: str | None = None


@dataclass(frozen=True)
class Sleep:
    """Resumes after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Stream:
    """A watch. Resumes once `on_event` has returned true, or the watch has ended; raises what a request raises."""

    path: str
    query: Mapping[str, str]
    on_event: Callable[[Json], bool]
    #: The longest silence.
    timeout: float


Effect = Request | Sleep | Stream
Flow = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Answer:
    """The object in a successful response."""

    object: Json
    sent: float
    date: str | None


def send(request: Request) -> Flow[Answer]:
    """Sends a request, and raises the error in its response."""
    response: Response = yield request
    if not 200 <= response.status < 300:
        raise errors.of_response(response.status, response.retry_after, response.body)
    try:
        decoded = json.loads(response.body)
    except ValueError as error:
        raise errors.NoResponseError(f"malformed response: {error}") from error
    if not isinstance(decoded, dict):
        raise errors.NoResponseError("malformed response: not an object")
    return Answer(decoded, response.sent, response.date)


def check_event(event: Json) -> None:
    """Raises the error that a watch reports."""
    if event.get("type") == "ERROR":
        status = event.get("object") or {}
        raise errors.of_response(int(status.get("code") or 500), None, json.dumps(status).encode())
