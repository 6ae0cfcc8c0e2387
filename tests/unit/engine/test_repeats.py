"""The final re-evaluation: which trials are repeated, what counts, and which one wins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from engine_support import ListSearch, Recorder, Shell

from trialpod.protocol.values import params_decoder
from trialpod.tune.plugins.repeats import repeat_id, source_of
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.search.search_algorithm import Suggestion
from trialpod_operator.engine import events
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.repeats import evaluations, winner
from trialpod_operator.engine.settings import RepeatRules
from trialpod_operator.engine.trial import ERROR, Trial

SCORES = {"t0": 1.0, "t1": 9.0, "t2": 8.0, "t3": 7.0}
RULES = RepeatRules(top=2, times=2)
REPEATED = {"t1": [2.0, 4.0], "t2": [6.0, 5.0]}


class Trials(Shell):
    """Four trials, of which each reports one score and completes; repeats report what `REPEATED` says."""

    def __init__(
        self, repeats: RepeatRules = RULES, shift: int = 0, search: ListSearch | None = None, **changes: Any
    ) -> None:
        self.recorder = Recorder()
        super().__init__(
            4,
            search=search or ListSearch(4, shift=shift),
            scheduler=self.recorder,
            max_concurrent=2,
            repeats=repeats,
            **changes,
        )

    def score(self, trial: Trial) -> float:
        return REPEATED[trial.repeat_of][trial.repeat - 1] if trial.repeat_of else SCORES[trial.trial_id]

    def play(self, until: int = 100) -> None:
        for _ in range(until):
            running = self.engine.state.running_trials()
            if not running:
                return
            self.results(
                running[0].trial_id, {"training_iteration": 1, "score": self.score(running[0]), "done": True}
            )
            self.end(running[0].trial_id)

    @property
    def ids(self) -> list[str]:
        return list(self.engine.state.trials)


class TestCreation:
    def test_the_best_run_once_more_each(self) -> None:
        trials = Trials()
        trials.play()
        assert trials.ids == ["t0", "t1", "t2", "t3", "t1r1", "t1r2", "t2r1", "t2r2"]
        assert trials.outcome() == ("Succeeded", "")

    def test_scheduler_and_search_know_nothing_of_them(self) -> None:
        trials = Trials()
        trials.play()
        search: Any = trials.engine.search
        known = {trial_id for _, trial_id in trials.recorder.heard} | {each[1] for each in search.heard}
        assert known == set(SCORES)

    def test_they_start_without_a_checkpoint(self) -> None:
        trials = Trials()
        trials.play(until=4)
        assert {trial.trial_id for trial in trials.engine.state.running_trials()} == {"t1r1", "t1r2"}
        assert all(trial.checkpoint is None for trial in trials.engine.state.running_trials())

    @pytest.mark.parametrize("seed", [1, 2**64 - 1, 2**100, -(2**64)])
    def test_the_seed_parameter_differs(self, seed: int) -> None:
        trials = Trials(RepeatRules(top=1, times=2, seed_parameter="x"), shift=seed - 1)
        trials.play()
        params = [params_decoder.decode(trials.trial(each).params) for each in ("t1", "t1r1", "t1r2")]
        assert params == [{"x": seed}, {"x": seed + 1}, {"x": seed + 2}]

    @pytest.mark.parametrize(
        ("name", "config", "seeded"),
        [
            ("model/seed", {"model": {"seed": 4, "lr": (0.1,)}}, {"model": {"seed": 5, "lr": (0.1,)}}),
            ("model/seed", {"model": {1: "a"}}, {"model": {1: "a", "seed": 1}}),
            ("a/b/seed", {"a": {"b": {"seed": 2**70}}}, {"a": {"b": {"seed": 2**70 + 1}}}),
            ("model/seed", {"model/seed": 4, "model": {"seed": 7}}, {"model/seed": 5, "model": {"seed": 7}}),
            ("model/seed", {"model": "small"}, {"model": "small", "model/seed": 1}),
            ("model/seed", {"x": 1}, {"x": 1, "model/seed": 1}),
        ],
    )
    def test_the_seed_parameter_may_be_nested(
        self, name: str, config: dict[str, Any], seeded: dict[str, Any]
    ) -> None:
        class Nested(ListSearch):
            def next_suggestion(self) -> Suggestion | None:
                found = super().next_suggestion()
                return None if found is None else Suggestion(found.trial_id, config, found.tag)

        trials = Trials(RepeatRules(top=1, times=1, seed_parameter=name), search=Nested(4))
        trials.play()
        assert params_decoder.decode(trials.trial("t1r1").params) == seeded

    def test_without_it_the_config_is_the_same(self) -> None:
        trials = Trials()
        trials.play()
        assert trials.trial("t1r1").config == trials.trial("t1").config
        assert [trials.trial(each).repeat for each in ("t1", "t1r1", "t1r2")] == [0, 1, 2]

    def test_failed_trials_take_no_place_among_the_best(self) -> None:
        trials = Trials(RepeatRules(top=1, times=2))
        trials.play(until=1)
        trials.results("t1", {"training_iteration": 1, "score": SCORES["t1"]})
        trials.end("t1", "failed", "boom")
        trials.play()
        assert trials.trial("t1").status == ERROR
        assert trials.ids == ["t0", "t1", "t2", "t3", "t2r1", "t2r2"]
        best, evaluation = winner(trials.engine.state)
        assert best is not None
        assert (best.trial_id, evaluation) == ("t2", (5.5, pytest.approx(0.7071, rel=1e-3), 2))

    def test_none_after_a_user_stopped_the_experiment(self) -> None:
        trials = Trials()
        trials.play(until=2)
        trials.stop()
        for trial in trials.engine.state.running_trials():
            trials.end(trial.trial_id, "stopped")
        assert trials.ids == ["t0", "t1", "t2", "t3"]

    def test_more_asked_for_later_are_added(self) -> None:
        trials = Trials(RepeatRules(top=1, times=1))
        trials.play()
        trials.edit(num_samples=4, repeats=RepeatRules(top=1, times=2), max_failures=1)
        trials.play()
        assert trials.ids[4:] in (["t1r1"], ["t1r1", "t1r2"])

    def test_a_repeat_of_a_stopped_trial_ends_where_that_did(self) -> None:
        scheduler = AsyncHyperBandScheduler(max_t=3)
        shell = Shell(1, scheduler=scheduler, repeats=RepeatRules(top=1, times=1))
        for trial_id in ("t0", "t0r1"):
            for iteration in (1, 2, 3):
                shell.results(trial_id, {"training_iteration": iteration, "score": 1.0})
            assert shell.trial(trial_id).current.decision == "stop"
            shell.end(trial_id, "stopped")
        assert shell.trial("t0r1").iteration == 3
        assert shell.outcome()[0] == "Succeeded"
        assert evaluations(shell.engine.state)["t0"].number == 1


class TestWinner:
    def test_is_the_one_with_the_best_mean(self) -> None:
        trials = Trials()
        trials.play()
        best, evaluation = winner(trials.engine.state)
        assert best is not None
        assert (best.trial_id, evaluation) == ("t2", (5.5, pytest.approx(0.7071, rel=1e-3), 2))

    def test_is_by_value_until_all_repeats_have_ended(self) -> None:
        trials = Trials()
        trials.play(until=6)
        best, evaluation = winner(trials.engine.state)
        assert best is not None
        assert (best.trial_id, evaluation) == ("t1", None)

    def test_failed_repeats_do_not_count(self) -> None:
        trials = Trials()
        trials.play(until=4)
        trials.end("t1r1", "failed", "boom")
        trials.play()
        assert trials.trial("t1r1").status == ERROR
        assert evaluations(trials.engine.state)["t1"] == (4.0, None, 1)

    def test_a_repeat_is_never_the_winner(self) -> None:
        trials = Trials(RepeatRules(top=1, times=1))
        trials.play()
        best, _ = winner(trials.engine.state)
        assert best is not None
        assert best.repeat_of == ""


def test_replayed_or_restored_at_any_event_it_continues_alike() -> None:
    trials = Trials()
    trials.play()
    replayed = Engine(ListSearch(4), Recorder())
    for number, (now, event, choices) in enumerate(trials.journal):
        replayed.apply(event, now, choices)
        restored = Engine(ListSearch(4), Recorder())
        restored.restore(replayed.snapshot())
        for later, following, _ in trials.journal[number + 1 :]:
            restored.apply(following, later)
        assert list(restored.state.trials) == trials.ids
        assert winner(restored.state)[1] == winner(trials.engine.state)[1]
    assert replayed.snapshot() == trials.engine.snapshot()


def test_a_budget_that_ends_among_repeats_ends_them() -> None:
    trials = Trials(max_trial_hours=0.01)
    for _ in range(8):
        for trial in trials.engine.state.running_trials():
            if trial.current.working_since is None:
                trials.apply(events.AttemptStarted(trial_id=trial.trial_id, attempt=trial.attempt, pid=1))
        trials.now += 5
        trials.play(until=1)
        trials.wait(0)
    for trial in trials.engine.state.running_trials():
        trials.end(trial.trial_id, "stopped")
    assert trials.outcome()[0] == "Stopped"
    assert len(trials.ids) > 4


def test_ids_are_read_as_they_are_written() -> None:
    assert source_of(repeat_id("a_00001", 12), {"a_00001"}) == "a_00001"
    assert source_of("a_00001r12", set()) is None
    assert source_of("a_00001", {"a_0000"}) is None
    assert msgspec.json.decode(msgspec.json.encode(RepeatRules(top=1, times=2)), type=RepeatRules).times == 2
