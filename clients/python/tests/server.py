"""The fake API server behind HTTP, on a free port of this machine."""

from __future__ import annotations

import json
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lessor import _clock
from tests.fake import FakeApi


class Server:
    """Serves a fake API."""

    def __init__(self) -> None:
        self.api = FakeApi(_clock.now)
        self.lock = threading.Lock()
        self.watches = 0
        self.hang = False
        self.authorizations: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def log_message(self, *_: Any) -> None:
                pass

            def _serve(self) -> None:
                outer.serve(self)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.http = Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        address = urlsplit(handler.path)
        query = dict(parse_qsl(address.query))
        length = int(handler.headers.get("Content-Length", 0))
        body = json.loads(handler.rfile.read(length)) if length else None
        self.authorizations.add(handler.headers.get("authorization", ""))
        if "watch" in query:
            self._watch(handler, address.path, query)
            return
        while self.hang:
            time.sleep(0.05)
        with self.lock:
            status, answer = self.api.handle(handler.command, address.path, query, body)
        text = json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _watch(self, handler: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> None:
        self.watches += 1
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()
        after, end = int(query["resourceVersion"]), time.monotonic() + int(query["timeoutSeconds"])
        try:
            while time.monotonic() < end:
                with self.lock:
                    events = self.api.events_after(path, query, after)
                for version, event in events:
                    after = version
                    chunk = json.dumps(event).encode() + b"\n"
                    # In two parts, as a network may cut anywhere.
                    for part in (chunk[:7], chunk[7:]):
                        handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                        handler.wfile.flush()
                # The client never sends during a watch: what can be read is the end.
                if select.select([handler.connection], [], [], 0.02)[0]:
                    return
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        finally:
            self.watches -= 1
            handler.close_connection = True

    def make_lease(self, name: str, ttl: int) -> None:
        with self.lock:
            self.api.handle(
                "POST",
                "/apis/lessor.dev/v1alpha1/namespaces/default/leases",
                {},
                {"metadata": {"name": name}, "spec": {"ttlSeconds": ttl}},
            )

    def revoke(self, name: str) -> None:
        with self.lock:
            self.api.revoke(name)
