"""`trialpod logs` of an experiment on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_experiment import SampleExperiment

from trialpod.cli.main import main
from trialpod.storage.journal.journal import Journal
from trialpod_operator.commands import logs
from trialpod_operator.view import reading


def test_following_reads_the_journal_as_a_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sample = SampleExperiment(tmp_path / "exp", [1])
    (trial_id,) = sample.trials
    sample.start(trial_id)
    opened: list[Path] = []
    asked: list[Path] = []
    open_journal = Journal.open

    def counted(directory: Path, **options: Any) -> Journal:
        opened.append(directory)
        return open_journal(directory, **options)

    def activity(directory: Path) -> reading.Activity:
        asked.append(directory)
        if len(asked) == 3:
            sample.end(trial_id)
        return reading.Activity(None, runs=True)

    with reading.reading(sample.folder) as experiment:
        log = Path(experiment.path(experiment.engine.state.trials[trial_id]), "log.txt")
    log.parent.mkdir(exist_ok=True)
    log.write_text("step 1\n")
    monkeypatch.setattr(Journal, "open", counted)
    monkeypatch.setattr(reading, "activity", activity)
    monkeypatch.setattr(logs, "STATE_INTERVAL_S", 0.0)
    monkeypatch.setattr(logs, "FILE_POLL_INTERVAL_S", 0.0)
    assert main(["logs", "-f", str(sample.folder), "0"]) == 0
    assert capfdbinary.readouterr().out == b"step 1\n"
    assert (len(asked), len(opened)) == (3, 1)
