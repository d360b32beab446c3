"""A fake API server with the operator in it, in the time of the clock that it is given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lessor._flow import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEASES = "/apis/lessor.dev/v1alpha1/namespaces/default/leases"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
ENDED = "lease has ended: grant a new one"

Json = dict[str, Any]
Object = tuple[str, str]


class FakeApi:
    """Leases and ConfigMaps of one namespace. A lease ends when its time is over, and what is attached goes with it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.objects: dict[Object, Json] = {}
        self.deadlines: dict[str, float] = {}
        self.events: list[tuple[int, str, Json]] = []
        self.requests: list[tuple[str, str]] = []
        self.version = 1000
        self.uids = 0
        self.granted_ttl: int | None = None
        self.grants = True

    def handle(self, method: str, path: str, query: Mapping[str, str], body: Json | None) -> tuple[int, Json]:
        """Answers one request, except a watch."""
        self.requests.append((method, path))
        self.tick()
        for root in (LEASES, CONFIG_MAPS):
            if path == root:
                return self._create(root, body or {}) if method == "POST" else self._list(root, query)
            if path.startswith(root + "/"):
                return self._one(method, (root, path.removeprefix(root + "/")), body or {})
        return failure(404, "the server could not find the requested resource")

    def tick(self) -> None:
        """Ends the leases whose time is over."""
        for name, deadline in list(self.deadlines.items()):
            if self.now() >= deadline:
                self.end(name)

    def end(self, name: str) -> None:
        """Ends a lease and all that is attached to it."""
        self.deadlines.pop(name, None)
        for key, found in list(self.objects.items()):
            if found["metadata"].get("annotations", {}).get("lessor.dev/lease") == name:
                self._remove(key)
        if (LEASES, name) in self.objects:
            self._remove((LEASES, name))

    def revoke(self, name: str) -> None:
        """Deletes a lease as a user does."""
        self.end(name)

    def events_after(self, path: str, query: Mapping[str, str], after: int) -> list[tuple[int, Json]]:
        """The events of a watch after a version."""
        self.tick()
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        return [
            (version, event)
            for version, root, event in self.events
            if version > after and root == path and name in ("", event["object"]["metadata"]["name"])
        ]

    def get(self, root: str, name: str) -> Json | None:
        """An object."""
        self.tick()
        return self.objects.get((root, name))

    def _create(self, root: str, body: Json) -> tuple[int, Json]:
        name = body["metadata"]["name"]
        if (root, name) in self.objects:
            return failure(409, f'"{name}" already exists', name, reason="AlreadyExists")
        self.uids += 1
        created = json.loads(json.dumps(body))
        created["metadata"] |= {"uid": f"uid-{self.uids}", "generation": 1}
        self._store((root, name), created, "ADDED")
        answer = self.objects[root, name]
        if root == LEASES and self.grants:
            ttl = self.granted_ttl or created["spec"]["ttlSeconds"]
            status = {
                "grantedTTLSeconds": ttl,
                "specGeneration": 1,
                "fencingToken": self.version,
                "conditions": [{"type": "Active", "status": "True", "reason": "Granted"}],
            }
            self.deadlines[name] = self.now() + ttl
            self._store((root, name), created | {"status": status}, "MODIFIED")
        return 201, answer

    def _list(self, root: str, query: Mapping[str, str]) -> tuple[int, Json]:
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        items = [found for (kind, own), found in self.objects.items() if kind == root and name in ("", own)]
        return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _one(self, method: str, key: Object, body: Json) -> tuple[int, Json]:
        found = self.objects.get(key)
        if found is None:
            return failure(404, f'"{key[1]}" not found', key[1])
        metadata = found["metadata"]
        if method == "GET":
            return 200, found
        if method == "DELETE":
            for field, value in body.get("preconditions", {}).items():
                if metadata[field] != value:
                    return failure(409, f"precondition failed: {field}", key[1])
            if key[0] == LEASES:
                self.end(key[1])
            else:
                self._remove(key)
            return 200, {}
        wanted = body.get("metadata", {})
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            return failure(422, "uid", key[1], causes=[{"field": "metadata.uid"}])
        if wanted.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            return failure(409, "the object has been modified", key[1], reason="Conflict")
        patched = merged(found, body)
        if key[0] == LEASES and patched["spec"] != found["spec"]:
            patched["metadata"]["generation"] += 1
            if "status" in patched:
                self.deadlines[key[1]] = self.now() + patched["status"]["grantedTTLSeconds"]
        self._store(key, patched, "MODIFIED")
        return 200, self.objects[key]

    def _store(self, key: Object, new: Json, kind: str) -> None:
        self.version += 1
        stored = json.loads(json.dumps(new))
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = stored
        self.events.append((self.version, key[0], {"type": kind, "object": stored}))

    def _remove(self, key: Object) -> None:
        self.version += 1
        gone = json.loads(json.dumps(self.objects.pop(key)))
        gone["metadata"]["resourceVersion"] = str(self.version)
        if key[0] == LEASES:
            self.deadlines.pop(key[1], None)
        self.events.append((self.version, key[0], {"type": "DELETED", "object": gone}))


def merged(old: Json, patch: Json) -> Json:
    """A merge patch (RFC 7386)."""
    result = dict(old)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[name] = value
    return result


def failure(code: int, message: str, name: str = "", **fields: Any) -> tuple[int, Json]:
    """A Status."""
    details: Json = {"name": name} if name else {}
    if "causes" in fields:
        details["causes"] = fields.pop("causes")
    return code, {"kind": "Status", "code": code, "message": message, "details": details, **fields}


def response(answer: tuple[int, Json], sent: float, retry_after: str | None = None) -> Response:
    """The response of a fake request."""
    return Response(answer[0], json.dumps(answer[1]).encode(), sent, retry_after=retry_after)
