"""The adapter for the conformance suite, as a process, against the fake API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fake import LEASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server import Server

SOURCES = Path(__file__).parent.parent / "src"


class Adapter:
    """The process of an adapter."""

    def __init__(self, kubeconfig: Path) -> None:
        environment = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "NAMESPACE": "default",
            "HOLDER": "tester",
            "PYTHONPATH": str(SOURCES),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lessor.conformance"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.events: list[Any] = []
        self.ready = self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def ask(self, do: str, **fields: Any) -> Any:
        number = len(self.events) + int(time.monotonic() * 1e6)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": number, "do": do, **fields}) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.read()
            if line.get("id") == number:
                return line
            self.events.append(line)

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)


@pytest.fixture
def adapter(server: Server, tmp_path: Path) -> Iterator[Adapter]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": "test", "user": {"token": "secret"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    adapter = Adapter(path)
    yield adapter
    adapter.process.kill()
    adapter.process.wait()


def test_it_holds_leases_and_reports_what_is_lost(adapter: Adapter, server: Server) -> None:
    assert adapter.ready["event"] == "ready"
    granted = adapter.ask("grant", lease="web-1", ttl=60)["ok"]
    assert granted["ttl"] == 60
    assert 55e9 < granted["until"] - granted["now"] < 60e9
    assert adapter.ask("grant", lease="web-1", ttl=60)["error"]["code"] == "exists"
    assert adapter.ask("keep-alive", lease="web-1")["ok"] == {}
    assert adapter.ask("status", lease="web-1")["ok"]["held"] is True
    assert adapter.ask("dance")["error"]["code"] == "unsupported"
    time.sleep(0.5)
    server.revoke("web-1")
    time.sleep(1)
    assert adapter.ask("status", lease="web-1")["ok"]["held"] is False
    assert [(event["event"], event["lease"], event["reason"]) for event in adapter.events] == [
        ("lost", "web-1", "gone")
    ]
    assert adapter.close() == 4


def test_a_lost_lease_that_was_stopped_since_leaves_no_trace_in_the_exit_code(adapter: Adapter, server: Server) -> None:
    adapter.ask("grant", lease="web-1", ttl=60)
    adapter.ask("keep-alive", lease="web-1")
    time.sleep(0.5)
    server.revoke("web-1")
    time.sleep(1)
    assert adapter.ask("stop", lease="web-1", revoke=True)["ok"] == {}
    assert adapter.close() == 0


def test_it_revokes_what_it_holds_at_the_signal_to_end(adapter: Adapter, server: Server) -> None:
    adapter.ask("grant", lease="web-1", ttl=60)
    adapter.ask("grant", lease="web-2", ttl=60)
    adapter.ask("keep-alive", lease="web-1")
    assert adapter.ask("lock", mutex="reports", ttl=60)["ok"]["token"] > 0
    adapter.process.send_signal(signal.SIGTERM)
    assert adapter.process.wait(10) == 0
    assert [name for kind, name in server.api.objects if kind == LEASES] == ["web-2"]


def test_it_locks_and_elects(adapter: Adapter) -> None:
    token = adapter.ask("lock", mutex="reports", ttl=60)["ok"]["token"]
    status = adapter.ask("status", mutex="reports")["ok"]
    assert (status["held"], status["token"]) == (True, token)
    assert adapter.ask("try-lock", mutex="reports", ttl=60)["error"]["code"] == "locked"
    assert adapter.ask("unlock", mutex="reports")["ok"] == {}
    assert adapter.ask("leader", election="scheduler")["error"]["code"] == "gone"
    token = adapter.ask("campaign", election="scheduler", ttl=60, value="one")["ok"]["token"]
    assert adapter.ask("leader", election="scheduler")["ok"] == {"value": "one", "token": token}
    assert adapter.ask("campaign", election="scheduler", ttl=60, value="two", wait=1)["error"]["code"] == "timeout"
    assert adapter.ask("resign", election="scheduler")["ok"] == {}
    assert adapter.close() == 0
