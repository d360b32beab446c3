"""Requests for leases and for what is attached to them, as flows."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from lessor import _annotations, _clock, _names, errors
from lessor._annotations import KeyForm
from lessor._flow import (
    MERGE_PATCH,
    METADATA,
    REQUEST_TIMEOUT,
    Answer,
    Flow,
    Json,
    Request,
    Sleep,
    Stream,
    check_event,
    send,
)
from lessor._validity import Validity, renew_time

T = TypeVar("T")

#: The maximum number of attempts while other writers change the same object.
MAX_ATTEMPTS = 100
#: The interval of reads without the right to watch, in seconds.
POLL_INTERVAL = 1.0
#: How long a watch may stay silent, and how long the API server keeps it. Bookmarks come about once a minute.
WATCH_SILENCE = 120.0
WATCH_SECONDS = 290
FIRST_DELAY, MAX_DELAY = 0.1, 5.0


@dataclass(frozen=True)
class Scope:
    """Where requests go, and under which name."""

    namespace: str
    field_manager: str = "lessor-python"
    timeout: float = REQUEST_TIMEOUT

    def leases(self) -> str:
        """The path of the leases."""
        return f"/apis/lessor.dev/v1alpha1/namespaces/{quote(self.namespace, safe='')}/leases"

    def lease(self, name: str) -> str:
        """The path of one lease."""
        return f"{self.leases()}/{quote(name, safe='')}"

    def config_maps(self) -> str:
        """The path of the ConfigMaps."""
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/configmaps"

    def get(self, path: str, **options: Any) -> Request:
        """A request that reads what is current."""
        return Request("GET", path, timeout=self.timeout, **options)

    def create(self, path: str, body: Json) -> Request:
        """A request that creates."""
        return Request("POST", path, {"fieldManager": self.field_manager}, body, timeout=self.timeout)

    def patch(self, path: str, body: Json, **options: Any) -> Request:
        """A merge patch."""
        query = {"fieldManager": self.field_manager}
        return Request("PATCH", path, query, body, MERGE_PATCH, **{"timeout": self.timeout, **options})

    def delete(self, path: str, **preconditions: str | None) -> Request:
        """A deletion, on condition that the object has these values."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        bound = {name: value for name, value in preconditions.items() if value is not None}
        if bound:
            body["preconditions"] = bound
        return Request("DELETE", path, body=body, timeout=self.timeout)


@dataclass(frozen=True)
class Held:
    """A lease as last granted or renewed, with the time for which its holder may rely on it."""

    name: str
    uid: str
    lease: Json
    validity: Validity

    @staticmethod
    def of(answer: Answer) -> Held:
        """Raises `NotGrantedError` if the lease in the answer isn't granted."""
        metadata = answer.object["metadata"]
        validity = Validity.of(answer)
        if validity is None:
            raise errors.NotGrantedError(metadata["name"], _clock.now() - answer.sent)
        return Held(metadata["name"], metadata["uid"], answer.object, validity)

    def renewed(self, answer: Answer) -> Held:
        """The lease after another renewal."""
        validity = self.validity.renewed(answer)
        if validity is None:
            # A lease that was granted, and is not any more, has lost its status.
            raise errors.EndedError
        return replace(self, lease=answer.object, validity=validity)

    @property
    def fencing_token(self) -> int:
        """Greater than the token of every earlier lease of this name."""
        return int((self.lease.get("status") or {}).get("fencingToken") or 0)


def is_ended(lease: Json) -> bool:
    """Whether the end of a lease is committed."""
    return bool((lease.get("status") or {}).get("endTime"))


def is_deleting(lease: Json) -> bool:
    """Whether a lease was deleted and isn't gone yet."""
    return bool(lease["metadata"].get("deletionTimestamp"))


def _has_started(lease: Json) -> bool:
    """Whether the primary has granted a lease. It sets the finalizer before that, so the end will be complete."""
    conditions = (lease.get("status") or {}).get("conditions") or []
    reasons = {found.get("reason") for found in conditions if found.get("type") == "Active"}
    return not reasons.isdisjoint({"Granted", "Suspended"})


def grant(scope: Scope, name: str, spec: Json, labels: Mapping[str, str], wait: float) -> Flow[Held]:
    """Creates a lease, and waits until the primary has granted it."""
    body: Json = {
        "apiVersion": "lessor.dev/v1alpha1",
        "kind": "Lease",
        "metadata": {"name": name, **({"labels": dict(labels)} if labels else {})},
        "spec": spec,
    }
    created = yield from send(scope.create(scope.leases(), body))
    uid = created.object["metadata"]["uid"]

    def granted(lease: Json | None) -> Json | None:
        if lease is None:
            raise errors.EndedError
        if lease["metadata"]["uid"] != uid:
            raise errors.ReplacedError
        if is_ended(lease) or is_deleting(lease):
            raise errors.EndedError
        return lease if _has_started(lease) else None

    lease = yield from wait_for(scope, name, granted, created.sent + wait)
    if lease is None:
        raise errors.NotGrantedError(name, wait)
    held = Held.of(replace(created, object=lease))
    # The TTL counts from before the creation, so after a slow grant little or nothing of it is left.
    if held.validity.deadline - _clock.now() < held.validity.ttl * 2 / 3:
        return (yield from renew(scope, held))
    return held


def renew(scope: Scope, held: Held, timeout: float | None = None) -> Flow[Held]:
    """Renews a lease once."""
    previous = held.lease["spec"].get("renewTime")
    answer = yield from _renewal(scope, held.name, previous, held.uid, timeout)
    return held.renewed(answer)


def renew_by_name(scope: Scope, name: str) -> Flow[Held]:
    """Renews a lease by its name, even if it has another holder."""
    return Held.of((yield from _renewal(scope, name, None, None, None)))


def _renewal(scope: Scope, name: str, previous: str | None, uid: str | None, timeout: float | None) -> Flow[Answer]:
    patch: Json = {"spec": {"renewTime": renew_time(datetime.now(UTC), previous)}}
    if uid is not None:
        # A renewal that is late renews no later lease of this name.
        patch["metadata"] = {"uid": uid}
    answer = yield from send(scope.patch(scope.lease(name), patch, timeout=timeout or scope.timeout))
    # The API server accepts a patch that changes nothing even after the end.
    if is_ended(answer.object):
        raise errors.EndedError
    return answer


def revoke(scope: Scope, name: str, uid: str | None) -> Flow[None]:
    """Ends a lease now."""
    yield from send(scope.delete(scope.lease(name), uid=uid))


def revoke_held(scope: Scope, held: Held) -> Flow[None]:
    """Ends this lease now. If it is gone already, that is no error."""
    try:
        yield from revoke(scope, held.name, held.uid)
    except (errors.NotFoundError, errors.ConflictError):
        return  # The API server responds with a conflict if the uid differs.


def get(scope: Scope, name: str) -> Flow[Json]:
    """Reads a lease."""
    return (yield from send(scope.get(scope.lease(name)))).object


def wait_gone(scope: Scope, name: str, deadline: float | None) -> Flow[bool]:
    """Waits until a lease is gone. Returns whether it is."""
    gone = yield from wait_for(scope, name, lambda lease: True if lease is None else None, deadline)
    return gone is not None


def wait_for(
    scope: Scope, name: str, condition: Callable[[Json | None], T | None], deadline: float | None
) -> Flow[T | None]:
    """Waits until `condition` returns a value for a lease, or None if it doesn't exist. None after the deadline.

    Polls if the right to watch is missing.
    """
    watches, failures = True, 0
    while deadline is None or _clock.now() < deadline:
        try:
            lease, version = yield from _read(scope, name, watches)
            value = condition(lease)
            if value is None and watches:
                value = yield from _watch_for(scope, name, version, condition, deadline)
            if value is not None:
                return value
            failures = 0
        except errors.ForbiddenError:
            if not watches:
                raise
            watches = False
            continue
        except errors.LessorError as error:
            if not error.is_temporary:
                raise
            failures += 1
        pause = POLL_INTERVAL if not watches and not failures else delay(max(1, failures))
        yield Sleep(pause if deadline is None else max(0.0, min(pause, deadline - _clock.now())))
    return None


def _read(scope: Scope, name: str, by_list: bool) -> Flow[tuple[Json | None, str | None]]:
    """A lease, and the version from which to watch it."""
    if by_list:
        query = {"fieldSelector": f"metadata.name={name}"}
        answer = yield from send(scope.get(scope.leases(), query=query))
        items = answer.object.get("items") or []
        return (items[0] if items else None), answer.object["metadata"]["resourceVersion"]
    try:
        return (yield from get(scope, name)), None
    except errors.NotFoundError:
        return None, None


def _watch_for(
    scope: Scope,
    name: str,
    version: str | None,
    condition: Callable[[Json | None], T | None],
    deadline: float | None,
) -> Flow[T | None]:
    found: list[T] = []

    def on_event(event: Json) -> bool:
        if event.get("type") == "BOOKMARK":
            return False
        check_event(event)
        value = condition(None if event.get("type") == "DELETED" else event["object"])
        if value is not None:
            found.append(value)
        return bool(found)

    left = WATCH_SECONDS if deadline is None else min(WATCH_SECONDS, deadline - _clock.now())
    if left <= 0:
        return None
    query = watch_query(f"metadata.name={name}", version, left)
    try:
        yield Stream(scope.leases(), query, on_event, timeout=min(WATCH_SILENCE, left))
    except errors.NoResponseError:
        pass  # The connection broke, or nothing happened. The caller reads again.
    except errors.NotFoundError:
        pass  # 410: the version is too old.
    return found[0] if found else None


def watch_query(selector: str, version: str | None, seconds: float) -> dict[str, str]:
    """The query of a watch from a version on."""
    query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(seconds)))}
    if selector:
        query["fieldSelector"] = selector
    if version is not None:
        query["resourceVersion"] = version
    return query


def delay(failures: int, retry_after: float | None = None) -> float:
    """The delay after so many failures in a row, with jitter."""
    doubled = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16))
    return max(doubled * random.uniform(0.75, 1.0), retry_after or 0.0)


@dataclass(frozen=True)
class Target:
    """An object to attach, in the namespace of the lease."""

    #: `v1`, or a group and a version, like `apps/v1`.
    api_version: str
    kind: str
    #: The kind in paths, like `deployments`.
    plural: str
    name: str

    @property
    def key_form(self) -> KeyForm:
        """The form of this object's keys."""
        return "data" if self.api_version == "v1" and self.kind in ("ConfigMap", "Secret") else "pointer"

    def path(self, namespace: str) -> str:
        """The path of the object."""
        root = "/api" if "/" not in self.api_version else "/apis"
        return f"{root}/{self.api_version}/namespaces/{quote(namespace, safe='')}/{self.plural}/{quote(self.name, safe='')}"


def config_map(name: str) -> Target:
    """A ConfigMap to attach."""
    return Target("v1", "ConfigMap", "configmaps", name)


def secret(name: str) -> Target:
    """A Secret to attach."""
    return Target("v1", "Secret", "secrets", name)


@dataclass(frozen=True)
class AttachOutcome:
    """The effect of attaching."""

    #: Whether the annotations were changed.
    changed: bool
    #: The other leases to which the object, or one of the keys, was attached.
    moved_from: frozenset[str] = frozenset()


def attach(scope: Scope, lease: str, target: Target, keys: Collection[str]) -> Flow[AttachOutcome]:
    """Attaches keys of an object, or the whole object, to a lease."""
    _check(lease, target, keys)
    moved_from: set[str] = set()

    def decide(annotations: Mapping[str, str]) -> _annotations.Changes:
        before = _annotations.parse(annotations, target.key_form)
        owners = [before.keys.get(key) for key in keys] if keys else [before.whole]
        moved_from.clear()
        moved_from.update(owner for owner in owners if owner is not None and owner != lease)
        return _annotations.attaching(annotations, target.key_form, lease, keys)

    changed = yield from _annotate(scope, target, decide)
    return AttachOutcome(changed, frozenset(moved_from))


def detach(scope: Scope, lease: str, target: Target, keys: Collection[str]) -> Flow[bool]:
    """Detaches keys of an object from a lease, or everything of it. Returns whether anything was attached."""
    _check(lease, target, keys)
    return (
        yield from _annotate(scope, target, lambda found: _annotations.detaching(found, target.key_form, lease, keys))
    )


def register(scope: Scope, lease: str, name: str, key: str, value: str) -> Flow[None]:
    """Sets a key of a ConfigMap and attaches it to a lease in one write. Creates the ConfigMap if it doesn't exist."""
    _check(lease, config_map(name), [key])
    entry = {
        "metadata": {"name": name, "annotations": {_annotations.KEY_PREFIX + key: lease}},
        "data": {key: value},
    }
    path = config_map(name).path(scope.namespace)
    # Another client may create or delete the ConfigMap between the two requests.
    for _ in range(MAX_ATTEMPTS):
        try:
            yield from send(scope.patch(path, entry))
        except errors.NotFoundError:
            pass
        else:
            return
        try:
            yield from send(scope.create(scope.config_maps(), {"apiVersion": "v1", "kind": "ConfigMap", **entry}))
        except errors.ExistsError:
            pass
        else:
            return
    raise errors.ConflictError(f'configmap "{name}" is created and deleted repeatedly')


def _check(lease: str, target: Target, keys: Collection[str]) -> None:
    try:
        _names.check_lease_name(lease)
        for key in keys:
            _annotations.check_key(key, target.key_form)
    except ValueError as error:
        raise errors.InvalidError(str(error)) from error


def _annotate(scope: Scope, target: Target, decide: Callable[[Mapping[str, str]], _annotations.Changes]) -> Flow[bool]:
    """Reads an object, and applies the changes that `decide` returns, on condition that the object is unchanged."""
    path = target.path(scope.namespace)
    for attempt in range(MAX_ATTEMPTS + 1):
        metadata = (yield from send(scope.get(path, accept=METADATA))).object["metadata"]
        changes = decide(metadata.get("annotations") or {})
        if not changes:
            return False
        bound = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            yield from send(scope.patch(path, {"metadata": {**bound, "annotations": changes}}, accept=METADATA))
        except errors.ConflictError:
            if attempt == MAX_ATTEMPTS:
                raise
            # A random delay, so that writers that collided don't collide again.
            yield Sleep(random.uniform(0.0, 0.01))
        else:
            return True
    return False
