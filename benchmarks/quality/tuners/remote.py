"""A peer in a process and an environment of its own; `peers.serve` describes the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tuners.tuner import Decision, Problem, Start, Tuner

ANSWER_TIMEOUT_S = 600.0
"""Maximum time for one answer; a peer that fits a model takes seconds."""


class PeerError(Exception):
    """A peer's process ended or does not answer."""


class RemoteTuner(Tuner):
    """Starts the peer when it is first needed, and ends it with this object.

    Args:
        command: its Python, program and arguments.
    """

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = [str(part) for part in command]
        self._process: subprocess.Popen[str] | None = None

    def begin(self, problem: Problem) -> None:
        """Begin with a task, in the process that is there."""
        if self._process is None:
            self._start()
        self._request({"do": "begin", "problem": problem.as_data()})

    def next_start(self, now: float) -> Start | None:
        """Ask for the next trial."""
        answer = self._request({"do": "next", "now": now})
        return Start(answer["trial"], answer.get("config")) if answer else None

    def report(self, trial: str, step: int, value: float, seconds: float, now: float) -> Decision:
        """Ask for a decision."""
        request = {"do": "report", "trial": trial, "step": step, "value": value, "now": now}
        decision: Decision = self._request(request)["decision"]
        return decision

    def ended(self, trial: str, decision: Decision, now: float) -> None:
        """Pass it on."""
        self._request({"do": "ended", "trial": trial, "decision": decision, "now": now})

    def _start(self) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=environment
        )
        weakref.finalize(self, _end, self._process, self._errors)

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                process.kill()
                raise PeerError(f"{self._command[1]} did not answer for {ANSWER_TIMEOUT_S:.0f} s")
            line = process.stdout.readline()
        if not line:
            code = process.wait()
            self._errors.seek(0)
            last = self._errors.read()[-2000:]
            raise PeerError(f"{' '.join(self._command[1:])} ended with code {code}:\n{last}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    errors.close()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
