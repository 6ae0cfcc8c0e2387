"""The files of the trials that the operator's side writes: params.json, result.json, progress.csv, error.txt.

They follow from the journal: results go to the journal first and to these files right after. After a crash the files
are cut back to where they were at the latest snapshot and written again from the journal's records, so no line is
ever missing or there twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trialpod.storage.layout import trial_dirname
from trialpod.storage.trial_log import TrialLog
from trialpod_operator.engine.trial import Trial

Offsets = dict[str, int]


class TrialFiles:
    """Keeps one `TrialLog` for each trial that has not ended. Owned by the experiment's host."""

    def __init__(self, directory: Path, trainable_name: str) -> None:
        self._directory = directory
        self._trainable_name = trainable_name
        self._logs: dict[str, TrialLog] = {}
        self._dirty: set[str] = set()
        self.dirnames: dict[str, str] = {}
        self.resumed: dict[str, Offsets] = {}

    def path(self, trial: Trial) -> Path:
        """Return the directory of a trial."""
        name = self.dirnames.get(trial.trial_id)
        if name is None:
            name = trial_dirname(self._trainable_name, trial.trial_id, trial.tag, trial.created_at)
        return self._directory / name

    def create(self, trial: Trial) -> None:
        """Make the directory of a new trial, with its parameters in it."""
        self._open(trial)

    def attempt_started(self, trial: Trial) -> None:
        """Go on with another process: its pid and host stand in the lines from now on."""
        log = self._logs.get(trial.trial_id)
        if log is not None:
            log.update_static(_static(trial))

    def append(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        """Add results to the trial's files; buffered until `flush`."""
        log = self._logs.get(trial.trial_id) or self._open(trial)
        log.append(results)
        self._dirty.add(trial.trial_id)

    def failed(self, trial: Trial) -> None:
        """Write down the trial's latest failure."""
        text = f"Failure # {trial.failures} (attempt {trial.attempt})\n{trial.traceback or trial.error}\n"
        path = self.path(trial)
        path.mkdir(parents=True, exist_ok=True)
        (path / "error.txt").write_text(text)

    def ended(self, trial: Trial) -> None:
        """Complete the files of a trial."""
        self._dirty.discard(trial.trial_id)
        log = self._logs.pop(trial.trial_id, None)
        if log is not None:
            log.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        for trial_id in self._dirty:
            self._logs[trial_id].flush()
        self._dirty.clear()

    def offsets(self) -> dict[str, Offsets]:
        """Return the lengths of the open files, after flushing them."""
        self.flush()
        return {trial_id: log.offsets() for trial_id, log in self._logs.items()}

    def close(self) -> None:
        """Flush all files and let go of them."""
        self.flush()
        self._logs.clear()
        self._dirty.clear()

    def _open(self, trial: Trial) -> TrialLog:
        path = self.path(trial)
        path.mkdir(parents=True, exist_ok=True)
        offsets = self.resumed.pop(trial.trial_id, {})
        log = TrialLog.resume(path, _static(trial), offsets)
        self._logs[trial.trial_id] = log
        return log


def _static(trial: Trial) -> dict[str, Any]:
    return {
        "trial_id": trial.trial_id,
        "experiment_tag": trial.tag,
        "pid": trial.pid,
        "hostname": trial.hostname,
        "node_ip": trial.node_ip,
        "config": trial.config,
    }
