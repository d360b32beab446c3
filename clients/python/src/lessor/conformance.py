"""The adapter between this package and the conformance suite of Lessor's clients: `python -m lessor.conformance`.

It reads commands from standard input, and writes answers and events to standard output, one JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from kubernetes import config as kubernetes_config

from lessor import _clock, _locks, errors
from lessor._leases import config_map
from lessor.client import HeldLease, LeaseClient
from lessor.concurrency import Election, Mutex, Session

Json = dict[str, Any]

_CODES: list[tuple[type[BaseException], str]] = [
    (errors.ExistsError, "exists"),
    (errors.EndedError, "ended"),
    (errors.SessionExpiredError, "ended"),
    (errors.NotFoundError, "gone"),
    (errors.NoLeaderError, "gone"),
    (errors.ReplacedError, "replaced"),
    (errors.NotGrantedError, "not-granted"),
    (errors.NotInstalledError, "not-installed"),
    (errors.UnauthorizedError, "unauthorized"),
    (errors.ForbiddenError, "forbidden"),
    (errors.InvalidError, "invalid"),
    (errors.AnnotationError, "invalid"),
    (errors.ConflictError, "conflict"),
    (errors.ThrottledError, "throttled"),
    (errors.ServerError, "unreachable"),
    (errors.NoResponseError, "unreachable"),
    (errors.LockedError, "locked"),
    (TimeoutError, "timeout"),
]


class Terminated(Exception):  # noqa: N818 - Not an error.
    """SIGTERM has arrived."""


class Unsupported(Exception):  # noqa: N818 - Not an error.
    """The adapter doesn't have this command."""


def nanoseconds(seconds: float) -> int:
    """A point in time of the protocol."""
    return round(seconds * 1e9)


def code_of(error: BaseException) -> str:
    """The code of an error."""
    if isinstance(error, Unsupported):
        return "unsupported"
    return next((code for kind, code in _CODES if isinstance(error, kind)), "other")


class Adapter:
    """What this process holds."""

    def __init__(self, client: LeaseClient, holder: str) -> None:
        self._client = client
        self._holder = holder
        self._leases: dict[str, HeldLease] = {}
        self._kept: set[str] = set()
        self._locks: dict[tuple[str, str], Mutex | Election] = {}
        self._session: Session | None = None
        self._making_session = threading.Lock()
        self._output = threading.Lock()
        self._lost: set[tuple[str, str]] = set()
        self._commands: dict[str, Callable[[Json], Json]] = {
            "grant": self._grant,
            "keep-alive": self._keep_alive,
            "stop": self._stop,
            "attach": self._attach,
            "detach": self._detach,
            "lock": self._lock,
            "try-lock": self._lock,
            "campaign": self._campaign,
            "unlock": lambda command: self._release("mutex", command),
            "resign": lambda command: self._release("election", command),
            "leader": self._leader,
        }

    def run(self) -> int:
        """Reads commands until the end of standard input. Returns the exit code."""
        can = ["lease", "attach", "mutex", "election"]
        self._write({"event": "ready", "protocol": 1, "client": "lessor-python 0.1.0", "can": can})
        for line in sys.stdin:
            command = json.loads(line)
            if command.get("do") in ("status", "keep-alive"):
                self._answer(command)
            else:
                threading.Thread(target=self._answer, args=[command], daemon=True).start()
        return 4 if self._lost else 0

    def terminate(self) -> None:
        """Revokes what is held."""
        for name in sorted(self._kept):
            held = self._leases[name]
            held.stop()
            with contextlib.suppress(errors.LessorError):
                held.revoke()
        if self._session is not None:
            with contextlib.suppress(errors.LessorError):
                self._session.close()

    def _answer(self, command: Json) -> None:
        answer: Json = {"id": command.get("id")}
        try:
            if command.get("do") == "status":
                answer["ok"] = self._status(command)
            elif command.get("do") in self._commands:
                answer["ok"] = self._commands[command["do"]](command)
            else:
                raise Unsupported(f"no such command: {command.get('do')}")
        except Exception as error:  # noqa: BLE001 - The suite judges it.
            answer["error"] = {"code": code_of(error), "message": str(error) or repr(error)}
        self._write(answer)

    def _write(self, line: Json) -> None:
        with self._output:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    def _grant(self, command: Json) -> Json:
        held = self._client.grant(command["lease"], command["ttl"], holder=self._holder)
        self._leases[held.name] = held
        return {"uid": held.uid, "ttl": held.ttl, "token": held.fencing_token, **times(held.lost_at)}

    def _keep_alive(self, command: Json) -> Json:
        name = command["lease"]
        held = self._leases[name]
        held.on_loss(lambda loss: self._report("lease", name, loss) if self._leases.get(name) is held else None)
        held.keep_alive()
        self._kept.add(name)
        return {}

    def _stop(self, command: Json) -> Json:
        name = command["lease"]
        held = self._leases.pop(name)
        self._kept.discard(name)
        self._lost.discard(("lease", name))
        held.stop()
        if command.get("revoke"):
            held.revoke()
        return {}

    def _status(self, command: Json) -> Json:
        for kind in ("mutex", "election"):
            if kind in command:
                lock = self._locks.get((kind, command[kind]))
                if lock is None:
                    return {"held": False, "until": 0, "now": nanoseconds(_clock.now()), "token": 0}
                owner = lock.held()
                token = lock.token if owner else 0
                return {"held": owner, "token": token, **times(lock.session.lease.lost_at)}
        held = self._leases[command["lease"]]
        alive = held.is_alive()
        return {"held": alive, "ttl": held.ttl, "token": held.fencing_token, **times(held.lost_at)}

    def _attach(self, command: Json) -> Json:
        self._client.attach(command["lease"], config_map(command["name"]), command.get("keys") or ())
        return {}

    def _detach(self, command: Json) -> Json:
        self._client.detach(command["lease"], config_map(command["name"]), command.get("keys") or ())
        return {}

    def _lock(self, command: Json) -> Json:
        mutex = Mutex(self._valid_session(command["ttl"]), command["mutex"])
        if command["do"] == "try-lock":
            mutex.try_lock()
        else:
            mutex.lock(command.get("wait"))
        return self._acquired("mutex", mutex)

    def _campaign(self, command: Json) -> Json:
        election = Election(self._valid_session(command["ttl"]), command["election"])
        election.campaign(command.get("value", ""), command.get("wait"))
        return self._acquired("election", election)

    def _acquired(self, kind: str, lock: Mutex | Election) -> Json:
        self._locks[kind, lock.name] = lock
        return {"token": lock.token, **times(lock.session.lease.lost_at)}

    def _release(self, kind: str, command: Json) -> Json:
        lock = self._locks.pop((kind, command[kind]))
        self._lost.discard((kind, lock.name))
        if isinstance(lock, Mutex):
            lock.unlock()
        else:
            lock.resign()
        return {}

    def _leader(self, command: Json) -> Json:
        # A reader needs no session.
        leader = self._client.run(_locks.leader(self._client.scope, command["election"]))
        return {"value": leader.value, "token": leader.token}

    def _valid_session(self, ttl: float) -> Session:
        with self._making_session:
            if self._session is None or not self._session.is_valid():
                session = Session(self._client, ttl, holder=self._holder)
                session.lease.on_loss(lambda loss: self._session_lost(session, loss))
                self._session = session
            return self._session

    def _session_lost(self, session: Session, loss: errors.LeaseLostError) -> None:
        for (kind, name), lock in list(self._locks.items()):
            if lock.session is session:
                self._report(kind, name, loss)

    def _report(self, kind: str, name: str, loss: errors.LeaseLostError) -> None:
        now = nanoseconds(_clock.now())
        self._lost.add((kind, name))
        reason = loss.reason.name.lower().replace("_", "-")
        self._write({"event": "lost", kind: name, "reason": reason, "message": str(loss), "at": now})


def times(until: float) -> Json:
    """Until when something is held, and the time at which this was asked."""
    return {"until": nanoseconds(until), "now": nanoseconds(_clock.now())}


def terminate(*_: object) -> None:
    """Handles SIGTERM."""
    raise Terminated


def main() -> None:
    """Runs the adapter."""
    if len(sys.argv) > 1:
        sys.stderr.write("usage: python -m lessor.conformance\n")
        sys.exit(2)
    signal.signal(signal.SIGTERM, terminate)
    kubernetes_config.load_config()
    holder = os.environ.get("HOLDER", "")
    client = LeaseClient(os.environ.get("NAMESPACE", "default"), field_manager=holder or "lessor-python")
    adapter = Adapter(client, holder)
    try:
        code = adapter.run()
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        adapter.terminate()
        code = 0
    # At once: requests that are under way don't matter any more.
    os._exit(code)


if __name__ == "__main__":
    main()
