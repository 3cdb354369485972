"""A live page that follows a run, served on the loopback address by the HTTP server of the standard library.

    /TOKEN/             the page
    /TOKEN/data         its data; 204 if nothing changed since ``?after=STAMP``
    /TOKEN/policy       the policy of ``?goal=N``, for pages that do not contain all policies
    /TOKEN/stop         POST: ask the run to stop after the current rollout

Every request needs the token, which is random for every server, and a Host header that names this machine. A page
from elsewhere in the same browser can neither guess the token nor send that header. The request to stop is the only
one that changes anything.
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
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from adagoal.core.errors import InputError
from adagoal.core.file_io import is_folder_locked
from adagoal.report.html_page import ReportPage
from adagoal.runs.job import request_stop
from adagoal.runs.run_folder import last_commit_stamp


class ReportSource:
    """What a live page shows: by default the last save in a run folder.

    The server calls the methods from several threads. InputError means that there is nothing to show yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current_page(self) -> ReportPage:
        """Return the page of the latest data."""
        raise NotImplementedError

    def version_stamp(self) -> str:
        """Return a text that changes whenever the page would change."""
        # A run that ends changes the page without a save: its status line and its stop button.
        return f"{last_commit_stamp(self.folder)} {self.is_running()}"

    def is_running(self) -> bool:
        """Return whether a process is writing into the folder."""
        return is_folder_locked(self.folder)

    def pack_data(self) -> bytes:
        """Return the data of the page, for a page that is open already."""
        return self.current_page().pack_data(running=self.is_running())

    def pack_policy(self, goal: int) -> bytes:
        """Return the policy of a goal as a block of data."""
        raise InputError("works for explorations only; leave it out", "goal")

    def request_stop(self) -> None:
        """Ask the run to stop after the current rollout."""
        request_stop(self.folder)


@contextlib.contextmanager
def serve_report(source: ReportSource, port: int = 0) -> Iterator[str]:
    """Serve a source in background threads and yield the address, with its token. Port 0 means any free port."""
    token = secrets.token_urlsafe(16)
    try:
        server = _ReportServer(port, source, token)
    except OSError as error:
        raise InputError(f"{port} cannot be used ({error.strerror}); give another one", "port") from None
    # shutdown() waits for the next poll, so the default of half a second would delay the end of a run.
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://{server.host}:{server.server_address[1]}/{token}/"
    finally:
        # First the loop ends, then its socket is closed: the loop would fail on a closed socket.
        server.shutdown()
        server.server_close()
        thread.join()


class _ReportServer(ThreadingHTTPServer):
    """A server on the loopback address that prints nothing when a browser closes the connection."""

    host = "127.0.0.1"

    def __init__(self, port: int, source: ReportSource, token: str) -> None:
        self.source, self.token = source, token
        super().__init__((self.host, port), _RequestHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _RequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of a page."""

    server: _ReportServer
    timeout = 10.0  # seconds; a request that takes longer to arrive is dropped
    # Answers do not tell the version of Python.
    server_version, sys_version = "adagoal", ""

    def do_GET(self) -> None:
        self._dispatch({"": self._page, "data": self._data, "policy": self._policy})

    def do_POST(self) -> None:
        self._dispatch({"stop": self._stop})

    def _dispatch(self, routes: dict[str, Callable[[dict[str, str]], None]]) -> None:
        port = self.connection.getsockname()[1]
        try:
            url = urlsplit(self.path)
        except ValueError:  # for instance //[
            self._send(HTTPStatus.BAD_REQUEST, b"bad request\n")
            return
        given, _, name = url.path.removeprefix("/").partition("/")
        is_own_host = self.headers.get("Host") in (f"{self.server.host}:{port}", f"localhost:{port}")
        # compare_digest takes the same time for every token, so response times reveal nothing about it.
        if not (is_own_host and secrets.compare_digest(given.encode(), self.server.token.encode()) and name in routes):
            self._send(HTTPStatus.NOT_FOUND, b"not found\n")
            return
        try:
            routes[name]({key: values[-1] for key, values in parse_qs(url.query).items()})
        except InputError as error:
            # A run that has saved nothing yet is not an error: this page reloads itself until there is a result.
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, _waiting_page(error), "text/html")
        except OSError:
            pass  # the browser closed the connection

    def _page(self, query: dict[str, str]) -> None:
        self._send(HTTPStatus.OK, self.server.source.current_page().render(live=True).encode(), "text/html")

    def _data(self, query: dict[str, str]) -> None:
        stamp = self.server.source.version_stamp()
        if query.get("after") == stamp:
            self._send(HTTPStatus.NO_CONTENT, b"")
        else:
            self._send(HTTPStatus.OK, self.server.source.pack_data(), "application/octet-stream", stamp)

    def _policy(self, query: dict[str, str]) -> None:
        number = query.get("goal", "")
        # isdigit alone accepts other scripts, and int() of a very long text takes long.
        if not (number.isascii() and number.isdigit() and len(number) < 12):
            raise InputError(f"must be the number of a goal, got {number[:20]!r}", "goal")
        self._send(HTTPStatus.OK, self.server.source.pack_policy(int(number)), "application/octet-stream")

    def _stop(self, query: dict[str, str]) -> None:
        self.server.source.request_stop()
        self._send(HTTPStatus.NO_CONTENT, b"")

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain", stamp: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text") else kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            # The address contains the token, which no other site may learn.
            "Referrer-Policy": "no-referrer",
            # Browsers ignore frame-ancestors in the policy of the page itself; it must be a header.
            "Content-Security-Policy": "frame-ancestors 'none'",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if stamp:
            self.send_header("X-Stamp", stamp)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass  # the terminal shows the progress of the run


def _waiting_page(error: InputError) -> bytes:
    """Return a page that reloads itself every two seconds."""
    text = escape(str(error))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>adagoal</title><p>Nothing to show yet: {text}</p></html>"
    ).encode()
