"""The driver of flows in threads, on the official Kubernetes client."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes import client as kubernetes_client

from lessor import _clock, _leases, errors
from lessor._flow import Flow, Request, Response, Sleep, Stream
from lessor._keeper import READ_INTERVAL, Keeper, Kept, watch

if TYPE_CHECKING:
    from lessor._flow import Effect, Json
    from lessor._leases import Held, Scope

T = TypeVar("T")

#: The number of renewals that are under way at once.
MAX_WORKERS = 8


class Interrupted(Exception):  # noqa: N818
    """The flow was interrupted while it waited."""


class Interrupt:
    """Interrupts flows that wait, now or later."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []

    def set(self) -> None:
        """Interrupts."""
        self._set.set()
        with self._lock:
            actions = list(self._actions)
        for action in actions:
            action()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits until it is set, but not longer than that. Returns whether it is."""
        return self._set.wait(seconds)

    def add(self, action: Callable[[], None]) -> None:
        """Calls `action` once it is set."""
        with self._lock:
            self._actions.append(action)
        if self.is_set():
            action()

    def remove(self, action: Callable[[], None]) -> None:
        """Calls `action` no more."""
        with self._lock:
            self._actions.remove(action)


class Transport:
    """Sends requests through an `ApiClient`, with its certificates and credentials."""

    def __init__(self, api_client: Any = None) -> None:
        if api_client is None:
            configuration = kubernetes_client.Configuration.get_default_copy()
            configuration.connection_pool_maxsize = max(4 * MAX_WORKERS, configuration.connection_pool_maxsize)
            api_client = kubernetes_client.ApiClient(configuration)
        self._api_client = api_client
        # A plugin that fetches credentials runs once, and not once in each thread.
        self._credentials = threading.Lock()

    def run(self, flow: Flow[T], interrupt: Interrupt | None = None) -> T:
        """Runs a flow to its end. Raises `Interrupted` if it was interrupted while it waited."""
        interrupt = interrupt or Interrupt()
        outcome: Any = None
        failure: Exception | None = None
        while True:
            try:
                effect = flow.throw(failure) if failure is not None else flow.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome, failure = None, None
            try:
                outcome = self._perform(effect, interrupt)
            except Exception as error:  # noqa: BLE001 - The flow decides.
                failure = error

    def _perform(self, effect: Effect, interrupt: Interrupt) -> Response | None:
        match effect:
            case Request():
                return self._send(effect)
            case Sleep(seconds):
                if interrupt.wait(seconds):
                    raise Interrupted
            case Stream():
                self._stream(effect, interrupt)
        return None

    def _send(self, request: Request) -> Response:
        headers = {"Accept": request.accept}
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = json.dumps(request.body).encode()
        timeout = urllib3.Timeout(total=request.timeout)
        url = self._url(request.path, request.query, headers)
        sent = _clock.now()
        try:
            # Without the retries of the library, which know nothing of a lease's deadline.
            response = self._pool.request(
                request.method, url, body=body, headers=headers, timeout=timeout, retries=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise errors.NoResponseError(str(error)) from error
        return Response(
            response.status,
            response.data,
            sent,
            response.headers.get("Date"),
            response.headers.get("Retry-After"),
        )

    def _stream(self, stream: Stream, interrupt: Interrupt) -> None:
        headers = {"Accept": "application/json"}
        url = self._url(stream.path, stream.query, headers)
        timeout = urllib3.Timeout(connect=min(stream.timeout, 10.0), read=max(0.05, stream.timeout))
        try:
            response = self._pool.request(
                "GET", url, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise errors.NoResponseError(str(error)) from error
        try:
            if response.status != 200:
                raise errors.of_response(response.status, response.headers.get("Retry-After"), response.data)

            def shutdown() -> None:
                # It fails once the response is complete.
                with contextlib.suppress(ValueError, OSError):
                    response.shutdown()

            interrupt.add(shutdown)
            try:
                for line in _lines(response):
                    if interrupt.is_set() or stream.on_event(json.loads(line)):
                        break
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                if not interrupt.is_set():
                    raise errors.NoResponseError(str(error)) from error
            finally:
                interrupt.remove(shutdown)
            if interrupt.is_set():
                raise Interrupted
        finally:
            # The rest of the stream isn't read, so the connection can't be used again.
            response.close()

    @property
    def _pool(self) -> urllib3.PoolManager:
        pool: urllib3.PoolManager = self._api_client.rest_client.pool_manager
        return pool

    def _url(self, path: str, query: Any, headers: dict[str, str]) -> str:
        """The address of a request. Adds the credentials to its headers."""
        queries: list[tuple[str, str]] = list(query.items())
        try:
            with self._credentials:
                self._api_client.update_params_for_auth(headers, queries, ["BearerToken"], path, "", None)
        except Exception as error:  # A plugin may raise anything.
            raise errors.NoResponseError(f"no credentials: {error}") from error
        headers.setdefault("User-Agent", "lessor-python")
        host = self._api_client.configuration.host.rstrip("/")
        return f"{host}{path}?{urlencode(queries)}" if queries else f"{host}{path}"


def _lines(response: Any) -> Any:
    """The lines of a response as they arrive."""
    buffer = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from filter(None, lines)


class KeeperThread:
    """Keeps the leases of a client alive: a thread that looks at the clock, some that renew, and one that watches.

    They run only while a lease is kept alive.
    """

    def __init__(self, scope: Scope, transport: Transport) -> None:
        self._scope, self._transport = scope, transport
        self._keeper = Keeper()
        self._changed = threading.Condition(threading.RLock())
        self._running = False
        self._workers: list[threading.Thread] = []
        self._idle = 0
        self._due: queue.SimpleQueue[Kept | None] = queue.SimpleQueue()
        self._watch: tuple[str, Interrupt] | None = None

    def add(self, kept: Kept) -> None:
        """Keeps a lease alive from now on."""
        with self._changed:
            self._keeper.add(kept)
            self._start_watch()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="lessor-keeper", daemon=True).start()
            self._changed.notify()

    def remove(self, kept: Kept) -> None:
        """Renews a lease no more."""
        with self._changed:
            self._keeper.remove(kept)
            self._stop_watch()
            self._changed.notify()

    def held(self, kept: Kept) -> Held:
        """The lease as last renewed."""
        with self._changed:
            return kept.held

    def update(self, kept: Kept, held: Held) -> None:
        """The holder has renewed the lease itself."""
        with self._changed:
            kept.renewed(held, _clock.now())
            self._keeper.touch(kept)
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                for kept in self._keeper.poll(_clock.now()):
                    self._due.put(kept)
                    if self._idle < self._due.qsize() and len(self._workers) < MAX_WORKERS:
                        worker = threading.Thread(target=self._work, name="lessor-renewals", daemon=True)
                        self._workers.append(worker)
                        worker.start()
                self._stop_watch()
                wake_at = self._keeper.wake_at()
                if wake_at is None:
                    break
                self._changed.wait(max(0.0, min(READ_INTERVAL, wake_at - _clock.now())))
            self._running = False
            for _ in self._workers:
                self._due.put(None)
            self._workers.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
            kept = self._due.get()
            with self._changed:
                self._idle -= 1
            if kept is None:
                return
            self._renew(kept)

    def _renew(self, kept: Kept) -> None:
        with self._changed:
            if kept.is_over():
                return
            held, timeout = kept.held, kept.timeout(_clock.now())
        renewed: Held | errors.LessorError
        try:
            renewed = self._transport.run(_leases.renew(self._scope, held, timeout))
        except errors.LessorError as error:
            renewed = error
        except Exception as error:  # noqa: BLE001 - Whatever it is, the lease lives until its deadline.
            renewed = errors.NoResponseError(repr(error))
        with self._changed:
            if isinstance(renewed, errors.LessorError):
                kept.failed(renewed, _clock.now())
            else:
                kept.renewed(renewed, _clock.now())
            self._keeper.touch(kept)
            self._changed.notify()

    def _start_watch(self) -> None:
        """Starts the one watch, or replaces that of a single lease by one of all."""
        selector = self._keeper.selector()
        if selector is None or (self._watch is not None and self._watch[0] in (selector, "")):
            return
        if self._watch is not None:
            self._watch[1].set()
        self._watch = selector, Interrupt()
        threading.Thread(target=self._follow, args=self._watch, name="lessor-watch", daemon=True).start()

    def _stop_watch(self) -> None:
        if self._watch is not None and not self._keeper.watched():
            self._watch[1].set()
            self._watch = None

    def _follow(self, selector: str, interrupt: Interrupt) -> None:
        def observe(name: str, version: Json | None) -> None:
            with self._changed:
                # Only the present watch counts: one that was replaced may lag behind it.
                if not interrupt.is_set():
                    self._keeper.observe(name, version, _clock.now())
                    self._changed.notify()

        def watched() -> frozenset[tuple[str, str]]:
            with self._changed:
                return self._keeper.watched()

        with contextlib.suppress(Interrupted):
            self._transport.run(watch(self._scope, selector, watched, observe), interrupt)
