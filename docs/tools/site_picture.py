"""Takes the picture of the documentation site's first page that CONTRIBUTING.md shows.

    make docs
    python docs/tools/site_picture.py site docs/figures/site.png

Needs Chromium, like tests/test_browser.py.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import browser

WIDTH, HEIGHT = 1280, 1250
READY = "document.querySelector('iframe')?.contentDocument?.body?.dataset.ready === 'yes'"
"""The report on the page has been drawn. It can be asked only if both come from the same server."""


class Quiet(SimpleHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Ignore the request."""


def take_picture(site: Path, target: Path) -> None:
    """Serve the folder ``site`` and write what a browser shows of its first page to ``target``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser.Browser() as started:
            page = started.open(f"http://127.0.0.1:{server.server_port}/", width=WIDTH, height=HEIGHT)
            page.wait(READY)
            time.sleep(1.0)  # until it is painted
            page.picture(target)
        server.shutdown()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]))
