"""A page that follows a run, served on the loopback address with what Python has on board.

    /TOKEN/             the page, as it is now
    /TOKEN/data         its data: 204 where nothing changed since ``?after=STAMP``
    /TOKEN/policy       the policy of ``?goal=N``, for pages that do not hold all of them
    /TOKEN/stop         POST: ask the run to stop after the rollout at hand

Everything needs the token, which is drawn anew for every server, and a Host that is this machine's own name: a page
from elsewhere in the same browser can neither guess the one nor send the other. Nothing can be written or changed but
for the request to stop.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from adagoal.core.errors import InputError

LOOPBACK_ADDRESS = "127.0.0.1"
REQUEST_TIMEOUT_SECONDS = 10.0
"""A request that takes longer to arrive is dropped."""


class ReportSource(Protocol):
    """What is shown. Methods are called from several threads; what cannot be shown yet is an InputError."""

    def version_stamp(self) -> str:
        """Changes whenever there is something new."""
        ...

    def render_page(self) -> str:
        """The whole page."""
        ...

    def pack_data(self) -> bytes:
        """The data of the page."""
        ...

    def pack_policy(self, goal: int) -> bytes:
        """The policy of a goal, as a block."""
        ...

    def request_stop(self) -> None:
        """Ask the run to stop."""
        ...


@contextlib.contextmanager
def serve_report(source: ReportSource, port: int = 0) -> Iterator[str]:
    """Serve a source in threads of their own; yields the address, with its token. Port 0 is any that is free."""
    token = secrets.token_urlsafe(16)
    try:
        server = _QuietServer((LOOPBACK_ADDRESS, port), _make_handler(source, token))
    except OSError as error:
        raise InputError(f"{port} cannot be used ({error.strerror})", "port") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK_ADDRESS}:{server.server_address[1]}/{token}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _QuietServer(ThreadingHTTPServer):
    """A server that does not tell the terminal about browsers that went away."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of any other error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _make_handler(source: ReportSource, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_SECONDS
        server_version, sys_version = "adagoal", ""

        def do_GET(self) -> None:
            self._answer({"": self._page, "data": self._data, "policy": self._policy})

        def do_POST(self) -> None:
            self._answer({"stop": self._stop})

        def _answer(self, ways: dict[str, Callable[[dict[str, str]], None]]) -> None:
            port = self.connection.getsockname()[1]
            try:
                where = urlsplit(self.path)
            except ValueError:  # such as //[
                self._send(HTTPStatus.BAD_REQUEST, b"bad request\n")
                return
            given, _, name = where.path.removeprefix("/").partition("/")
            known = self.headers.get("Host") in (f"{LOOPBACK_ADDRESS}:{port}", f"localhost:{port}")
            if not (known and secrets.compare_digest(given.encode(), token.encode()) and name in ways):
                self._send(HTTPStatus.NOT_FOUND, b"not found\n")
                return
            try:
                ways[name]({key: values[-1] for key, values in parse_qs(where.query).items()})
            except InputError as error:
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, _waiting_page(error), "text/html")
            except OSError:
                pass  # the browser went away

        def _page(self, asked: dict[str, str]) -> None:
            self._send(HTTPStatus.OK, source.render_page().encode(), "text/html")

        def _data(self, asked: dict[str, str]) -> None:
            stamp = source.version_stamp()
            if asked.get("after") == stamp:
                self._send(HTTPStatus.NO_CONTENT, b"")
            else:
                self._send(HTTPStatus.OK, source.pack_data(), "application/octet-stream", stamp)

        def _policy(self, asked: dict[str, str]) -> None:
            number = asked.get("goal", "")
            if not (number.isascii() and number.isdigit() and len(number) < 12):
                raise InputError("must be a goal of the run", "goal")
            self._send(HTTPStatus.OK, source.pack_policy(int(number)), "application/octet-stream")

        def _stop(self, asked: dict[str, str]) -> None:
            source.request_stop()
            self._send(HTTPStatus.NO_CONTENT, b"")

        def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain", stamp: str = "") -> None:
            self.send_response(status)
            headers = {
                "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text") else kind,
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Content-Security-Policy": "frame-ancestors 'none'",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            if stamp:
                self.send_header("X-Stamp", stamp)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal belongs to the run."""

    return Handler


def _waiting_page(error: InputError) -> bytes:
    """A page that asks again."""
    text = escape(str(error))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>adagoal</title><p>Nothing to show yet: {text}</p></html>"
    ).encode()
