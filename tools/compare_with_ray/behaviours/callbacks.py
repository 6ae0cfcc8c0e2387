"""Callbacks: which calls, in which order, with which arguments."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import tempfile
from typing import Any

from ray import tune
from ray.tune import Callback


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        self.calls.append(["setup", stop, num_samples, total_num_samples])

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["start", len(trials), trial.status])

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        self.calls.append(["result", result["n"], result["done"], trial.status])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["complete", trial.status, trial.last_result["n"], trial.last_result["done"]])

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["error", trial.status])

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["recover", trial.status])

    def on_trial_save(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["save"])

    def on_trial_restore(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(["restore"])

    def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
        self.calls.append(["checkpoint", checkpoint is not None])

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.calls.append(["end", [trial.status for trial in trials]])


def _fit(folder: str, trainable: Any, callback: Any, space: Any = None, samples: int = 1, **kwargs: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space or {},
        tune_config=tune.TuneConfig(num_samples=samples),
        run_config=tune.RunConfig(
            storage_path=folder, verbose=0, callbacks=callback if isinstance(callback, list) else [callback], **kwargs
        ),
    ).fit()


def _train(config: dict[str, Any]) -> None:
    for number in range(3):
        tune.report({"n": number})


def _saves(config: dict[str, Any]) -> None:
    for number in range(2):
        with tempfile.TemporaryDirectory() as path:
            open(f"{path}/x", "w").close()
            tune.report({"n": number}, checkpoint=tune.Checkpoint(path))


class Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0

    def step(self) -> dict[str, Any]:
        self.n += 1
        if self.n == 3 and not self.config.get("fine"):
            raise ValueError("three")
        return {"n": self.n}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"n": self.n}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = checkpoint["n"] + 10


def _recorded(folder: str, trainable: Any, **kwargs: Any) -> Any:
    recorder = Recorder()
    _fit(folder, trainable, recorder, **kwargs)
    return recorder.calls


@probe
def calls(folder: str) -> dict[str, Any]:
    return {
        "a function": lambda: _recorded(folder, _train),
        "a stop criterion": lambda: _recorded(folder, _train, stop={"n": 1}),
        "checkpoints": lambda: sorted(call[0] for call in _recorded(folder, _saves)),
        "a class": lambda: sorted(call[0] for call in _recorded(folder, Steps, space={"fine": True}, stop={"n": 4})),
        "a failure": lambda: _recorded(folder, Steps),
        "a retry": lambda: sorted(
            call[0]
            for call in _recorded(
                folder,
                Steps,
                stop={"n": 12},
                failure_config=tune.FailureConfig(max_failures=1),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
            )
        ),
        "nothing reported": lambda: _recorded_quietly(folder),
    }


def _recorded_quietly(folder: str) -> Any:
    class Quiet(Recorder):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.calls.append(["complete", trial.status])

    recorder = Quiet()
    _fit(folder, lambda config: None, recorder)
    return recorder.calls


@probe
def errors_and_arguments(folder: str) -> dict[str, Any]:
    class Fails(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            raise KeyError("callback")

    class FailsInSetup(Callback):
        def setup(self, **info: Any) -> None:
            raise KeyError("setup")

    class OldSetup(Callback):
        ready = False

        def setup(self) -> None:
            self.ready = True

    class Changes(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            result["added"] = 5

    class Iterations(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
            self.seen.append(["begin", type(iteration).__name__])

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            self.seen.append(["end", type(iteration).__name__])

    class State(Callback):
        def __init__(self) -> None:
            self.n = 0

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.n += 1

        def get_state(self) -> Any:
            return {"n": self.n}

        def set_state(self, state: Any) -> None:
            self.n = state["n"]

    steps, old, state = Iterations(), OldSetup(), State()
    _fit(folder, _train, steps)
    _fit(folder, _train, state, name="state")
    later = State()
    return {
        "raises": lambda: _fit(folder, _train, Fails()),
        "setup raises": lambda: _fit(folder, _train, FailsInSetup()),
        "setup without arguments": lambda: len(_fit(folder, _train, old)),
        "a change of the result": lambda: _fit(folder, _train, Changes())[0].metrics.get("added"),
        "steps": [steps.seen[:2], len(steps.seen) % 2],
        "no callback": lambda: _fit(folder, _train, 5),
        "a class": lambda: _fit(folder, _train, Callback),
        "a list of texts": lambda: _fit(folder, _train, ["a"]),
        "two": lambda: len(_fit(folder, _train, [Recorder(), Recorder()])),
        "state": state.n,
        "state restored": lambda: [
            tune.Tuner.restore(
                f"{folder}/state",
                _train,
            )
            and None,
            later.n,
        ],
        "base": [Callback().get_state(), Callback().set_state({})],
        "a callback of tune.run": lambda: len(
            tune.run(_train, callbacks=[Recorder()], storage_path=folder, verbose=0).trials
        ),
    }
