"""`trialpod ui` as a process of its own, with the links that it prints."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TRIALPOD = [str(Path(sys.executable).with_name("trialpod"))]
TIMEOUT_S = 60


class ServedPage:
    """A running server.

    Args:
        location: a folder or a URI.
        flags: more of the command's options.
        port: 0 chooses a free one.
        environment: more variables of the process.
    """

    def __init__(
        self, location: str | Path, *flags: str, port: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [*TRIALPOD, "ui", str(location), *flags, "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.next_link = self._read_link()
        address = urlsplit(self.next_link)
        self.host = address.netloc
        self.port = int(str(address.port))
        self.url = f"http://{self.host}/"

    def take_link(self) -> str:
        """Return a link that opens a session."""
        link, self.next_link = self.next_link, ""
        return link

    def cookie(self) -> dict[str, str]:
        """Open a session without a browser, and return its cookie, as a browser's context takes it."""
        link = urlsplit(self.take_link() or self._read_link())
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        connection.request("GET", f"/?{link.query}")
        answer = connection.getresponse()
        assert answer.status == 303
        name, _, value = str(answer.headers["set-cookie"]).partition(";")[0].partition("=")
        connection.close()
        self.next_link = self._read_link()
        return {"name": name, "value": value, "url": self.url}

    def request(self, method: str, path: str, cookie: dict[str, str], **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON, or None, of a request as it is: no client tidies its path."""
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        headers = {"Cookie": f"{cookie['name']}={cookie['value']}"} | headers
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None

    def kill(self) -> None:
        """End it without a word, and wait until it has gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read_link(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"http://\S+\?token=\S+", line)
            if found is not None:
                return found.group()
        raise AssertionError("trialpod ui ended without a link")
