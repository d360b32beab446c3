"""Flows in simulated time, side by side, with a network between them and the fake API server."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lessor import errors
from lessor._flow import Request, Sleep, Stream
from tests.fake import FakeApi, failure, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from lessor._flow import Effect, Flow, Response


@dataclass(frozen=True)
class Fate:
    """What happens to a request: how long it and its response take, and which of them is lost or refused."""

    before: float = 0.001
    after: float = 0.001
    lost: str = ""
    refused: int = 0
    retry_after: str | None = None


class World:
    """Time that passes only when nothing else happens."""

    def __init__(self, monkeypatch: Any, seed: int = 0) -> None:
        self.time = 1000.0
        self.random = random.Random(seed)
        self.api = FakeApi(lambda: self.time)
        self.fate: Callable[[Request], Fate] = lambda _: Fate()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        monkeypatch.setattr("lessor._clock.now", lambda: self.time)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later."""
        heapq.heappush(self._events, (self.time + seconds, next(self._order), action))

    def run(self, until: float, check: Callable[[], None] | None = None) -> None:
        """Runs for so many seconds. `check` is called after each event."""
        end = self.time + until
        while self._events and self._events[0][0] <= end:
            at, _, action = heapq.heappop(self._events)
            self.time = max(self.time, at)
            action()
            if check is not None:
                check()
        self.time = end

    def start(self, flow: Flow[Any], on_end: Callable[[Process], None] = lambda _: None) -> Process:
        """Runs a flow beside the others."""
        process = Process(self, flow, on_end)
        process.step(None)
        return process

    def finish(self, flow: Flow[Any], within: float = 100.0) -> Any:
        """Runs a flow to its end."""
        process = self.start(flow)
        end = self.time + within
        while not process.done and self._events and self.time < end:
            self.run(max(0.0, self._events[0][0] - self.time))
        assert process.done, "it takes too long"
        return process.result()

    def send(self, request: Request, answer: Callable[[Response | Exception], None]) -> None:
        """Sends a request through the network."""
        fate, sent, answered = self.fate(request), self.time, [False]

        def finish(outcome: Response | Exception) -> None:
            if not answered[0]:
                answered[0] = True
                answer(outcome)

        def arrive() -> None:
            if fate.refused:
                result = failure(fate.refused, "out of order")
            else:
                result = self.api.handle(request.method, request.path, request.query, request.body)
            if fate.lost != "response":
                self.after(fate.after, lambda: finish(response(result, sent, fate.retry_after)))

        if fate.lost != "request":
            self.after(fate.before, arrive)
        self.after(request.timeout, lambda: finish(errors.NoResponseError("timeout")))


class Process:
    """A flow that runs."""

    def __init__(self, world: World, flow: Flow[Any], on_end: Callable[[Process], None]) -> None:
        self.world = world
        self.on_end = on_end
        self.flow = flow
        self.done = False
        self.interrupted = False
        self.value: Any = None
        self.error: Exception | None = None

    def result(self) -> Any:
        """The value or the error at the end."""
        if self.error is not None:
            raise self.error
        return self.value

    def interrupt(self, error: Exception) -> None:
        """Stops it."""
        self.interrupted = True
        self.flow.close()
        self.done, self.error = True, error

    def step(self, outcome: Any) -> None:
        """Resumes the flow."""
        if self.interrupted:
            return
        try:
            effect = self.flow.throw(outcome) if isinstance(outcome, Exception) else self.flow.send(outcome)
        except StopIteration as stop:
            self.done, self.value = True, stop.value
            self.on_end(self)
        except Exception as error:
            self.done, self.error = True, error
            self.on_end(self)
        else:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Request():
                self.world.send(effect, self.step)
            case Sleep(seconds):
                self.world.after(seconds, lambda: self.step(None))
            case Stream():
                begin = int(effect.query.get("resourceVersion", 0))
                self._poll(effect, begin, self.world.time + float(effect.query["timeoutSeconds"]))

    def _poll(self, stream: Stream, after: int, end: float) -> None:
        for version, event in self.world.api.events_after(stream.path, stream.query, after):
            after = version
            try:
                done = stream.on_event(event)
            except Exception as error:
                self.step(error)
                return
            if done:
                self.step(None)
                return
        if self.world.time >= end:
            self.step(None)
        else:
            self.world.after(0.05, lambda: None if self.interrupted else self._poll(stream, after, end))
