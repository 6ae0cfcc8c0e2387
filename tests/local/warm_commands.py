"""Runs commands and scripts as forks of a process that has imported what they begin with: half of a short one's CPU.

A fork is the command: it has its own environment, folder and streams, runs the script as ``__main__``, and ends as
an interpreter does. What only a process of its own shows, as its environment in /proc, or an import that one command
lacks and another has, is seen where tests start a real one: `Shell.start`, and those that name the program.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from importlib import import_module
from pathlib import Path

IMPORTED = (
    "asyncio", "trialpod.cli.main", "trialpod.compat.ray", "trialpod.tune", "trialpod.tune.result_grid",
    "trialpod.tune.script_errors", "trialpod.tune.shipping.diagnosis", "trialpod.tune.trial", "trialpod.tune.tuner",
    "trialpod_operator.api.loader", "trialpod_operator.api.overrides", "trialpod_operator.api.validation",
    "trialpod_operator.commands.fsck", "trialpod_operator.commands.results", "trialpod_operator.commands.run",
    "trialpod_operator.display.choose", "trialpod_operator.display.plain", "trialpod_operator.display.quiet",
    "trialpod_operator.local.backend", "trialpod_operator.local.command_line",
    "trialpod_operator.local.experiment_run", "trialpod_operator.local.loading", "trialpod_operator.local.presenter",
    "trialpod_operator.local.shell", "trialpod_operator.reports.server", "trialpod_operator.view.rerun",
)  # fmt: skip


class WarmCommands:
    """The process that commands are forked from, begun with the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    def run(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of Python, or ``-m`` and a module, with its arguments to its end; return what it printed.

        Raises:
            subprocess.TimeoutExpired: It took too long, and was killed.
        """
        self._begin()
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
            tempfile.TemporaryFile("w+") as said_to_it,
            ThreadPoolExecutor(2) as readers,
        ):
            connection.settimeout(timeout_s)
            connection.connect(self._address)
            said_to_it.write(stdin or "")
            said_to_it.seek(0)
            (out, to_out), (err, to_err) = os.pipe(), os.pipe()
            message = json.dumps([list(command), str(cwd), dict(env)]).encode()
            socket.send_fds(connection, [message], [said_to_it.fileno(), to_out, to_err])
            os.close(to_out)
            os.close(to_err)
            printed = [readers.submit(_read, each) for each in (out, err)]
            pid = int(connection.recv(100))
            try:
                status = int(connection.recv(100))
                stdout, stderr = (each.result(timeout_s) for each in printed)
            except (TimeoutError, NotInTimeError) as error:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(command), timeout_s) from error
        return subprocess.CompletedProcess(list(command), status, stdout, stderr)

    def close(self) -> None:
        """End the process; commands that run continue."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def _begin(self) -> None:
        if self._process is not None:
            return
        self._address = f"{tempfile.mkdtemp(prefix='warm-')}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )


def _read(descriptor: int) -> str:
    with open(descriptor) as stream:
        return stream.read()


def serve(listener: socket.socket) -> list[str]:
    """Fork for each connection, until the standard input ends; return, in such a fork, the command that it is."""
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        with contextlib.suppress(
            ChildProcessError
        ):  # those that have ended, and in the end all: their CPU is the tests'
            while os.waitpid(-1, 0 if 0 in ready else os.WNOHANG)[0]:
                pass
        if 0 in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        message, descriptors, _, _ = socket.recv_fds(connection, 2**20, 3)
        pid = os.fork()
        if not pid:
            connection.close()
            return _become(message, descriptors)
        for each in descriptors:
            os.close(each)
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)


def _become(message: bytes, descriptors: list[int]) -> list[str]:
    command, folder, environment = json.loads(message)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(command)
    sys.orig_argv = [sys.executable, *command]
    return command  # type: ignore[no-any-return]


def run_as_main(command: Sequence[str]) -> None:
    """Do what ``python COMMAND`` does once it has begun."""
    try:
        if command[0] == "-m":
            sys.path[0] = os.getcwd()
            sys.argv = list(command[1:])
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            path = os.path.abspath(command[0])
            sys.path[0] = os.path.dirname(os.path.realpath(path))
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__dict__.update(__file__=path, __cached__=None, __builtins__=builtins)
            with io.open_code(path) as script:
                code = compile(script.read(), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)
    except Exception as error:  # noqa: BLE001 - any, as the interpreter
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    run_as_main(serve(socket.socket(fileno=int(sys.argv[1]))))
