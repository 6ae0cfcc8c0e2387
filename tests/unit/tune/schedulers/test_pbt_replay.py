"""Replay of a schedule that Population Based Training found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, Step
from trialpod.tune.schedulers import PopulationBasedTrainingReplay

LINES = [
    json.dumps(["z", "y", 3, 3, {"lr": 9}, {"lr": 8}]),  # of a state that was given up
    json.dumps(["b", "c", 5, 4, {"lr": 1}, {"lr": 2}]),
    json.dumps(["a", "b", 9, 8, {"lr": 2}, {"lr": 3}]),
]


def experiment(lines: Any = LINES, lr: float = 1, count: int = 1) -> SimulatedExperiment:
    return SimulatedExperiment(lambda: PopulationBasedTrainingReplay(policy=lines), [{"lr": lr, "n": 1}] * count)


def test_config_changes_from_its_own_checkpoint() -> None:
    simulated = experiment()
    (trial,) = simulated.trials
    seen = []
    for _ in range(10):
        simulated.play([Step(0)])
        seen.append(trial.config["lr"])
    assert seen == [1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert trial.iteration == 10
    assert simulated.scheduler.horizons(trial) == []
    assert simulated.log[1][2]["rule"] == "replay"
    assert trial.tag == "replay_policy@perturbed[lr=3]"
    assert trial.config["n"] == 1


def test_a_file_gives_the_same_schedule(tmp_path: Path) -> None:
    (tmp_path / "pbt_policy_a.txt").write_text("\n".join(LINES) + "\n")
    from_file = PopulationBasedTrainingReplay(str(tmp_path / "pbt_policy_a.txt"))
    assert from_file.get_state() == PopulationBasedTrainingReplay(policy=LINES).get_state()


def test_changes_after_the_checkpoint_are_made_again_by_a_retry() -> None:
    simulated = SimulatedExperiment(
        lambda: PopulationBasedTrainingReplay(policy=LINES), [{"lr": 1}], checkpoints=True
    )
    simulated.play([Step(0)] * 8)
    simulated.trials[0].checkpoint = None
    simulated.play([Step(0, "fail")])
    assert simulated.scheduler.horizons(simulated.trials[0])[0].at == 4


def test_first_config_of_the_schedule_is_set() -> None:
    (trial,) = experiment(lr=5).trials
    assert (trial.config["lr"], trial.config["n"]) == (experiment().trials[0].config["lr"], 1)


def test_first_config_can_be_read() -> None:
    """Scripts for Ray give it to the experiment: ``config=replay.config``."""
    assert PopulationBasedTrainingReplay(policy=LINES).config == {"lr": 1}


def test_a_second_trial_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="runs one trial"):
        experiment(count=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either policy_file or policy"),
        ({"policy_file": "/nowhere/x.txt"}, "policy_file /nowhere/x.txt cannot be read"),
        ({"policy": []}, "nothing to replay"),
        ({"policy": "text"}, "must be a list"),
        ({"policy": ["{"]}, "line 1 is not a policy"),
        ({"policy": [["a", "b", 1, "x", {}, {}]]}, "line 1 is not a policy"),
    ],
)
def test_what_is_no_policy_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        PopulationBasedTrainingReplay(**arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\nSECRET\n", "line 2 is not a policy"),
        (b"SECRET\n\xff", "line 2 is not UTF-8"),
        (b"a" * 99, "is larger than 64"),
    ],
)
def test_no_message_shows_what_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr("trialpod.tune.plugins.file_parameters.MAX_BYTES", 64)
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as raised:
        PopulationBasedTrainingReplay(str(tmp_path / "key"))
    assert "SECRET" not in str(raised.value)
