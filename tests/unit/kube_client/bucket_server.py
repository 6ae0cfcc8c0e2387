"""A stand-in for an S3 server: reads, writes and lists the files of a folder, and remembers who it was asked as."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit


class BucketServer:
    """Serves `folder` as the bucket of any name until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: set[str] = set()
        self.keys: set[str] = set()
        """Access keys that requests were signed with."""
        self.is_away = False
        """Whether every request is answered with 503."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def log_message(self, *args: Any) -> None:
                pass

            def _answer(self, status: int, data: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("ETag", '"tag"')
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def _serve(self) -> None:
                outer.hosts.add(self.headers["Host"])
                outer.keys.add(self.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                key = unquote(parts.path).split("/", 2)[2] if parts.path.count("/") > 1 else ""
                path = outer.folder / key
                if outer.is_away:
                    self._answer(503)
                elif self.command == "PUT":
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(body)
                    self._answer(200)
                elif self.command == "DELETE":
                    path.unlink(missing_ok=True)
                    self._answer(204)
                elif not key:
                    self._answer(200, outer._listed(parse_qs(parts.query)))
                elif path.is_file():
                    self._answer(200, path.read_bytes())
                else:
                    self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

            do_GET = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        keys = [(str(path.relative_to(self.folder)), path.stat().st_size) for path in files]
        found = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{size}</Size></Contents>"
            for key, size in keys
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
