"""The driver of flows in asyncio, on kubernetes_asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio import client as kubernetes_client
from kubernetes_asyncio import config as kubernetes_config

from lessor import _clock, _leases, errors
from lessor._flow import Flow, Request, Response, Sleep, Stream
from lessor._keeper import READ_INTERVAL, Keeper, Kept, watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lessor._flow import Effect, Json
    from lessor._leases import Held, Scope

T = TypeVar("T")

#: The number of renewals that are under way at once.
MAX_RENEWALS = 32


async def new_api_client() -> Any:
    """An `ApiClient` of kubernetes_asyncio: with the service account in a pod, and elsewhere with the kubeconfig.

    Unlike that of the package's own functions, it fetches new credentials from a plugin (`exec`) before the old ones
    expire.
    """
    configuration = kubernetes_client.Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except kubernetes_config.ConfigException:
        loader = await kubernetes_config.load_kube_config(client_configuration=configuration, persist_config=False)
        lock = asyncio.Lock()

        async def refresh(configuration: Any) -> None:
            async with lock:
                # It asks the plugin only if the credentials expire soon.
                await loader.load_and_set(configuration)

        configuration.refresh_api_key_hook = refresh
    return kubernetes_client.ApiClient(configuration)


class Transport:
    """Sends requests through an `ApiClient`, with its certificates and credentials."""

    def __init__(self, api_client: Any = None) -> None:
        self._api_client = api_client

    async def close(self, *, api_client: bool) -> None:
        """Closes the connections, if they aren't the caller's."""
        if api_client and self._api_client is not None:
            await self._api_client.close()

    async def run(self, flow: Flow[T]) -> T:
        """Runs a flow to its end."""
        outcome: Any = None
        failure: Exception | None = None
        try:
            while True:
                try:
                    effect = flow.throw(failure) if failure is not None else flow.send(outcome)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                outcome, failure = None, None
                try:
                    outcome = await self._perform(effect)
                except Exception as error:  # noqa: BLE001 - The flow decides.
                    failure = error
        finally:
            flow.close()

    async def _perform(self, effect: Effect) -> Response | None:
        match effect:
            case Request():
                return await self._send(effect)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Stream():
                await self._stream(effect)
        return None

    async def _send(self, request: Request) -> Response:
        headers = {"Accept": request.accept}
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = json.dumps(request.body).encode()
        # For all of it: also for credentials, a free connection, and the whole of the body.
        try:
            async with asyncio.timeout(request.timeout):
                address, options = await self._address(request.path, request.query, headers)
                sent = _clock.now()
                async with self._session.request(
                    request.method, address, data=body, headers=headers, **options
                ) as response:
                    return Response(
                        response.status,
                        await response.read(),
                        sent,
                        response.headers.get("Date"),
                        response.headers.get("Retry-After"),
                    )
        except TimeoutError as error:
            raise errors.NoResponseError(f"timeout after {request.timeout:.1f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise errors.NoResponseError(str(error) or repr(error)) from error

    async def _stream(self, stream: Stream) -> None:
        headers = {"Accept": "application/json"}
        timeout = aiohttp.ClientTimeout(
            total=None, connect=min(stream.timeout, 10.0), sock_read=max(0.05, stream.timeout)
        )
        try:
            address, options = await self._address(stream.path, stream.query, headers)
            async with self._session.request("GET", address, headers=headers, timeout=timeout, **options) as response:
                if response.status != 200:
                    raise errors.of_response(
                        response.status, response.headers.get("Retry-After"), await response.read()
                    )
                buffer = b""
                # Not by `readline`, which has a longest line.
                async for chunk in response.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    if any(stream.on_event(json.loads(line)) for line in lines if line):
                        return
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise errors.NoResponseError(str(error) or repr(error)) from error

    async def _address(
        self, path: str, query: Mapping[str, str], headers: dict[str, str]
    ) -> tuple[str, dict[str, Any]]:
        """The address of a request, and how to reach it. Adds the credentials to its headers."""
        queries = list(query.items())
        try:
            if self._api_client is None:
                self._api_client = await new_api_client()
            await self._api_client.update_params_for_auth(headers, queries, ["BearerToken"])
        except (TimeoutError, errors.LessorError):
            raise
        except Exception as error:
            # A plugin may raise anything.
            raise errors.NoResponseError(f"no credentials: {error}") from error
        headers.setdefault("User-Agent", "lessor-python")
        rest = self._api_client.rest_client
        options = {
            "proxy": rest.proxy,
            "proxy_headers": rest.proxy_headers,
            "server_hostname": getattr(rest, "server_hostname", None),
        }
        host = self._api_client.configuration.host.rstrip("/")
        address = f"{host}{path}?{urlencode(queries)}" if queries else f"{host}{path}"
        return address, {name: value for name, value in options.items() if value}

    @property
    def _session(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = self._api_client.rest_client.pool_manager
        return session


class KeeperTask:
    """Keeps the leases of a client alive: a task that looks at the clock, and one that watches.

    They run only while a lease is kept alive.
    """

    def __init__(self, scope: Scope, transport: Transport) -> None:
        self._scope, self._transport = scope, transport
        self._keeper = Keeper()
        self._changed = asyncio.Event()
        self._run_task: asyncio.Task[None] | None = None
        self._watch: tuple[str, asyncio.Task[None]] | None = None
        self._renewals: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_RENEWALS)

    def add(self, kept: Kept) -> None:
        """Keeps a lease alive from now on."""
        self._keeper.add(kept)
        self._start_watch()
        if self._run_task is None or self._run_task.done():
            self._run_task = asyncio.create_task(self._run(), name="lessor-keeper")
        self._changed.set()

    def remove(self, kept: Kept) -> None:
        """Renews a lease no more."""
        self._keeper.remove(kept)
        self._stop_watch()
        self._changed.set()

    def update(self, kept: Kept, held: Held) -> None:
        """The holder has renewed the lease itself."""
        kept.renewed(held, _clock.now())
        self._keeper.touch(kept)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            for kept in self._keeper.poll(_clock.now()):
                task = asyncio.create_task(self._renew(kept), name="lessor-renewal")
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)
            self._stop_watch()
            wake_at = self._keeper.wake_at()
            if wake_at is None:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(0.0, min(READ_INTERVAL, wake_at - _clock.now())))

    async def _renew(self, kept: Kept) -> None:
        async with self._slots:
            if kept.is_over():
                return
            renewal = _leases.renew(self._scope, kept.held, kept.timeout(_clock.now()))
            try:
                kept.renewed(await self._transport.run(renewal), _clock.now())
            except errors.LessorError as error:
                kept.failed(error, _clock.now())
            except Exception as error:  # noqa: BLE001 - Whatever it is, the lease lives until its deadline.
                kept.failed(errors.NoResponseError(repr(error)), _clock.now())
        self._keeper.touch(kept)
        self._changed.set()

    def _start_watch(self) -> None:
        """Starts the one watch, or replaces that of a single lease by one of all."""
        selector = self._keeper.selector()
        if selector is None or (self._watch is not None and self._watch[0] in (selector, "")):
            return
        if self._watch is not None:
            self._watch[1].cancel()
        flow = watch(self._scope, selector, self._keeper.watched, self._observe)
        self._watch = selector, asyncio.create_task(self._transport.run(flow), name="lessor-watch")

    def _stop_watch(self) -> None:
        if self._watch is not None and not self._keeper.watched():
            self._watch[1].cancel()
            self._watch = None

    def _observe(self, name: str, version: Json | None) -> None:
        self._keeper.observe(name, version, _clock.now())
        self._changed.set()
