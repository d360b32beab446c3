from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server import Server
from tests.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
