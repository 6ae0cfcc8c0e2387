"""The page beside a command that runs or watches an experiment.

`trialpod run --ui` serves it by a process of its own, so that reading journals for the page takes no time from the
experiment's event loop. The process ends with the command, however that ends: it reads its standard input, which
no other program writes to or keeps open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import TextIO

from trialpod.errors import TrialpodError
from trialpod_operator.display.base import LineWriter
from trialpod_operator.ui.running_pages import find_link

END_TIMEOUT_S = 5.0


class PageNotStartedError(TrialpodError):
    """The process of the page has ended before it served anything."""


def print_link(location: str, stream: TextIO, default: str = "") -> bool:
    """Print the link of an experiment when a page that shows it runs, or a default; return whether there is one."""
    link = find_link(location) or default
    if link:
        LineWriter(stream).line(f"page: {link}")
    return bool(link)


class PageBeside:
    """A page that runs as long as the `with` block; none is started where one that shows the same runs already.

    Args:
        root: the folder of experiments that it shows.
        location: what the link opens: an experiment in it, or the folder itself.
        stream: where the link is printed.

    Raises:
        PageNotStartedError: it cannot be served; the message says why.
        ModuleNotFoundError: the packages of the extra `ui` are not installed.
    """

    def __init__(self, root: Path, location: Path, stream: TextIO) -> None:
        self._root = root
        self._location = str(location)
        self._stream = stream
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PageBeside:
        if not print_link(self._location, self._stream):
            import uvicorn  # noqa: F401 - refused here, with the command that installs it

            self._root.mkdir(parents=True, exist_ok=True)
            print_link(self._location, self._stream, self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def stay(self) -> None:
        """Keep the page until Ctrl-C, where it is this command's own and there is a terminal to press it in."""
        if self._process is None or not (self._stream.isatty() and sys.stdin.isatty()):
            return
        out = LineWriter(self._stream)
        out.line("\nthe page stays open until Ctrl-C; for another browser:")
        print_link(self._location, self._stream)
        with contextlib.suppress(KeyboardInterrupt):
            self._process.wait()

    def _start(self) -> str:
        """Start the process and return its first link."""
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trialpod_operator.ui.beside", str(self._root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the experiment, which ends first
            )
            assert self._process.stdout is not None
            if link := self._process.stdout.readline().decode().strip():
                return link
            self._process.wait()
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise PageNotStartedError(f"the page could not be started: {last}; run it without --ui")


def main(root: str) -> None:
    """Serve a folder of experiments until standard input ends; print the link once it is served."""
    from trialpod_operator.ui.local_experiments import LocalExperiments
    from trialpod_operator.ui.serve import page_of, serve

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    def announce(link: str) -> None:
        """Print the first link; the command reads no other line, and finds the later ones in the page's file."""
        if not announced.is_set():
            announced.set()
            sys.stdout.write(f"{link}\n")
            sys.stdout.flush()

    announced = threading.Event()
    threading.Thread(target=end_with_parent, name="trialpod-ui-parent", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        serve(page_of(LocalExperiments(root)), location=root, announce=announce)


if __name__ == "__main__":
    main(sys.argv[1])
