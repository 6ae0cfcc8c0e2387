"""Starts the fork server's process, apart from the event loop that will talk to it.

It takes a tenth of a second until it is ready, which the parent can spend on its own imports. So this module imports
nothing heavy.

Invariant: a server that was not taken over is gone after `end`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping


class ForkServer:
    """A fork server's process, and the control socket to it.

    Args:
        env: its environment, and so that of all trials; None = this process's. Put what libraries read when they are
            loaded (``OMP_NUM_THREADS``) here: the user's module is loaded only once.
        cwd: its working directory; None = this process's.
        keep_fd: a descriptor that it and all trials keep open (the experiment's lock).
    """

    def __init__(
        self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, keep_fd: int | None = None
    ) -> None:
        environment = dict(os.environ if env is None else env)
        # Lets `torch.cuda.is_available()` in the user's module answer without a CUDA context, which no fork survives.
        environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        self.control, theirs = socket.socketpair()
        keep = [] if keep_fd is None else [keep_fd]
        command = [sys.executable, "-P", "-m", "trialpod.runner.fork_server.server", str(theirs.fileno())]
        command += ["--parent", str(os.getpid())]
        for descriptor in keep:
            command += ["--keep-fd", str(descriptor)]
        with theirs:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=2,  # What the user's module prints while it is imported must not mix with our own output.
                pass_fds=(theirs.fileno(), *keep),
                start_new_session=True,
            )
        self.control.setblocking(False)

    def end(self) -> None:
        """End the process if it still runs, and close the socket if that is still ours."""
        self.control.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
