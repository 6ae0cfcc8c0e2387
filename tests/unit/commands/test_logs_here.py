"""`trialpod logs` of an experiment on this machine."""

from __future__ import annotations

import io
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


class TestTailOfAFile:
    @pytest.mark.parametrize(("tail", "shown"), [(0, b"4\n"), (2, b"2\r3\n3\n4\n"), (9, b"1\n2\r3\n3\n4\n")])
    def test_is_where_following_begins(self, tmp_path: Path, tail: int, shown: bytes) -> None:
        log, out = tmp_path / "log.txt", io.BytesIO()
        log.write_bytes(b"1\n2\r3\n3\n")

        def grow(_seconds: float) -> None:
            log.write_bytes(b"1\n2\r3\n3\n4\n")

        over = iter([False, True])
        steps = iter(range(0, 100, 3))
        assert logs.follow_file(log, out, lambda: next(over), tail=tail, clock=lambda: next(steps), sleep=grow) == 0
        assert out.getvalue() == shown

    def test_of_a_file_that_comes_later(self, tmp_path: Path) -> None:
        log, out = tmp_path / "log.txt", io.BytesIO()
        over, steps = iter([False, True]), iter(range(0, 100, 3))
        assert not logs.follow_file(
            log,
            out,
            lambda: next(over),
            tail=1,
            clock=lambda: next(steps),
            sleep=lambda _: log.write_bytes(b"1\n2\n") and None,
        )
        assert out.getvalue() == b"1\n2\n"


class TestOptions:
    @pytest.fixture
    def sample(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleExperiment:
        monkeypatch.chdir(tmp_path)
        return SampleExperiment(tmp_path / "exp", [1])

    def test_earlier_attempts_are_those_of_a_cluster(
        self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["logs", str(sample.folder), "0", "-p"]) == 2
        assert "-p is for a trial in a cluster" in capsys.readouterr().err

    def test_a_bucket_is_not_followed(self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["logs", "s3://bucket/exp", "0", "-f"]) == 2
        assert "-f: s3://bucket/exp is in a bucket" in capsys.readouterr().err
