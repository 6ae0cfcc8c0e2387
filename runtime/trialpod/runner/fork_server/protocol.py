"""What the parent and the fork server say to each other: MessagePack messages, each after its length.

Invariants:

* Commands are carried out in the order they were sent; a `Spawn` after a `Preload` waits for it.
* Each `Spawn` is answered by exactly one `Exited`, and by one `Started` before it when there was a process.
* The end of the stream tells either side that the other one is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from trialpod.protocol.messages import Message, TrainableRef

DEFAULT_FUNCTION = "trialpod.runner.main:run"
"""What a trial process calls: ``run(runner=..., address=..., experiment=...)``, returning its exit status."""
DEFAULT_PRELOADER = "trialpod.runner.load:preload"
"""What the fork server calls with a `TrainableRef` to import the user's code; it returns a problem or ""."""

_LENGTH_BYTES = 4


class Preload(Message, tag=True):
    """Import the user's code (and the module of `function`) now, so that each trial starts with it loaded."""

    ref: TrainableRef
    preloader: str = DEFAULT_PRELOADER
    function: str = DEFAULT_FUNCTION
    storage_uri: str = ""  # whose package is imported, too; "" = a folder


class Spawn(Message, tag=True):
    """Start one trial process."""

    key: str  # names the process in all later messages; never used twice
    runner: str
    address: str
    experiment: str
    cwd: str = ""  # "" = the fork server's own
    log_path: str = ""  # stdout and stderr are appended to it; "" = the fork server's own
    env: dict[str, str | None] = msgspec.field(default_factory=dict)  # None removes a variable
    python_path: list[str] = msgspec.field(default_factory=list)  # put first on sys.path
    function: str = DEFAULT_FUNCTION


class Signal(Message, tag=True):
    """Send a signal to a trial's main process (not to its helpers: they would break a checkpoint)."""

    key: str
    signum: int


class Kill(Message, tag=True):
    """SIGKILL a trial with its whole process group."""

    key: str


class Ready(Message, tag=True):
    """The fork server accepts commands."""

    pid: int


class Preloaded(Message, tag=True):
    """`problem` says why trials import the user's code by themselves; "" when they need not.

    `unforkable` is True when the import worked and no trial could be forked after it.
    """

    problem: str = ""
    unforkable: bool = False


class Started(Message, tag=True):
    """A trial process exists."""

    key: str
    pid: int


class Exited(Message, tag=True):
    """A trial process and all its descendants are gone."""

    key: str
    status: int  # exit status, or minus the signal that killed it
    cpu_s: float = 0.0  # user and system time, of the process and the descendants that it waited for
    max_rss: int = 0  # bytes
    problem: str = ""  # why there was no process at all


Command = Preload | Spawn | Signal | Kill
Event = Ready | Preloaded | Started | Exited

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def frame(message: Command | Event) -> bytes:
    """Return a message as it goes over the socket."""
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def receive_command(control: socket.socket) -> Command | None:
    """Read exactly one command, waiting for it; None when the parent is gone.

    Nothing beyond it is taken out of the socket, so a fork server that replaces itself loses no command.
    """
    length = _receive(control, _LENGTH_BYTES)
    data = _receive(control, int.from_bytes(length, "big")) if length else b""
    return _command_decoder.decode(data) if data else None


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            # A signal ends even a call that waits for all of it, with what has come so far.
            piece = control.recv(size - len(data), socket.MSG_WAITALL)
        except ConnectionError:
            return b""
        if not piece:
            return b""
        data += piece
    return data


class EventStream:
    """Takes events out of received pieces of the stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are complete with `data`."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
            if len(buffer) < end:
                return
            event: Any = _event_decoder.decode(bytes(buffer[_LENGTH_BYTES:end]))
            del buffer[:end]
            yield event
