from __future__ import annotations

from trialpod_operator.engine.controller import Controller
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import ERROR, TERMINATED, Trial


class TestWhatRaysUsersAsk:
    def controller(self) -> Controller:
        states = ("RUNNING", TERMINATED, ERROR, "PENDING")
        trials = [
            Trial(trial_id=str(n), index=n, tag="", params=b"", created_at=0.0, status=status)
            for n, status in enumerate(states)
        ]
        state = State()
        state.set_capacity(None, {"cpu": 8.0})
        state.load(trials, ([], [], []), opens=False)
        return Controller(state, bytes, dict)

    def test_live_trials(self) -> None:
        assert {trial.trial_id for trial in self.controller().get_live_trials()} == {"0", "3"}

    def test_resources_of_all_trials(self) -> None:
        updater = self.controller()._resource_updater
        assert (updater.get_num_cpus(), updater.get_num_gpus()) == (8.0, 0.0)
