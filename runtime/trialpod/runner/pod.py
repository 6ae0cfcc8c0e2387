"""``python -m trialpod.runner.pod``: the main of a trial's container.

Two processes. The first one is an init: it passes on the signal that ends the pod, collects the orphans of user code,
and leaves with the status of the second one, which runs the attempts. As process 1 of a container the runner itself
would not get a signal that came before it was ready, and could not tell its own children from adopted ones.

Invariants:

* What is wrong with the container's set-up is one sentence and exit status 2, before anything of the user's runs.
* A stop signal reaches the runner alone: the user's other processes are needed until the last checkpoint is taken.
* stdout and stderr stay the container's.
* A runner that asks for a fresh process in its place gets one, unless the pod is being stopped. Nothing that the one
  before had started runs beside it.
* Why the last attempt failed stands in the termination message, where ``kubectl describe pod`` shows it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from trialpod import variables
from trialpod.errors import TrialpodError
from trialpod.runner.streams import flush, write_stderr

if TYPE_CHECKING:
    from trialpod.protocol.messages import AttemptEnd


_TERMINATION_LOG = "/dev/termination-log"
_MAX_TERMINATION_BYTES = 4096
_UNUSABLE = 2
_NOT_KNOWN = 255
_ORPHANS_END_S = 5.0
# Images may name another stop signal than SIGTERM, and a terminal sends SIGINT or SIGHUP: all mean the same.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class _SetUpError(TrialpodError):
    """The container cannot run a trial as it is."""


class _SetUp(NamedTuple):
    address: str
    experiment: str
    runner: str
    token_file: str | None
    ca_file: str | None
    node_ip: str


def main() -> int:
    """Be the container's first process; return its exit status."""
    message = TerminationMessage(os.environ.get(variables.TERMINATION_LOG) or _TERMINATION_LOG)
    try:
        found = _read_environment(os.environ)
        _prepare_folders()
    except _SetUpError as error:
        message.write(str(error))
        write_stderr(f"trialpod: {error}\n")
        return _UNUSABLE
    signals = {*_STOP_SIGNALS, signal.SIGCHLD}
    # Blocked before the fork: none is lost, whichever process it finds.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    init = os.getpid()
    if init != 1:
        # Not the first process: behind another init, or in a pod whose containers share their processes.
        from trialpod.runner.fork_server.system import adopt_orphans

        adopt_orphans()
    again, ask_again = os.pipe()
    os.set_blocking(again, False)
    follows = False
    while True:
        child = os.fork()
        if child == 0:
            _run(found, message, init, ask_again, follows)
        code, stopped = _watch(child, signals)
        if stopped or not _asked(again):
            return _status(code, message)
        follows = True
        _end_orphans()


class TerminationMessage:
    """The file whose content the kubelet shows as the reason of a container's end.

    Args:
        path: the file; without one, or when it cannot be written, nothing is said.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.failed = False
        """Whether the latest attempt said that it failed."""

    def ended(self, end: AttemptEnd) -> None:
        """Say why an attempt failed; one that did not takes back what an earlier one said."""
        self.failed = end.cause == "failed"
        self.write(end.error if self.failed else "")

    def write(self, text: str) -> None:
        """Replace the message."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > _MAX_TERMINATION_BYTES:
            data = data[: _MAX_TERMINATION_BYTES - 3].decode(errors="ignore").encode() + b"..."
        try:
            # Not made if it is missing: then this is not a container, or its message is to be the end of its log.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(descriptor, data)
        except OSError:
            return
        finally:
            os.close(descriptor)


def _read_environment(environment: Mapping[str, str]) -> _SetUp:
    required = (variables.ADDRESS, variables.EXPERIMENT, variables.RUNNER)
    missing = [name for name in required if not environment.get(name)]
    if missing:
        raise _SetUpError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; the operator sets them in the "
            "pods of trials: this container was started by something else, or its template overwrites them"
        )
    address, experiment, runner = (environment[name] for name in required)
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("http", "https") or not rest:
        raise _SetUpError(f"{variables.ADDRESS} is {address!r}; it has to be like https://host:port")
    token, ca = environment.get(variables.TOKEN_FILE) or None, environment.get(variables.CA_FILE) or None
    if scheme == "https" and (token is None or ca is None):
        name = variables.TOKEN_FILE if token is None else variables.CA_FILE
        raise _SetUpError(f"{name} is not set; a trial's pod proves its identity, and verifies the operator's")
    for name, file in ((variables.TOKEN_FILE, token), (variables.CA_FILE, ca)):
        if file is not None and not os.access(file, os.R_OK):
            why = "does not exist" if not os.path.exists(file) else f"cannot be read by user {os.getuid()}"
            raise _SetUpError(
                f"{file} ({name}) {why}; the volume trialpod-identity has to be mounted in the trial's container"
            )
    return _SetUp(address, experiment, runner, token, ca, environment.get(variables.NODE_IP, ""))


def _prepare_folders() -> None:
    """Make the folders that an empty volume does not have yet, and give programs a home that they can write to."""
    scratch = os.environ.get(variables.SCRATCH_DIR)
    for folder in filter(None, (scratch, os.environ.get("TMPDIR"))):
        try:
            os.makedirs(folder, exist_ok=True)
            probe = os.path.join(folder, f".trialpod-{os.getpid()}")
            os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o600))
            os.unlink(probe)
        except OSError as error:
            raise _SetUpError(
                f"{folder} cannot be written by user {os.getuid()}: {error.strerror}; the volume there needs a "
                "securityContext.fsGroup that the container's user is in"
            ) from error
    home = os.environ.get("HOME", "")
    if scratch and not (home and os.path.isdir(home) and os.access(home, os.W_OK)):
        home = os.path.join(scratch, "home")
        os.makedirs(home, exist_ok=True)
        os.environ["HOME"] = home
    # A portable runtime has the certificate authorities that its image has not.
    authorities = os.path.join(sys.base_prefix, "lib/ca-certificates.crt")
    if not os.path.exists("/etc/ssl/certs/ca-certificates.crt") and os.path.exists(authorities):
        os.environ.setdefault("SSL_CERT_FILE", authorities)


def _run(found: _SetUp, message: TerminationMessage, init: int, ask_again: int, follows: bool) -> NoReturn:
    """Be the process that runs the attempts."""
    status = 1
    try:
        if init != 1:
            from trialpod.runner.fork_server.system import die_with_parent

            if not die_with_parent(init):
                raise SystemExit(status)
        # SIGTERM keeps its default until the runner takes over: before that there is nothing to be saved.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        from trialpod.runner.main import run

        status = run(
            runner=found.runner,
            address=found.address,
            experiment=found.experiment,
            token_file=found.token_file,
            ca_file=found.ca_file,
            node_ip=found.node_ip,
            on_end=message.ended,
            restart=lambda: _ask(ask_again),
            again=follows,
        )
        if message.failed:
            status = status or 1  # the operator knows already; this is for a user who looks at the pod
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except TrialpodError as error:
        message.write(str(error))
        write_stderr(f"trialpod: {error}\n")
    except BaseException:  # noqa: BLE001 - this is the bottom of the process's stack
        import traceback

        write_stderr(traceback.format_exc())
    finally:
        if not flush():
            status = status or 1
        # Threads that user code left behind would keep the interpreter from ending.
        os._exit(status & 0xFF)


def _ask(ask_again: int) -> None:
    # Not by an exit status: that is user code's to choose, too.
    os.write(ask_again, b"\n")


def _asked(again: int) -> bool:
    try:
        return bool(os.read(again, 64))
    except BlockingIOError:
        return False


def _watch(child: int, signals: set[signal.Signals]) -> tuple[int, bool]:
    """Pass on signals and collect children until the runner has ended.

    Returns:
        Its exit status (minus the number of the signal that killed it), and whether it had been asked to stop.
    """
    stopped = False
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(child, signal.SIGTERM)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == child:
                return os.waitstatus_to_exitcode(status), stopped


def _end_orphans() -> None:
    """Kill what the runner's trial has left behind: it may hold memory, of a GPU too, that the next trial needs."""
    from trialpod.runner.fork_server.system import children

    deadline = time.monotonic() + _ORPHANS_END_S
    while (left := children()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _status(code: int, message: TerminationMessage) -> int:
    """Return what a shell would: 128 and the number of the signal for a process that was killed by one.

    But not 255: with that, container runtimes say that they do not know how a container ended.
    """
    if code == _NOT_KNOWN:
        text = f"the trial's process exited with status {code}"
        message.write(text)
        write_stderr(f"trialpod: {text}\n")
        return 1
    if code >= 0:
        return code
    if -code != signal.SIGTERM:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = "; most likely the container reached its memory limit" if -code == signal.SIGKILL else ""
        text = f"the trial's process was killed by {name}{hint}"
        message.write(text)
        write_stderr(f"trialpod: {text}\n")
    return 128 - code


if __name__ == "__main__":
    sys.exit(main())
