from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet
import pytest
from display_views import trial as trial_row
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sample_experiment import SampleExperiment

from trialpod.cli.main import main
from trialpod_operator.view import exports


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

    def test_an_interrupted_trial_is_as_results_has_it(
        self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shown = []
        for command in ("export", "results"):
            assert main([command, str(sample.folder), "--csv"]) == 0
            rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
            shown.append(sorted((row["trial_id"], row["status"], float(row["run_time_s"])) for row in rows))
        assert shown[0] == shown[1]
        assert shown[0][3][1] == "PENDING"
        assert shown[0][3][2] < 60

    def test_csv_is_utf_8_in_any_locale(self, sample: SampleExperiment, tmp_path: Path) -> None:
        sample.report(sample.trials[3], 1.0, größe="日本")
        sample.host.flush()
        file = tmp_path / "e.csv"
        environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
        program = "import sys; from trialpod.cli.main import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", program, "export", str(sample.folder), "--csv", str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "日本" in file.read_text(encoding="utf-8")

    @pytest.mark.parametrize("form", ["--parquet", "--optuna-journal"])
    def test_only_csv_goes_to_standard_output(
        self,
        sample: SampleExperiment,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        form: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("-").write_text("mine")
        assert main(["export", str(sample.folder), form, "-"]) == 2
        assert "- exists; --force replaces it" in capsys.readouterr().err
        assert Path("-").read_text() == "mine"

    @pytest.mark.parametrize(
        ("values", "column"),
        [
            ([1, 2], [1, 2]),
            ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
            ([2**64, 1], [str(2**64), "1"]),
            ([2**53 - 1, 0.5], [float(2**53 - 1), 0.5]),
            ([2**53 + 1, 0.5], [str(2**53 + 1), "0.5"]),
            ([True, 1], ["True", "1"]),
        ],
    )
    def test_parquet_changes_no_number(self, tmp_path: Path, values: list[Any], column: list[Any]) -> None:
        rows = [trial_row(number, last_result={"value": value}) for number, value in enumerate(values)]
        exports.write_parquet(rows, tmp_path / "e.parquet")
        assert pyarrow.parquet.read_table(tmp_path / "e.parquet").column("value").to_pylist() == column

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
