from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod.cli.main import main
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod_operator.engine import events
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.stored import write_stored


@pytest.fixture
def experiment(tmp_path: Path) -> tuple[Path, list[str]]:
    """Three trials under ASHA (one continues, one stops at a rung, one is lost and fails) and a snapshot."""
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": grid_search([1, 2, 3])}, 1)
    plan = ExperimentPlan(
        settings=Settings(name="e", trainable_name="train", metric="score", max_failures=0),
        search=search,
        scheduler=AsyncHyperBandScheduler(max_t=9, grace_period=1, reduction_factor=3),
        stopper=None,
        trainable=TrainableRef(entrypoint="m:train"),
    )
    write_stored(tmp_path, {"name": "e", "total": 3})
    host = JournaledEngine(plan, tmp_path, lambda: 1000.0, lambda action: None)
    host.apply(events.SettingsObserved(settings=plan.settings))
    good, bad, broken = host.engine.state.trials

    def report(trial_id: str, score: float) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": 1, "score": score}))
        host.apply(events.ResultsReceived(trial_id=trial_id, attempt=1, first=1, results=[raw]))

    def end(trial_id: str, attempt: int, **fields: Any) -> None:
        host.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(**fields)))

    report(good, 5.0)
    report(bad, 1.0)
    end(bad, 1, cause="stopped")
    end(broken, 1, cause="lost", error="SIGKILL")
    end(broken, 2, cause="failed", error="ValueError: no")
    host.write_snapshot()
    host.close()
    return tmp_path, [good, bad, broken]


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_stop_is_explained_after_journal_compaction(
    experiment: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (_, bad, _) = experiment
    told = explained(capsys, bad, str(folder))
    assert f"{bad} (train_{bad}) was stopped after 1 iteration in 1 attempt" in told
    assert "stopped at iteration 1: async_hyperband: score=1 at training_iteration 1 is below the cutoff 5" in told


def test_disruptions_and_failures_are_reported_in_order(
    experiment: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (_, _, broken) = experiment
    told = json.loads(explained(capsys, broken, str(folder), "--json"))
    assert [decision["kind"] for decision in told["decisions"]] == ["disruption", "failure"]
    assert told["decisions"][0]["sentence"] == "interrupted: its process was lost (SIGKILL)"
    assert "ValueError: no (failure 1; maxFailures is 0)" in told["decisions"][1]["sentence"]


def test_a_trial_about_which_nothing_was_decided(
    experiment: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (good, _, _) = experiment
    assert "nothing was decided about it" in explained(capsys, good, str(folder))


def test_trial_is_found_by_name_number_or_unique_prefix(
    experiment: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (_, bad, _) = experiment
    for asked in (bad, f"train_{bad}", "1", "00001"):
        assert explained(capsys, asked, str(folder)).startswith(bad)


@pytest.mark.parametrize("asked", ["prefix", "unknown", "nothing"])
def test_what_is_not_one_trial_is_refused_with_what_there_is(
    experiment: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    folder, (good, bad, _) = experiment
    name = {"prefix": good[:5], "unknown": f"{bad}x", "nothing": "zzz"}[asked]
    assert main(["explain", name, str(folder)]) == 2
    message = capsys.readouterr().err
    expected = {"prefix": "3 trials begin with", "unknown": f"did you mean '{bad}'", "nothing": f"there are: {good}"}
    assert expected[asked] in message
