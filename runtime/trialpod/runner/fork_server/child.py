"""The life of a trial process from the fork to its exit.

Invariants:

* It never returns into the fork server's code: whatever happens, it ends in `os._exit` with its streams flushed.
* It dies with the fork server, leads its own session, and adopts its own orphaned descendants, so that when it ends
  they all become children of the fork server, which knows by that whose they were.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from trialpod.runner.fork_server import system
from trialpod.runner.fork_server.protocol import Spawn
from trialpod.runner.streams import flush, write_stderr


def named(name: str) -> Callable[..., Any]:
    """Return what ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def run_trial_process(command: Spawn, *, server: int, close: Iterable[int], signals: Iterable[int]) -> None:
    """Run the trial in this process; never returns.

    Args:
        command: what to run.
        server: pid of the fork server.
        close: its file descriptors, of no concern here.
        signals: those to set back to their defaults. All signals are blocked on entry.
    """
    status = 1
    try:
        os.setsid()
        if not system.die_with_parent(server):
            return
        system.adopt_orphans()
        signal.set_wakeup_fd(-1)
        for number in signals:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
        for descriptor in close:
            os.close(descriptor)
        _redirect(command.log_path)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prepare(command)
        function = named(command.function)
        status = _status(function(runner=command.runner, address=command.address, experiment=command.experiment))
    except SystemExit as error:
        status = _status(error.code)
    except BaseException:  # noqa: BLE001 - this is the bottom of the process's stack
        write_stderr(traceback.format_exc())
    finally:
        flush()
        os._exit(status & 0xFF)


def _redirect(log_path: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if log_path:
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            # A full disk, or a folder that is gone: what the trial does about it can be reported.
            write_stderr(
                f"trialpod: cannot open {log_path}: {error.strerror}; this trial's output is written here instead\n"
            )
        else:
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
    for stream in (sys.stdout, sys.stderr):
        # A log that shows a line only when 8 kB have gathered looks like a trial that hangs.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


def _prepare(command: Spawn) -> None:
    for name, value in command.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if command.cwd:
        os.chdir(command.cwd)
    for folder in reversed(command.python_path):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    # Without this all trials of a preloaded module would draw the same numbers.
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch_generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch_generator is not None:  # of the CPU; those of GPUs are made by the trial itself
        torch_generator.seed()


def _status(value: object) -> int:
    """Return the exit status for what the function returned or passed to `sys.exit` (its rules)."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    write_stderr(f"{value}\n")  # as `sys.exit("message")` does
    return 1
