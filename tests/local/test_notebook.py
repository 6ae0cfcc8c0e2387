"""`Tuner.fit` in a cell of a notebook: a kernel runs it in its main thread, inside the event loop of that thread."""

from __future__ import annotations

import signal
import sys

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local

CELLS = """
import asyncio, threading, time
from trialpod import tune
from trialpod.tune import RunConfig, TuneConfig, Tuner

def train(config):
    while True:
        time.sleep(SLEEP)
        tune.report({"score": 1.0})

def cell():
    tuner = Tuner(train, run_config=RunConfig(name="exp", storage_path="storage"))
    try:
        tuner.fit()
    except KeyboardInterrupt:
        print("interrupted", [thread.name for thread in threading.enumerate()], flush=True)

async def kernel():
    cell()
    cell()

asyncio.run(kernel())
"""


class TestInterrupt:
    def test_once_ends_gracefully_and_the_next_cell_continues(self, shell: Shell) -> None:
        shell.write("script.py", CELLS.replace("SLEEP", "0.02"))
        cells = shell.launch([sys.executable, "script.py"])
        for begun in ("started", "results:"):
            cells.wait_line(begun)
            cells.signal(signal.SIGINT)
            cells.wait_line("interrupt again to end at once")
            cells.wait_line("suspended: 0/1 trial")
            assert "['MainThread']" in cells.wait_line("interrupted [")
        assert cells.wait() == 0, cells.text
        assert not cells.errors

    def test_twice_ends_at_once(self, shell: Shell) -> None:
        shell.write("script.py", CELLS.replace("SLEEP", "60"))
        cells = shell.launch([sys.executable, "script.py"])
        for begun in ("started", "results:"):
            cells.wait_line(begun)
            cells.signal(signal.SIGINT)
            cells.wait_line("interrupt again to end at once")
            cells.signal(signal.SIGINT)
            assert "['MainThread']" in cells.wait_line("interrupted [", timeout_s=8.0)  # the grace period is 10 s
        assert cells.wait() == 0, cells.text
