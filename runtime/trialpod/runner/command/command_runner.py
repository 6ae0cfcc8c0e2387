"""Runs a command as a trial: starts it, reports what it measures, ends it on request, keeps its checkpoints.

It stands where the user's function would: results go through a `Session`, so they are numbered, judged and repeated
as those of any other Trainable.

Invariants:

* A checkpoint is committed after the results that the program said before it, and holds whole entries only; one that
  is taken at a horizon belongs to the result there.
* A command that was asked to end ends as the decision says, whatever its exit status.
* Until the process is gone, its output goes to the log.
* A last line without an end, printed or in a file, counts only if the command ended by itself: of one that was killed
  it may be half a number.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from trialpod import variables
from trialpod.errors import TrainableError
from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import CheckpointInfo
from trialpod.runner.attempt import Attempt
from trialpod.runner.command.checkpoint_folder import CheckpointFolder
from trialpod.runner.command.output import CommandOutput
from trialpod.runner.command.process import CommandProcess, describe_status
from trialpod.runner.command.report_server import ReportServer
from trialpod.runner.command.sources import Source, open_sources
from trialpod.storage.layout import COMMAND_DIR
from trialpod.tune import session as sessions
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.command.metrics.collector import ResultCollector
from trialpod.tune.command.metrics.reader import LineReader, describe_search, missing_metric
from trialpod.tune.command.parameter_file import encode_for
from trialpod.tune.command.template import (
    PARAMS_JSON,
    PARAMS_YAML,
    environment_name,
    leaves,
    render,
    render_arguments,
    render_value,
    templates,
)
from trialpod.tune.session import Outcome, Session, TrialStopped

log = logging.getLogger(__name__)

_TICK_S = 0.1
_POLL_S = 1.0
_SHOWN_CHARACTERS = 160
_NAMED_LINES = 100
"""After so many lines with numbers and names, and none with the objective, that is said while the command runs."""
_DRAIN_TICK_S = 0.01
_DRAIN_S = 10.0
"""How long what is left of the program's group may write on after the program has ended, as `tee` does."""
_QUIET_S = 2.0
"""After this time without output it is no more waited for."""
_CATCH_UP_S = 2.0
_HORIZON_WAIT_FACTOR = 3.0
_UPLOAD_SHARE = 0.4
"""Of the grace period of a preempted trial this part is kept for storing its last checkpoint."""


class CommandFailedError(TrainableError):
    """A command ended badly, or without what it was run for.

    Attributes:
        details: lines that explain it.
        retry: whether another attempt may help.
    """

    def __init__(self, message: str, details: str, *, retry: bool) -> None:
        super().__init__(message)
        self.details = details
        self.retry = retry


def run_command(spec: CommandSpec, attempt: Attempt, config: dict[str, Any], base: str) -> Outcome:
    """Run a command to its end and return how the trial is over for this process; `base` is its working directory.

    Raises:
        TrainableError: it cannot be started, failed, or never said the objective.
    """
    return _CommandRun(spec, attempt, config, base).run()


class _CommandSession(Session):
    """A session whose checkpoints are already where the attempt makes the next one."""

    def __init__(self, attempt: Attempt, *, checkpoint: Checkpoint | None, restored: dict[str, Any] | None) -> None:
        super().__init__(attempt.info, attempt, checkpoint=checkpoint, restored=restored)
        self._attempt = attempt

    def expected(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with what `report` is going to add to it and horizons may be about."""
        total = self._time_total + self._clock() - self._reported_at
        return {"training_iteration": self._iteration + 1, "time_total_s": total, **result}

    def _snapshot(self, checkpoint: Checkpoint, result: dict[str, Any]) -> CheckpointInfo:
        return self._attempt.snapshot(None, result)


class _CommandRun:
    def __init__(self, spec: CommandSpec, attempt: Attempt, config: dict[str, Any], base: str) -> None:
        self._attempt = attempt
        self._assignment = attempt.assignment
        self._config = config
        self._base = base
        self._trial_dir = self._assignment.trial_dir.removeprefix("file://")
        folder = Path(self._trial_dir) / COMMAND_DIR
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = CheckpointFolder(folder / "checkpoint", spec.checkpoints)
        self._built_in = {
            "trial_id": self._assignment.trial_id,
            "trial_name": self._assignment.trial_name,
            "trial_dir": self._trial_dir,
            "checkpoint_dir": str(self._folder.path),
            PARAMS_JSON: str(folder / PARAMS_JSON),
            PARAMS_YAML: str(folder / PARAMS_YAML),
        }
        self._spec = spec
        found = attempt.restore()
        self._resumed = found is not None
        self._is_trained = found is not None and attempt.is_trained(found[0])
        self._session = _CommandSession(
            attempt,
            checkpoint=Checkpoint(found[1]) if found else None,
            restored=found[0].metrics if found else None,
        )
        self._folder.restore(found[1] if found else None)
        iteration = found[0].iteration if found else 0
        self._last: dict[str, Any] = dict(found[0].metrics) if found else {}
        self._objective = self._assignment.metric
        awaited = self._awaited_names()
        self._wanted = (self._objective, *awaited) if self._objective else ()
        self._collector = ResultCollector(self._objective, spec.metrics.step, iteration, awaited)
        self._lines_without = 0  # the objective, before its first value
        self._must_report = not self._resumed and not self._assignment.rank
        self._reports = ReportServer()
        self._polled_at = 0.0
        self._commit_now = False
        self._kept_at_horizon = False
        self._asked_to_end = False
        """Whether the program has been sent SIGTERM because of a preemption."""

    def _awaited_names(self) -> list[str]:
        """Return the names that stop rules and horizons wait for."""
        rules = [rule.key for rule in self._assignment.stop_rules]
        horizons = [attribute for attribute, _ in self._attempt.link.horizons]
        return list(dict.fromkeys([*rules, *horizons]))

    def run(self) -> Outcome:
        sessions.install(self._session)
        before = signal.signal(signal.SIGUSR1, self._on_request)
        try:
            return "completed" if self._is_trained else self._run()
        finally:
            signal.signal(signal.SIGUSR1, before)
            self._reports.close()
            sessions.install(None)

    def _on_request(self, number: int, frame: object) -> None:
        self._commit_now = True

    def _run(self) -> Outcome:
        spec = self._spec
        directory = self._path(spec.working_dir, self._base) or self._base
        arguments = render_arguments(spec, self._config, self._built_in, resumed=self._resumed)
        environment = self._environment()
        self._write_parameters(directory)
        metrics = spec.metrics
        places = {name: self._path(getattr(metrics, name), directory) for name in ("file", "tensorboard", "mlflow")}
        places["prometheus"] = self._rendered(metrics.prometheus)
        sources = open_sources(msgspec.structs.replace(metrics, **places), self._wanted)
        reader = LineReader(metrics, self._wanted)
        process = CommandProcess(arguments, environment, directory)
        self._pass_on_preemption(process)
        try:
            output = CommandOutput(process.streams, reader)
            try:
                outcome = self._follow(process, output, reader, sources)
            finally:
                process.close()
                output.drop()
                output.stop()
                output.join(_DRAIN_S)
        finally:
            self._attempt.on_preempted = None
            process.close()
        # A program that ran on during the decision may have saved what comes after the result at the horizon.
        ran_on = outcome == "paused" and self._kept_at_horizon and self._spec.at_horizon == "continue"
        if outcome != "exploited" and not ran_on:
            self._commit_rest()
        if outcome == "completed":
            self._check_objective(output, reader, sources)
        return outcome

    # The program's surroundings.

    def _rendered(self, template: str) -> str:
        return render(template, self._config, self._built_in)

    def _path(self, template: str, directory: str) -> str:
        """Return a path template as a path, seen from a directory; "" for ""."""
        return os.path.join(directory, self._rendered(template)) if template else ""

    def _environment(self) -> dict[str, str]:
        spec = self._spec
        environment = {
            **os.environ,
            variables.TRIAL_ID: self._assignment.trial_id,
            variables.TRIAL_NAME: self._assignment.trial_name,
            variables.TRIAL_DIR: self._trial_dir,
            variables.CHECKPOINT_DIR: str(self._folder.path),
            variables.RESUMED: "1" if self._resumed else "0",
            variables.RUNNER_PID: str(os.getpid()),
            variables.REPORT_URL: self._reports.url,
        }
        # Where trialpod-report is.
        environment["PATH"] = os.pathsep.join(
            filter(None, (environment.get("PATH", os.defpath), os.path.dirname(sys.executable)))
        )
        # Without it Python keeps what it prints until 8 kB have gathered.
        environment.setdefault("PYTHONUNBUFFERED", "1")
        if spec.parameter_env_prefix:
            for name, value in leaves(self._config):
                environment[environment_name(spec.parameter_env_prefix, name)] = render_value(value, name)
        environment.update({name: self._rendered(template) for name, template in spec.env.items()})
        return environment

    def _write_parameters(self, directory: str) -> None:
        paths = [self._built_in[name] for name in (PARAMS_JSON, PARAMS_YAML) if self._uses(name)]
        if given := self._path(self._spec.parameters_file, directory):
            paths.append(given)
        for path in paths:
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                temporary = f"{path}.{self._assignment.trial_id}.tmp"
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(encode_for(path, self._config))
                os.replace(temporary, path)
            except OSError as error:
                raise TrainableError(
                    f"the parameters cannot be written to {path}: {error.strerror}; name another parametersFile"
                ) from error

    def _uses(self, name: str) -> bool:
        return any(f"{{{name}}}" in template for _, template in templates(self._spec))

    # While it runs.

    def _follow(
        self, process: CommandProcess, output: CommandOutput, reader: LineReader, sources: list[Source]
    ) -> Outcome:
        try:
            while (status := process.poll()) is None:
                self._take_line(output, reader, process, _TICK_S)
                self._tick(process, output, reader, sources)
                if (decided := self._attempt.decided) is not None:
                    raise TrialStopped(decided)
                if self._attempt.preempted:
                    return self._preempt(process, output, reader, sources)
            if self._asked_to_end:
                return self._preempt(process, output, reader, sources)
            self._drain(process, output, reader, sources, by_itself=status >= 0)
        except TrialStopped as stopped:
            self._session.over = stopped.cause
            output.drop()
            self._reports.release()
            process.end(self._grace_s())
            return stopped.cause
        if self._attempt.preempted and status != 0:
            return "preempted"
        if status != 0:
            raise CommandFailedError(
                f"the command {describe_status(status)}" + (f": {output.last.last}" if output.last.last else ""),
                f"the command {describe_status(status)}; its last lines:\n{output.last}\n",
                retry=True,
            )
        return "completed"

    def _pass_on_preemption(self, process: CommandProcess) -> None:
        """Notify the program of a preemption at once, also while a decision is waited for."""

        def ask_to_end() -> None:
            if not self._asked_to_end and process.poll() is None:
                self._asked_to_end = True
                process.signal(signal.SIGTERM)
                process.signal(signal.SIGCONT)  # it may be stopped at a horizon

        self._attempt.on_preempted = ask_to_end
        if self._attempt.preempted:
            ask_to_end()

    def _preempt(
        self, process: CommandProcess, output: CommandOutput, reader: LineReader, sources: list[Source]
    ) -> Outcome:
        """End the program in time for its last checkpoint to be stored, and report what it still says."""
        left = self._attempt.time_left_s() or 0.0
        deadline = time.monotonic() + left * (1.0 - _UPLOAD_SHARE)
        self._reports.release()
        while process.poll() is None and time.monotonic() < deadline:
            self._take_line(output, reader, process, _TICK_S)
        status = process.end(0.0)
        self._drain(process, output, reader, sources, by_itself=status >= 0)
        return "preempted"

    def _drain(
        self,
        process: CommandProcess,
        output: CommandOutput,
        reader: LineReader,
        sources: list[Source],
        *,
        by_itself: bool,
    ) -> None:
        """Report everything that the program has said, now that it has ended; nothing of its group is left after."""
        since = started = time.monotonic()
        while by_itself and not output.ended and not self._attempt.preempted:
            now = time.monotonic()
            if now - started > _DRAIN_S or now - max(since, output.read_at) > _QUIET_S:
                break
            if self._take_line(output, reader, process, _DRAIN_TICK_S):
                since = time.monotonic()
                if since - now > _QUIET_S:
                    started += since - now  # a decision was waited for, and with it the writers
        process.close()
        output.stop()
        while True:
            ended = output.ended  # before the line is asked for, so that none can come after
            if not self._take_line(output, reader, process, 0.0 if ended else _DRAIN_TICK_S) and ended:
                break
        for line in output.partials if by_itself else ():
            self._read(line, reader, process)
        self._poll(sources, process, last=by_itself)
        self._take_reports(process)

    def _grace_s(self) -> float:
        left = self._attempt.time_left_s()
        return self._spec.grace_s if left is None else min(self._spec.grace_s, left * (1.0 - _UPLOAD_SHARE))

    def _take_line(
        self, output: CommandOutput, reader: LineReader, process: CommandProcess, timeout_s: float
    ) -> bool:
        line = output.next(timeout_s)
        if line is None:
            return False
        self._read(line, reader, process)
        return True

    def _read(self, line: str, reader: LineReader, process: CommandProcess) -> None:
        if values := reader.read(line):
            self._add(values, None, process)
            if self._objective and not self._collector.found and self._must_report:
                self._record_line_without(self._objective, reader)

    def _record_line_without(self, objective: str, reader: LineReader) -> None:
        """Warn of a name that is wrong before the program, which may run for days, has ended."""
        self._lines_without += 1
        if self._lines_without == _NAMED_LINES:
            log.warning(
                "%d lines with numbers have come, and no result yet: %s; looked for in %s",
                _NAMED_LINES, missing_metric(objective, reader.seen), describe_search(self._spec.metrics),
            )  # fmt: skip

    def _catch_up(
        self, process: CommandProcess, output: CommandOutput, reader: LineReader, sources: list[Source]
    ) -> None:
        """Report what the program has said until now; one that never pauses is followed for a limited time."""
        deadline = time.monotonic() + _CATCH_UP_S
        while not output.idle and time.monotonic() < deadline:
            self._take_line(output, reader, process, _DRAIN_TICK_S)
        self._poll(sources, process, last=False)
        self._take_reports(process)

    def _take_reports(self, process: CommandProcess) -> None:
        while (report := self._reports.next()) is not None:
            self._add(*report, process)

    def _tick(
        self, process: CommandProcess, output: CommandOutput, reader: LineReader, sources: list[Source]
    ) -> None:
        self._take_reports(process)
        requests = self._reports.checkpoint_requests()
        if requests or self._commit_now:
            self._commit_now = False
            self._catch_up(process, output, reader, sources)
            taken = self._commit_whole()
            for request in requests:
                request.answer(taken=taken)
        now = time.monotonic()
        if now - self._polled_at < _POLL_S:
            return
        self._polled_at = now
        self._poll(sources, process, last=False)
        if self._folder.poll(now):
            self._catch_up(process, output, reader, sources)
            self._commit(self._folder.poll(time.monotonic()))

    def _poll(self, sources: list[Source], process: CommandProcess, *, last: bool) -> None:
        for source in sources:
            for values, step in source.poll(time.monotonic(), last=last):
                self._add(values, step, process)

    def _add(self, values: dict[str, Any], step: float | None, process: CommandProcess) -> None:
        result = self._collector.add(values, step)
        if result is None:
            return
        attempt = self._attempt
        waits = bool(attempt.link.horizons) and attempt.at_horizon(self._session.expected(result))
        freezes = waits and self._spec.at_horizon == "freeze"
        kept = self._checkpoint_at_horizon() if waits and self._assignment.saves_at_horizon else None
        if freezes:
            process.signal(signal.SIGSTOP)
        try:
            self._session.report(dict(result), checkpoint=kept)
        except TrialStopped as stopped:
            if stopped.cause != "preempted":
                raise
            self._session.over = None  # the program may say more until it has ended
        finally:
            self._last = sessions.latest_result() or self._last
            if freezes:
                process.signal(signal.SIGCONT)

    # Checkpoints.

    def _checkpoint_at_horizon(self) -> Checkpoint | None:
        """Copy what the program has just saved, as the checkpoint of the result at a horizon."""
        self._kept_at_horizon = False
        deadline = time.monotonic() + _HORIZON_WAIT_FACTOR * self._spec.checkpoints.settle_s
        while self._folder.changed and time.monotonic() < deadline and not self._attempt.preempted:
            requests = self._reports.checkpoint_requests()
            asked = bool(requests) or self._commit_now
            self._commit_now = False
            target = self._copy(self._folder.at_end() if asked else self._folder.poll(time.monotonic()))
            for request in requests:
                request.answer(taken=target is not None)
            if target is not None:
                self._kept_at_horizon = True
                return Checkpoint(target)
            time.sleep(_TICK_S)
        return None

    def _copy(self, entries: list[str]) -> Path | None:
        """Copy entries of the folder to where the next checkpoint is made; None if there are none, or they change."""
        if not entries:
            return None
        target = self._attempt.begin_checkpoint()
        return target if self._folder.copy(entries, target) else None

    def _commit(self, entries: list[str]) -> bool:
        """Make a checkpoint of entries of the folder; return whether there is one."""
        if self._copy(entries) is None:
            return False
        result = dict(self._last) or {"training_iteration": 0}
        self._attempt.announce(self._attempt.snapshot(None, result))
        return True

    def _commit_whole(self) -> bool:
        """Make a checkpoint of all that is new; return False if it changes all the time."""
        for _ in range(3):
            entries = self._folder.at_end()
            if not entries or self._commit(entries):
                return True
        return False

    def _commit_rest(self) -> None:
        if not self._commit_whole():  # only what left the program's group can still write
            log.warning("the checkpoint folder still changes after the command has ended; its last state is not kept")

    # The end.

    def _check_objective(self, output: CommandOutput, reader: LineReader, sources: list[Source]) -> None:
        if self._collector.dropped:
            log.warning("not reported, because trialpod sets them itself or there are too many names: %s",
                        ", ".join(sorted(self._collector.dropped)[:20]))  # fmt: skip
        if self._collector.rest and self._collector.found:
            log.warning(
                "%s came after the last %s and belong to no result; print them before it, or on the same line",
                ", ".join(self._collector.rest), self._objective,
            )  # fmt: skip
        if self._collector.found or not self._must_report:
            return
        seen = dict.fromkeys([*reader.seen, *self._collector.rest, *(name for each in sources for name in each.seen)])
        wanted = self._objective
        what = missing_metric(wanted, seen) if wanted else "no number with a name was found"
        search = describe_search(self._spec.metrics)
        last = output.last.last[:_SHOWN_CHARACTERS]
        printed = f"its output ends with {last!r}" if last else "it printed nothing"
        raise CommandFailedError(
            f"the command ended without a result: {what}; looked for in {search}; {printed}",
            f"the command exited with status 0, but {what}.\nLooked for in: {search}.\n"
            f"Its last lines:\n{output.last}\n",
            retry=False,
        )
