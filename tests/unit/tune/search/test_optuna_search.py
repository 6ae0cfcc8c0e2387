from __future__ import annotations

import json
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import OptunaSearch, create_searcher, prepare
from trialpod.tune.search.searcher import Searcher

optuna = pytest.importorskip("optuna", reason="OptunaSearch needs Optuna: pip install 'optuna>=5'")

SPACE = {"x": tune.uniform(-1, 1), "n": tune.randint(0, 4)}


def _search(space: dict[str, Any] | None = None, metric: str | None = "loss", **kw: Any) -> Any:
    space = SPACE if space is None else space
    return prepare(OptunaSearch(**kw), space=space, num_samples=-1, metric=metric, mode="min", seed=1)


def _states(search: Any) -> list[str]:
    return [trial.state.name for trial in search.searcher.study.trials]


class TestTpe(SearcherContract):
    def make(self) -> Searcher:
        return OptunaSearch()


class TestMultivariateTpe(SearcherContract):
    def make(self) -> Searcher:
        return OptunaSearch(sampler={"name": "tpe", "multivariate": True, "group": True})


class TestCmaEs(SearcherContract):
    trials_to_learn = 100
    trials_to_win = 100

    def make(self) -> Searcher:
        pytest.importorskip("cmaes", reason="needs cmaes")
        return OptunaSearch(sampler={"name": "cmaes", "n_startup_trials": 2})


class TestNsga2(SearcherContract):
    trials_to_learn = 100
    trials_to_win = 200

    def make(self) -> Searcher:
        return OptunaSearch(sampler={"name": "nsgaii", "population_size": 10, "crossover": "sbx"})


class TestQmc(SearcherContract):
    trials_to_learn = trials_to_win = 0  # it does not learn

    def make(self) -> Searcher:
        return OptunaSearch(sampler="qmc")


class TestSamplerObject(SearcherContract):
    def make(self) -> Searcher:
        return OptunaSearch(sampler=optuna.samplers.TPESampler(n_startup_trials=5))


class TestGaussianProcess(SearcherContract):
    steps = 6
    seeds = (0,)
    trials_to_learn = 16
    trials_to_win = 16

    def make(self) -> Searcher:
        pytest.importorskip("torch", reason="needs PyTorch")
        return OptunaSearch(sampler={"name": "gp", "n_startup_trials": 4})


class TestRandom(SearcherContract):
    trials_to_learn = trials_to_win = 0  # it does not learn

    def make(self) -> Searcher:
        return OptunaSearch(sampler="random")


@pytest.mark.parametrize("define_by_run", [False, True])
def test_running_trials_of_conditional_spaces_survive_restarts(define_by_run: bool) -> None:
    """TPE keeps away from them; of theirs it knows the parameters of the option that was chosen."""
    nets = {"kind": "net", "lr": tune.loguniform(1e-4, 1), "drop": tune.uniform(0, 1)}
    static = {"model": tune.choice([{"kind": "tree", "depth": tune.randint(1, 9)}, nets]), "x": tune.uniform(0, 1)}

    def function(trial: Any) -> None:
        if trial.suggest_categorical("kind", ["tree", "net"]) == "tree":
            trial.suggest_int("depth", 1, 9)
        else:
            trial.suggest_float("lr", 1e-4, 1, log=True)
        trial.suggest_float("x", 0, 1)

    def made() -> Any:
        sampler = {"name": "tpe", "multivariate": True, "group": True, "n_startup_trials": 4}
        searcher = OptunaSearch(function if define_by_run else None, sampler=sampler)
        space = {} if define_by_run else static
        return prepare(searcher, space=space, num_samples=-1, metric="loss", mode="min", seed=1)

    search, replayed, restored = made(), made(), made()
    for number in range(16):
        suggestion = search.next_suggestion()
        replayed.adopt(suggestion)
        for each in (search, replayed) if number % 3 else ():
            each.on_trial_complete(suggestion.trial_id, {"loss": suggestion.config["x"], "training_iteration": 1})
    restored.set_state(json.loads(json.dumps(search.get_state())))
    later = [[each.next_suggestion() for _ in range(4)] for each in (search, replayed, restored)]
    assert later[0] == later[1] == later[2]


def test_the_study_knows_what_became_of_each_trial() -> None:
    search = _search()
    trials = [search.next_suggestion() for _ in range(6)]
    ids = [trial.trial_id for trial in trials]
    search.on_trial_complete(ids[0], {"loss": 1.0, "training_iteration": 9})
    search.on_trial_result(ids[1], {"loss": 3.0, "training_iteration": 2})
    search.on_trial_stopped(ids[1], {"loss": 2.0, "training_iteration": 3})
    search.on_trial_complete(ids[2], None, error=True)
    search.on_trial_complete(ids[3], {"loss": float("nan")})
    search.on_trial_result(ids[4], {"loss": 4.0, "training_iteration": 1})
    search.on_pause(ids[4])
    assert _states(search) == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "PRUNED", "RUNNING"]
    assert search.searcher.study.trials[1].intermediate_values == {3: 2.0}
    assert search.searcher.study.trials[1].value == 2.0
    search.on_unpause(ids[4])
    assert _states(search)[4] == "RUNNING"
    assert search.searcher.study.trials[4].value is None


def test_a_paused_trial_that_never_continues_is_pruned() -> None:
    search = _search()
    trial = search.next_suggestion()
    search.on_trial_result(trial.trial_id, {"loss": 4.0, "training_iteration": 1})
    search.on_pause(trial.trial_id)
    search.on_trial_stopped(trial.trial_id, None)
    assert _states(search) == ["PRUNED"]
    assert search.searcher.study.trials[0].intermediate_values == {1: 4.0}


def test_a_failed_trial_that_is_retried_may_complete() -> None:
    search = _search()
    trial = search.next_suggestion()
    search.on_trial_complete(trial.trial_id, None, error=True)
    search.on_trial_complete(trial.trial_id, {"loss": 1.0})
    assert _states(search) == ["COMPLETE"]
    assert search.searcher.study.best_value == 1.0


def test_parameters_are_shown_as_written() -> None:
    space = {"units": tune.qrandint(16, 64, 16), "kind": tune.choice(["a", "b"]), "shape": tune.choice([[1], [2]])}
    search = _search(space)
    config = search.next_suggestion().config
    shown = search.searcher.study.trials[0].params
    assert shown["units"] == config["units"]
    assert shown["kind"] == config["kind"]
    assert config["shape"] == [shown["shape"] + 1]


def test_an_option_of_a_choice_may_have_parameters_of_its_own() -> None:
    space = {
        "model": tune.choice(
            [{"kind": "tree", "depth": tune.randint(1, 9)}, {"kind": "net", "lr": tune.uniform(0, 1)}]
        )
    }
    search = _search(space)
    kinds = set()
    for _ in range(20):
        suggestion = search.next_suggestion()
        model = suggestion.config["model"]
        kinds.add(model["kind"])
        assert set(model) == ({"kind", "depth"} if model["kind"] == "tree" else {"kind", "lr"})
        search.on_trial_complete(suggestion.trial_id, {"loss": 1.0})
    assert kinds == {"tree", "net"}
    assert set(search.searcher.study.trials[0].params) in ({"model", "model[0]/depth"}, {"model", "model[1]/lr"})


def _define(trial: Any) -> dict[str, Any]:
    x = trial.suggest_float("x", -1, 1)
    if x > 0:
        trial.suggest_categorical("kind", ["a", "b"])
    return {"fixed": 7}


class TestDefineByRun(SearcherContract):
    trials_to_learn = trials_to_win = 0  # the function brings its own space

    def make(self) -> Searcher:
        return OptunaSearch(space=_define, sampler="tpe")

    @property
    def space(self) -> dict[str, Any]:
        return {}

    def loss(self, config: dict[str, Any]) -> float:
        return float(config["x"] ** 2)

    def test_suggestions_are_in_the_space_and_complete(self) -> None:
        for suggestion in self._run(0).suggestions:
            config = suggestion.config
            assert config["fixed"] == 7
            assert ("kind" in config) == (config["x"] > 0)


def test_several_objectives() -> None:
    search = prepare(
        OptunaSearch(metric=["loss", "size"], mode=["min", "max"], sampler="nsgaii"),
        space=SPACE, num_samples=-1, seed=1,
    )  # fmt: skip
    for number in range(3):
        trial = search.next_suggestion()
        assert trial is not None
        search.on_trial_complete(trial.trial_id, {"loss": float(number), "size": 1.0})
    trial = search.next_suggestion()
    assert trial is not None
    search.on_trial_complete(trial.trial_id, {"loss": 1.0})
    study = search.searcher.study  # type: ignore[attr-defined]
    assert [t.number for t in study.best_trials] == [0]
    assert study.trials[3].state.name == "FAIL"


def test_constraints_are_metrics_that_are_met_up_to_zero() -> None:
    search = _search(constraints=["too_slow"])
    for slow in (1.0, -1.0):
        trial = search.next_suggestion()
        search.on_trial_complete(trial.trial_id, {"loss": slow, "too_slow": slow})
    trial = search.next_suggestion()
    search.on_trial_complete(trial.trial_id, {"loss": 0.0})
    study = search.searcher.study
    assert study.trials[0].constraints == {"too_slow": 1.0}
    assert study.best_trial.number == 1
    assert _states(search)[2] == "FAIL"


def test_a_grid_is_gone_through_once() -> None:
    search = _search({"n": tune.randint(0, 3), "k": tune.choice(["a", "b"])}, sampler="grid")
    seen = []
    while (suggestion := search.next_suggestion()) is not None:
        seen.append(json.dumps(suggestion.config, sort_keys=True))
        search.on_trial_complete(suggestion.trial_id, {"loss": 1.0})
    assert search.finished
    assert len(set(seen)) == 6


@pytest.mark.parametrize(
    ("sampler", "space"),
    [
        ("grid", {name: tune.randint(0, 100) for name in "abcdef"}),
        ("grid", {"a": tune.randint(0, 10**9)}),
        ("bruteforce", {"a": tune.randint(0, 10**9)}),
    ],
)
def test_too_many_points_are_refused_at_once(sampler: str, space: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"at most 100000 points.*tpe, qmc or random"):
        _search(space, sampler=sampler)


def test_points_come_first_and_known_ones_are_not_tried() -> None:
    points = [{"x": 0.5, "n": 1}, {"x": -0.5}]
    search = _search(points_to_evaluate=points)
    configs = [search.next_suggestion().config for _ in range(2)]
    assert configs[0] == {"x": 0.5, "n": 1}
    assert configs[1]["x"] == -0.5
    known = _search(points_to_evaluate=[{"x": 0.5, "n": 1}], evaluated_rewards=[0.1])
    assert known.next_suggestion().config["x"] != 0.5
    assert known.searcher.study.best_value == 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": "tpee"}, "Did you mean 'tpe'"),
        ({"sampler": {"name": "tpe", "multivariat": True}}, "Did you mean 'multivariate'"),
        ({"sampler": {"name": "tpe", "n_ei_candidates": 10**9}}, "n_ei_candidates .* from 1 to 100000"),
        ({"sampler": {"name": "tpe", "n_ei_candidates": 0}}, "a whole number from 1 to 100000, got 0"),
        ({"sampler": {"name": "tpe", "n_startup_trials": "5"}}, "a whole number of at least 0, got '5'"),
        ({"sampler": {"name": "nsgaii", "population_size": 2.5}}, "a whole number of at least 2, got 2.5"),
        ({"sampler": {"name": "cmaes", "popsize": 1}}, "a whole number from 2"),
        ({"sampler": {"name": "tpe", "prior_weight": -1}}, "a number of at least 0, got -1"),
        ({"sampler": {"name": "nsgaii", "crossover_prob": "x"}}, "a number from 0 to 1, got 'x'"),
        ({"sampler": {"name": "tpe", "multivariate": "no"}}, "true or false, got 'no'"),
        ({"sampler": {"name": "tpe", "group": None}}, "true or false, got None"),
        ({"sampler": {"name": "tpe", "gamma": 0.25}}, "gamma .* must be a function, which only a script"),
        ({"sampler": {"name": "tpe", "weights": [1]}}, "weights .* must be a function, which only a script"),
        ({"sampler": {"name": "qmc", "independent_sampler": "random"}}, "an object of Optuna, which only a script"),
        ({"sampler": {"name": "tpe", "seeds": 1}}, "warn_independent_sampling; in a script also gamma, weights"),
        ({"sampler": 3}, "sampler 3 is unknown|must be a name"),
        ({"constraints": "a"}, "list of names"),
        ({"model_trials": 249}, "model_trials must be 250 or more, or None"),
        ({"mode": "up"}, "'min' or 'max'"),
        ({"metric": ["a"], "mode": "min"}, "must be a list"),
        ({"points_to_evaluate": {"x": 1}}, "list of dicts"),
        ({"points_to_evaluate": [{}], "evaluated_rewards": [1, 2]}, "one value for each"),
        ({"seed": "one"}, "whole number"),
        ({"space": 3}, "dict of parameters"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        OptunaSearch(**arguments)


@pytest.mark.parametrize(
    "sampler",
    [
        {"name": "tpe", "gamma": lambda n: min(n // 4, 25), "weights": None, "n_startup_trials": 0},
        {"name": "tpe", "multivariate": None, "prior_weight": 0.5, "constant_liar": False},
        {"name": "nsgaii", "population_size": 2, "mutation_prob": None, "crossover_prob": 1},
        {"name": "qmc", "independent_sampler": optuna.samplers.RandomSampler()},
    ],
)
def test_arguments_of_samplers_are_passed_on(sampler: dict[str, Any]) -> None:
    search = _search(sampler=sampler)
    for _ in range(12):
        search.on_trial_complete(search.next_suggestion().trial_id, {"loss": 1.0})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"x": tune.grid_search([1, 2])}, "use choice there"),
        ({"x": tune.randn(0, 2)}, r"uniform\(-6, 6\)"),
        ({"x": 1}, "nothing to search"),
    ],
)
def test_unsearchable_spaces_are_refused(space: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        _search(space)


def test_a_point_outside_of_the_space_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"points_to_evaluate\[0\] sets x: 7"):
        _search(points_to_evaluate=[{"x": 7}])
    with pytest.raises(InvalidInputError, match="Did you mean width"):
        _search({"width": tune.uniform(0, 1)}, points_to_evaluate=[{"widht": 1}])


def test_without_a_metric_it_says_where_to_set_it() -> None:
    with pytest.raises(InvalidInputError, match=r"spec\.metric"):
        _search(metric=None)


def test_nothing_of_optunas_log_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    search = _search()
    trial = search.next_suggestion()
    search.on_trial_complete(trial.trial_id, {"loss": float("nan")})
    assert capsys.readouterr() == ("", "")


def test_errors_name_the_nearest_name() -> None:
    with pytest.raises(InvalidInputError, match="Did you mean 'optuna'"):
        create_searcher("optune")
    with pytest.raises(InvalidInputError, match="Did you mean 'sampler'"):
        create_searcher("optuna", samplr="tpe")


def test_metrics_of_the_experiment_are_its_objectives() -> None:
    from trialpod.tune.plugins.objectives import Objective

    searcher = OptunaSearch()
    objectives = [Objective("loss", "min", 0.5), Objective("speed", "max")]
    search = prepare(searcher, space={"x": tune.uniform(0, 1)}, num_samples=4, objectives=objectives, seed=1)
    for loss in (0.2, 0.7):
        suggestion = search.next_suggestion()
        assert suggestion is not None
        search.on_trial_complete(suggestion.trial_id, {"loss": loss, "speed": 1.0})
    assert [direction.name for direction in searcher.study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert [trial.values for trial in searcher.study.trials] == [[0.2, 1.0], [0.7, 1.0]]
    assert [trial.number for trial in searcher.study.best_trials] == [0]
    met = [list(trial.system_attrs.values()) for trial in searcher.study.trials]
    assert [values[0] <= 0 for values in met] == [True, False]
