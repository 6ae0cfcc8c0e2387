from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from display_views import any_view, experiment, trial
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_storage import MemoryStorage
from sample_experiment import SampleExperiment

from trialpod.cli.main import main
from trialpod.errors import InvalidInputError
from trialpod.storage import registry
from trialpod.tune.plugins.objectives import Objective
from trialpod_operator.commands import best, results
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import cell_width
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.view import reading

ROWS = [
    trial(0),
    trial(2),
    trial(1, value=math.nan),
    trial(3, "ERROR", error="ValueError: no", value=None, last_result={"loss": 2.0}),
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(module: Any, *arguments: str, view: ExperimentView | None = None) -> int:
        shown = view or experiment(ROWS, state="Succeeded", best=ROWS[1], total=4)
        read = types.ModuleType("trialpod_operator.view.reading")
        vars(read)["live_view"] = lambda path, *, rows, orphans: (shown, None)
        monkeypatch.setitem(sys.modules, "trialpod_operator.view.reading", read)
        parser = argparse.ArgumentParser()
        module.command.configure(parser)
        status = module.command.run(parser.parse_args(["some/where", *arguments]))
        assert isinstance(status, int)
        return status

    return run


def test_results_are_a_table_with_the_best_first(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results) == 0
    assert capsys.readouterr().out == (
        "digits: Succeeded, 4/4 trials (1 failed), 120 results in 14.2 s\n"
        "\n"
        "trial        status      iter  accuracy  time       lr\n"
        "ab12c_00002  TERMINATED     9       0.7  0:03  0.03333\n"
        "ab12c_00000  TERMINATED     9       0.5  0:03      0.1\n"
        "ab12c_00001  TERMINATED     9       nan  0:03     0.05\n"
        "ab12c_00003  ERROR          9         -  0:03    0.025\n"
        "\n"
        "ab12c_00003: ValueError: no\n"
        "  log: ./trialpod-results/digits/train_ab12c_00003/log.txt\n"
    )


def test_each_of_several_metrics_has_a_column(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    row = trial(0, last_result={"accuracy": 0.5, "size": 7.25})
    wanted = [Objective("accuracy", "max"), Objective("size", "min"), Objective("seconds", "min")]
    run(results, view=experiment([row], objectives=wanted))
    head, line = capsys.readouterr().out.splitlines()[-2:]
    assert head.split() == ["trial", "status", "iter", "accuracy", "size", "time"]
    assert line.split()[3:5] == ["0.5", "7.25"]


def test_no_results_are_counted_beside_a_best_trial(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(results, view=experiment(ROWS, state="Running", best=ROWS[1], total=4, results=0))
    assert capsys.readouterr().out.startswith("digits: Running, 4/4 trials (1 failed), 14.2 s\n")


def test_results_are_sorted_limited_and_filtered(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(results, "--json", "--sort", "lr", "--limit", "2")
    shown = json.loads(capsys.readouterr().out)
    assert [row["trial_id"] for row in shown["trials"]] == ["ab12c_00003", "ab12c_00002"]
    run(results, "--json", "--sort=-config/lr")
    shown = json.loads(capsys.readouterr().out)
    assert shown["trials"][0]["trial_id"] == "ab12c_00000"
    run(results, "--csv", "--failed")
    (record,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (record["trial_id"], record["config/lr"], record["loss"]) == ("ab12c_00003", "0.025", "2.0")


class TestResultKeysNamedLikeFacts:
    ROWS = (
        trial(0, last_result={"error": 0.12, "status": 3, "iteration": 70, "trial_id": "ab12c_00000"}),
        trial(1, "ERROR", error="ValueError: no", last_result={"error": 0.05, "path": 1.5}),
    )

    def test_csv_has_both(self, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        run(results, "--csv", view=experiment([*self.ROWS]))
        other, one = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert (one["error"], one["status"], one["iteration"]) == ("", "TERMINATED", "9")
        assert (one["result/error"], one["result/status"], one["result/iteration"]) == ("0.12", "3", "70")
        assert (other["error"], other["result/error"], other["result/path"]) == ("ValueError: no", "0.05", "1.5")
        assert other["path"].endswith("ab12c_00001")
        assert "result/trial_id" not in one

    @pytest.mark.parametrize("key", ["error", "result/error"])
    def test_can_be_sorted_by(self, run: Any, capsys: pytest.CaptureFixture[str], key: str) -> None:
        run(results, "--csv", "--sort", key, view=experiment([*self.ROWS]))
        shown = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert [row["result/error"] for row in shown] == ["0.05", "0.12"]


@pytest.mark.parametrize("key", ["accuracy", "result/accuracy"])
def test_the_metric_may_be_absent_from_last_results(run: Any, capsys: pytest.CaptureFixture[str], key: str) -> None:
    rows = [trial(number, value=value, last_result={"loss": 1.0}) for number, value in enumerate((0.5, None, 0.3))]
    run(results, "--json", "--sort", key, view=experiment(rows))
    listed = json.loads(capsys.readouterr().out)["trials"]
    assert [each["trial_id"][-1] for each in listed] == ["2", "0", "1"]


def test_an_unknown_sort_key_is_answered_with_the_nearest(run: Any) -> None:
    with pytest.raises(InvalidInputError, match="--sort acuracy: no trial has such a key; did you mean 'accuracy'"):
        run(results, "--sort", "acuracy")


def test_a_limit_below_one_is_refused(run: Any) -> None:
    with pytest.raises(InvalidInputError, match="--limit 0: must be 1 or more"):
        run(results, "--limit", "0")


def test_best_prints_the_trial_or_only_its_parameters(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(best) == 0
    assert capsys.readouterr().out.startswith("best trial: train_ab12c_00002 with accuracy=0.7 at iteration 9\n")
    run(best, "--yaml")
    assert capsys.readouterr().out == "lr: 0.03333333333333333\nlayers: 2\nepochs: 9\n"
    run(best, "--json")
    assert json.loads(capsys.readouterr().out)["params"]["layers"] == 2


def test_best_by_another_metric_or_mode(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(best, "--mode", "min")
    assert "train_ab12c_00000 with accuracy=0.5" in capsys.readouterr().out
    run(best, "--metric", "loss", "--mode", "min")
    assert "train_ab12c_00003 with loss=2" in capsys.readouterr().out


class TestBestByAnEarlierResult:
    """The metric is not reported with every result."""

    @pytest.fixture
    def sample(self, tmp_path: Path) -> SampleExperiment:
        sample = SampleExperiment(tmp_path / "e", [1, 2, 3, 4])
        first, second, third, _ = sample.trials
        sample.report(first, 1.0, val_loss=0.5)
        sample.report(second, 1.0, val_loss=0.2)
        sample.report(second, 1.0, 1.0)
        sample.report(third, 1.0, val_loss=0.1)
        sample.report(third, 1.0, val_loss=0.3)
        sample.report(third, 1.0, val_loss=math.nan)
        sample.host.flush()
        return sample

    def best(self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
        assert main(["best", str(sample.folder), "--metric", "val_loss", "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def test_is_the_latest_finite_value(self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str]) -> None:
        found = self.best(sample, capsys, "--mode", "min")
        assert (found["trial_id"], found["value"]) == (sample.trials[1], 0.2)
        assert self.best(sample, capsys, "--mode", "max")["value"] == 0.5
        assert main(["best", str(sample.folder), "--metric", "val_loss", "--mode", "min"]) == 0
        assert "with val_loss=0.2 at iteration 1 of 3\n" in capsys.readouterr().out

    def test_in_a_bucket(
        self, sample: SampleExperiment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = MemoryStorage()
        replica = Replica(sample.folder, storage)
        for each in sample.host.engine.state.trials.values():
            replica.trial_ended(sample.host.files.path(each).name)
        replica.copy()
        for module in (registry, reading):
            monkeypatch.setattr(module, "open_storage", lambda _uri: storage)
        assert main(["best", "s3://bucket/e", "--metric", "val_loss", "--mode", "min", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == 0.2


def test_no_best_trial_is_said_on_standard_error_with_status_1(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(best, "--metric", "los") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "reported metrics: accuracy, loss\n  did you mean 'loss'?" in captured.err


@settings(max_examples=40)
@given(view=any_view, width=st.integers(40, 200))
def test_any_view_can_be_listed(view: ExperimentView, width: int) -> None:
    rows = results.ordered(view, None)
    assert len(rows) == len(view.rows)
    for key in results.sort_keys(view.rows):
        assert len(results.ordered(view, key)) == len(rows)
    table = results.text_table(results.trial_columns(rows, view.metric, []), width)
    assert all(cell_width(line) <= width for line in table.split("\n"))
    results.results_table(view, rows, width)
    results.results_csv(rows)
    json.loads(results.results_json(view, rows))
