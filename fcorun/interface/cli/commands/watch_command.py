"""fcorun watch: a page of runs that go on."""

import gzip
import secrets
from collections.abc import Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from fcorun.base.errors import UserError
from fcorun.base.records.record import check_folder
from fcorun.interface.cli.commands.common_command import CommandParser
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page.build_page import read_library
from fcorun.reports.page.live_page import LivePage

_HOST = "127.0.0.1"


def run(argv: Sequence[str]) -> int:
    """Show the runs in and under some folders, while they go on, on a page in a browser of this machine: how far they
    are, the time left, curves, failures. The page reads the records every few seconds and changes nothing. Its address
    has a token, which other users of this machine do not know. Ctrl-C ends it."""
    parser = CommandParser("watch", run.__doc__)
    parser.add_metric_options()
    parser.add_argument("--port", type=int, default=0, help="a port of this machine (default: a free one)")
    arguments = parser.parse_args(argv)
    for folder in arguments.folders:
        check_folder(folder)
    server = make_server(LivePage(arguments.folders, arguments.metric, arguments.tail_rounds), arguments.port)
    Terminal().print(f"http://{_HOST}:{server.server_port}/{server.token}/ (Ctrl-C ends it)")
    with server:
        server.serve_forever()
    return 0


class PageServer(ThreadingHTTPServer):
    """A server of one page on the loopback, at an address with a token."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int):
        self.page = page
        self.token = secrets.token_urlsafe(24)
        self.lock = Lock()  # a page is made once for all who look at it
        super().__init__((_HOST, port), _Handler)


def make_server(page: LivePage, port: int) -> PageServer:
    """Return the server of a page. Raises UserError for a port that cannot be used."""
    try:
        return PageServer(page, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port} cannot be used ({error}): give another one, or leave it out") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers for the page and its script, and for nothing else."""

    server: PageServer
    server_version, sys_version = "fcorun", ""

    def do_GET(self) -> None:
        place = f"/{self.server.token}"
        path = self.path.rstrip("/")
        if not secrets.compare_digest(path[: len(place)].encode(), place.encode()):
            self.send_error(404, explain="Open the whole address that fcorun watch has printed: each start has another")
        elif self.headers.get("Host", "") not in [f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")]:
            # a page of elsewhere whose name leads to this machine, or a tunnel with another port
            address = f"http://{_HOST}:{self.server.server_port}{place}/"
            self.send_error(421, explain=f"Open {address} : also a tunnel has this name and port at its near end")
        elif path == place and not self.path.endswith("/"):
            self.send_response(301)
            self.send_header("Location", f"{place}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path == place:
            with self.server.lock:
                content = self.server.page.read()
            self._send(gzip.compress(content.encode(), 1), "text/html; charset=utf-8", "no-store")
        elif path == f"{place}/plotly.js":
            self._send(_pack_plotly(), "text/javascript", "max-age=86400")
        else:
            self.send_error(404)

    def _send(self, packed: bytes, kind: str, cached: str) -> None:
        self.send_response(200)
        headers = {
            "Content-Type": kind,
            "Content-Encoding": "gzip",
            "Content-Length": str(len(packed)),
            "Cache-Control": cached,
            "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(packed)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print no line for each request."""


@cache
def _pack_plotly() -> bytes:
    """Return the script that draws charts, compressed."""
    return gzip.compress(read_library(), 6)
