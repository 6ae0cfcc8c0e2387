"""What stands in for the runner and the loader in tests of the fork server: small trials and preloads."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from typing import NoReturn

from trialpod.protocol.messages import TrainableRef

LOADED_IN = os.getpid()

DAEMON = "import os, signal; os.setsid(); os.write(1, b'%d' % os.getpid()); signal.pause()"


def preload(ref: TrainableRef) -> str:
    what = ref.entrypoint or ""
    if what == "thread":
        threading.Thread(target=threading.Event().wait, name="metrics-uploader", daemon=True).start()
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "raise":
        raise ImportError("no module named 'trian'")
    elif what == "exit":
        sys.exit("usage: train.py FILE")
    elif what == "forever":
        forever()
    return ""


def forever() -> NoReturn:
    while True:
        signal.pause()


def announce(pipe: str, text: str) -> None:
    """Tell the test, which waits at the other end of a named pipe (if it gave one)."""
    if pipe:
        with open(pipe, "w") as file:
            file.write(text)


def run(*, runner: str, address: str, experiment: str) -> int:
    """Do what `runner` says; `address` is its argument."""
    if runner == "exit":
        return int(address)
    if runner == "wait":
        announce(address, str(os.getpid()))
        forever()
    if runner == "raise":
        raise RuntimeError(address)
    if runner == "sys.exit":
        sys.exit(address)
    if runner == "os._exit":
        os._exit(int(address))
    if runner == "segfault":
        ctypes.string_at(0)
    if runner == "fork" and os.fork() == 0:
        forever()
    if runner == "unflushed":
        sys.stdout.write(f"{experiment} without a newline")
    if runner == "facts":
        facts = {
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "sid": os.getsid(0),
            "preloaded": os.getpid() != LOADED_IN,
            "random": random.random(),
            "cwd": os.getcwd(),
            "path0": sys.path[0],
            "env": {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "GONE")},
            "stdin": sys.stdin.read(),
            "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors()),
            "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        }
        print(repr(facts))
    if runner in ("daemon", "daemon and wait"):
        # Detached twice over: a session of its own, and its parent ends at once.
        starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DAEMON!r}])"
        reading, writing = os.pipe()
        subprocess.run([sys.executable, "-c", starter], check=True, stdout=writing)
        pid = os.read(reading, 100).decode().strip()
        print(pid)
        if runner == "daemon and wait":
            announce(address, pid)
            forever()
    return 0


def descriptors() -> list[int]:
    open_ones = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        open_ones.append(int(name))
    return open_ones
