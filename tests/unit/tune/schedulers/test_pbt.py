"""Population Based Training: who copies whom, when, and what is left alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay


def experiment(
    count: int = 4, slots: int | None = None, checkpoints: bool = True, config: Any = None, **arguments: Any
) -> SimulatedExperiment:
    defaults = {
        "time_attr": "training_iteration",
        "metric": "score",
        "mode": "max",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"lr": tune.uniform(0.0, 1.0)},
    }
    configs = [
        config if config is not None else {"lr": 0.1 * (number + 1), "seed": number} for number in range(count)
    ]
    return SimulatedExperiment(
        lambda: PopulationBasedTraining(**{**defaults, **arguments}), configs, slots=slots, checkpoints=checkpoints
    )


def train(simulated: SimulatedExperiment, number: int, score: float, results: int = 2) -> None:
    simulated.play([Step(number, metrics={"score": score})] * results)


def test_worst_exploits_the_best() -> None:
    simulated = experiment()
    for number in (0, 1, 2):
        train(simulated, number, 1.0 - number / 10)
    train(simulated, 3, 0.1)
    ((_, what, reason), (_, _, config)) = [row for row in simulated.log if row[0] == "t_00003"][1:3]
    assert what == "EXPLOIT"
    lr = config["lr"]
    assert lr in (pytest.approx(0.12), pytest.approx(0.08)) or 0 <= lr <= 1
    assert config["seed"] == 0  # everything else is the source's
    assert reason == {
        "scheduler": "pbt",
        "rule": "exploit",
        "time_attr": "training_iteration",
        "time": 2,
        "metric": "score",
        "mode": "max",
        "value": 0.1,
        "rank": 4,
        "compared": 4,
        "quantile_fraction": 0.25,
        "source_trial": "t_00000",
        "source_value": 1.0,
        "source_rank": 1,
        "source_checkpoint": "checkpoint_000000",
        "operations": reason["operations"],
    }
    assert simulated.trials[3].tag == f"3_x@perturbed[lr={lr:.4f}]"
    assert simulated.trials[3].status == "RUNNING"


def test_no_exploit_between_perturbation_times() -> None:
    simulated = experiment(burn_in_period=5)
    trial = simulated.trials[0]
    assert simulated.scheduler.horizons(trial)[0].at == 5
    for number in range(4):
        train(simulated, number, number, 5)
    assert simulated.scheduler.horizons(trial)[0].at == 7
    assert [row[0] for row in simulated.log if row[1] == "EXPLOIT"] == []  # the best came last


def test_without_a_checkpoint_nothing_is_copied() -> None:
    simulated = experiment(checkpoints=False)
    for number in (3, 2, 1, 0):
        train(simulated, number, number)
    assert {what for _, what, _ in simulated.log} == {"START"}


def test_a_score_of_nan_is_the_worst_and_is_never_copied() -> None:
    simulated = experiment(quantile_fraction=0.5)
    for number, score in enumerate((0.5, math.nan, math.nan, math.nan)):
        train(simulated, number, score)
    assert {reason["source_trial"] for _, what, reason in simulated.log if what == "EXPLOIT"} == {"t_00000"}


def test_trials_take_turns_when_there_are_more_than_places() -> None:
    simulated = experiment(slots=2)
    train(simulated, 0, 0.5)
    assert [trial.status for trial in simulated.trials] == ["PAUSED", "RUNNING", "RUNNING", "PENDING"]
    train(simulated, 1, 0.5)
    train(simulated, 2, 0.5)
    assert [trial.status for trial in simulated.trials] == ["RUNNING", "PAUSED", "PAUSED", "RUNNING"]


def test_unknown_parameter_is_refused_with_a_hint() -> None:
    with pytest.raises(
        InvalidInputError, match=r"mutates 'lr', which the search space does not have. Did you mean 'LR'"
    ):
        experiment(config={"LR": 0.1})


def test_what_the_search_space_lacks_is_drawn() -> None:
    def make() -> PopulationBasedTraining:
        return PopulationBasedTraining(metric="m", mode="max", hyperparam_mutations={"lr": tune.uniform(0.0, 1.0)})

    (first, second) = SimulatedExperiment(make, [{}, {"batch": 1}]).trials
    assert 0 <= first.config["lr"] <= 1
    assert first.config["lr"] != second.config["lr"]
    assert second.config["batch"] == 1


def test_missing_values_are_an_error_unless_they_are_allowed() -> None:
    with pytest.raises(InvalidInputError, match=r"pbt needs metric 'score' in every result, .*Did you mean 'scores'"):
        experiment().play([Step(0, metrics={"scores": 1.0})])
    with pytest.raises(InvalidInputError, match="is 'high', not a number"):
        experiment().play([Step(0, metrics={"score": "high"})])
    experiment(require_attrs=False).play([Step(0, metrics={"scores": 1.0})])


@pytest.mark.parametrize("odd", [None, "far", math.nan])
def test_a_retry_needs_no_number_in_its_checkpoint(odd: Any) -> None:
    simulated = experiment(time_attr="steps", require_attrs=False)
    trial = simulated.trials[0]
    simulated.play([Step(0, metrics={"score": 1.0, "steps": 2})])
    assert trial.checkpoint is not None
    trial.checkpoint.metrics["steps"] = odd
    simulated.play([Step(0, "fail")])
    assert (trial.status, simulated.scheduler.horizons(trial)[0].at) == ("RUNNING", 4)


def test_together_all_wait_and_the_worst_copy_the_best() -> None:
    simulated = experiment(synch=True)
    for number in range(3):
        train(simulated, number, number)
    assert [trial.status for trial in simulated.trials[:3]] == ["PAUSED"] * 3
    train(simulated, 3, 3)
    assert [trial.status for trial in simulated.trials] == ["RUNNING"] * 4
    assert [row[0] for row in simulated.log if row[1] == "NEW_CONFIG"] == ["t_00000"]
    assert simulated.scheduler.horizons(simulated.trials[0])[0].at == 4


def test_the_end_of_the_last_one_lets_the_others_continue() -> None:
    for kind in ("complete", "die"):
        simulated = experiment(synch=True)
        for number in range(3):
            train(simulated, number, number)
        simulated.play([Step(3, kind, metrics={"score": 0.5})])
        assert [trial.status for trial in simulated.trials[:3]] == ["RUNNING"] * 3


def test_together_a_jump_in_time_leaves_nobody_waiting() -> None:
    simulated = experiment(synch=True, time_attr="time_total_s")
    for number in range(4):
        simulated.play([Step(number, advance=50.0, metrics={"score": number})])
    assert [trial.status for trial in simulated.trials] == ["RUNNING"] * 4


def test_a_custom_function_has_the_last_word() -> None:
    simulated = experiment(custom_explore_fn=lambda config: {**config, "seed": 99})
    train(simulated, 0, 1.0)
    train(simulated, 1, 0.1)
    assert simulated.trials[1].config["seed"] == 99
    broken = experiment(custom_explore_fn=lambda config: None)
    train(broken, 0, 1.0)
    with pytest.raises(InvalidInputError, match="custom_explore_fn must return"):
        train(broken, 1, 0.1)


def test_the_history_can_be_replayed() -> None:
    simulated = experiment(2)
    for _ in range(3):
        train(simulated, 0, 1.0)
        train(simulated, 1, 0.1)
    scheduler = simulated.scheduler
    assert isinstance(scheduler, PopulationBasedTraining)
    lines = scheduler.policy_log()["pbt_policy_t_00001.txt"]
    assert json.loads(lines[-1])[:2] == ["1_x", "0_x"]
    assert json.loads(lines[-1])[5] == simulated.trials[1].config
    PopulationBasedTrainingReplay(policy=lines)
    assert experiment(2, log_config=False).scheduler.policy_log() == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong",
    [
        {"perturbation_interval": 0},
        {"burn_in_period": -1},
        {"quantile_fraction": 0.6},
        {"quantile_fraction": -0.1},
        {"resample_probability": 2},
        {"perturbation_factors": []},
        {"perturbation_factors": [1.2, -1]},
        {"hyperparam_mutations": {}},
        {"hyperparam_mutations": {"lr": 3}},
        {"custom_explore_fn": "f"},
        {"synch": "yes"},
        {"mode": "maximum"},
        {"seed": 0.5},
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        PopulationBasedTraining(**{"hyperparam_mutations": {"lr": [1, 2]}, **wrong})


def test_repeated_exploits_starve_nobody() -> None:
    """All score alike and one trial runs at a time: each gets its turn and comes to the end."""
    experiment = SimulatedExperiment(
        lambda: PopulationBasedTraining(
            metric="score", mode="max", perturbation_interval=2, hyperparam_mutations={"x": [1, 2, 3]}, seed=1
        ),
        [{"x": 1}] * 4,
        slots=1,
    )
    experiment.finish(12.0, lambda _: {"score": 1.0}, limit=2_000)
    assert {trial.status for trial in experiment.trials} == {"TERMINATED"}


def test_alternating_exploits_starve_nobody() -> None:
    """What is copied is worse with every change, so the two at the bottom are set back as long as they run."""

    def worse(trial: SimulatedTrial) -> dict[str, float]:
        return {"score": -float(trial.config["x"])}

    experiment = SimulatedExperiment(
        lambda: PopulationBasedTraining(
            metric="score",
            mode="max",
            perturbation_interval=2,
            hyperparam_mutations={"x": {"uniform": [1, 1000]}},
            custom_explore_fn=lambda config: {**config, "x": config["x"] + 100},
            seed=1,
        ),
        [{"x": 8.0 - number} for number in range(8)],
        slots=1,
    )
    experiment.finish(12.0, worse, limit=500)
    assert {trial.status for trial in experiment.trials} == {"TERMINATED"}
