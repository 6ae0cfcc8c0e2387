from __future__ import annotations

import csv
import io
from pathlib import Path

import optuna
import pyarrow.parquet
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sample_experiment import SampleExperiment

from trialpod.cli.main import main


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    """Trials that complete, are stopped by ASHA, fail, run; values of several kinds."""
    sample = SampleExperiment(tmp_path / "e", [1, 2.5, 3, 4], max_t=4)
    first, second, third, fourth = sample.trials
    for trial in sample.trials:
        sample.start(trial)
    sample.report(first, 5.0, 6.0, 7.0, 8.0, loss=0.5)
    sample.end(first, "stopped")
    sample.report(second, 1.0, 0.5)
    sample.end(second, "stopped")
    for attempt in (1, 2):
        sample.end(third, "failed", attempt=attempt, error="ValueError: no")
    sample.report(fourth, float("nan"))
    return sample


class TestOptunaJournal:
    def test_optuna_loads_it(self, sample: SampleExperiment, tmp_path: Path) -> None:
        file = tmp_path / "study.log"
        assert main(["export", str(sample.folder), "--optuna-journal", str(file)]) == 0
        study = optuna.load_study(study_name="e", storage=JournalStorage(JournalFileBackend(str(file))))
        assert study.direction == optuna.study.StudyDirection.MAXIMIZE
        first, second, third, fourth = study.trials
        assert [trial.state for trial in study.trials] == [
            TrialState.COMPLETE,
            TrialState.PRUNED,
            TrialState.FAIL,
            TrialState.RUNNING,
        ]
        assert study.best_trial.number == 0
        assert (first.value, first.params, first.intermediate_values) == (8.0, {"x": 1.0}, {1: 5, 2: 6, 3: 7, 4: 8})
        assert first.user_attrs["trial_id"] == sample.trials[0]
        assert second.value == 0.5
        assert third.user_attrs["reason"] == "ValueError: no"
        assert fourth.datetime_complete is None
        assert study.user_attrs == {"metric": "score"}

    def test_a_file_that_is_there_is_kept(self, sample: SampleExperiment, tmp_path: Path) -> None:
        file = tmp_path / "study.log"
        file.write_text("mine")
        assert main(["export", str(sample.folder), "--optuna-journal", str(file)]) == 2
        assert file.read_text() == "mine"
        assert main(["export", str(sample.folder), "--optuna-journal", str(file), "--force"]) == 0
        assert [path.name for path in tmp_path.iterdir() if "study" in path.name] == ["study.log"]


class TestTables:
    def test_csv_has_a_line_for_each_trial(
        self, sample: SampleExperiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["export", str(sample.folder), "--csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [row["config/x"] for row in rows] == ["1", "2.5", "3", "4"]
        assert rows[0]["score"] == "8.0"
        file = tmp_path / "e.csv"
        assert main(["export", str(sample.folder), "--csv", str(file)]) == 0
        with file.open() as written:
            again = list(csv.DictReader(written))
        assert [row["trial_id"] for row in again] == sample.trials

    def test_parquet_has_typed_columns(self, sample: SampleExperiment, tmp_path: Path) -> None:
        file = tmp_path / "e.parquet"
        assert main(["export", str(sample.folder), "--parquet", str(file)]) == 0
        table = pyarrow.parquet.read_table(file)
        assert table.column("trial_id").to_pylist() == sample.trials
        assert table.column("config/x").to_pylist() == [1, 2.5, 3, 4]
        assert table.column("loss").to_pylist() == [0.5, None, None, None]
        assert str(table.schema.field("attempts").type) == "int64"

    def test_a_place_that_is_not_there_is_refused(
        self, sample: SampleExperiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["export", str(sample.folder), "--parquet", str(tmp_path / "none" / "e.parquet")]) == 2
        assert "is not a folder" in capsys.readouterr().err
