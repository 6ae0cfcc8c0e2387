"""Search spaces in the terms of the libraries, as Ray's documentation shows them."""

from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod import tune
from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.search.spaces.library_spaces import read_library_space
from trialpod.tune.search.spaces.variants import same_space

BOUNDS = {"x": (0, 20), "y": (-1.5, 1.5)}


def assert_read(user: str, given: Any, expected: dict[str, Any]) -> None:
    found = read_library_space(user, given)
    assert same_space(found, expected), found


class TestBayesOpt:
    def test_bounds(self) -> None:
        assert_read("BayesOptSearch", BOUNDS, {"x": tune.uniform(0, 20), "y": tune.uniform(-1.5, 1.5)})

    @pytest.mark.parametrize("space", [None, {}, {"x": tune.uniform(0, 1), "y": (0, 1)}, {"x": (1, 2, 3)}])
    def test_what_is_none_of_its_own_stays(self, space: Any) -> None:
        assert read_library_space("BayesOptSearch", space) is space
        assert read_library_space("OptunaSearch", BOUNDS) is BOUNDS

    @pytest.mark.xdist_group("bayes_opt")
    def test_a_search(self) -> None:
        pytest.importorskip("bayes_opt")
        from trialpod.tune.search import BayesOptSearch

        search = BayesOptSearch(BOUNDS, "loss", "min", [{"x": 1, "y": 1}], verbose=0, random_search_steps=2)
        assert search.suggest("a") == {"x": 1.0, "y": 1.0}
        assert sorted(search.suggest("b") or {}) == ["x", "y"]

    @pytest.mark.xdist_group("bayes_opt")
    def test_analysis_is_learned_from(self) -> None:
        pytest.importorskip("bayes_opt")
        from trialpod.tune.search import BayesOptSearch

        result, config = {"loss": 3.0}, {"x": 1, "y": 1}
        trial = TrialOutcome(
            trial_id="a", name="train_a", config=config, status="TERMINATED", path="", last_result=result
        )
        outcome = ExperimentOutcome(name="e", path="", state="Succeeded", trials=[trial], metric="loss", mode="min")
        search = BayesOptSearch(BOUNDS, "loss", "min", analysis=tune.ExperimentAnalysis(outcome))
        search.suggest("a")
        assert search.get_state()["log"][0] == ["add", {"x": 1.0, "y": 1.0}, "complete", [3.0], 0]


class TestZOOpt:
    def test_dimensions(self) -> None:
        given = {"x": (1, [-10, 10], 0.5), "y": (0, [0, 10], False), "z": (2, [1, 2, 4]), "w": (1, [0, 1], 0.3)}
        expected = {
            "x": tune.quniform(-10, 10, 0.5),
            "y": tune.randint(0, 11),
            "z": tune.choice([1, 2, 4]),
            "w": tune.uniform(0, 1),
        }
        assert_read("ZOOptSearch", given, expected)

    @pytest.mark.xdist_group("zoopt")
    def test_a_search(self) -> None:
        zoopt = pytest.importorskip("zoopt")
        from trialpod.tune.search import ZOOptSearch

        kinds = zoopt.ValueType
        space = {"x": (kinds.CONTINUOUS, [0, 1], 0.01), "y": (kinds.DISCRETE, [3, 4], True)}
        search = ZOOptSearch(algo="Asracos", budget=None, dim_dict=space, metric="loss", mode="min")
        config = search.suggest("a")
        assert isinstance(config, dict)
        assert 0 <= config["x"] <= 1
        assert config["y"] in (3, 4)
        with pytest.raises(InvalidInputError, match="mean the same"):
            ZOOptSearch(space=space, dim_dict=space)


class TestAx:
    def test_list_of_parameters(self) -> None:
        given = [
            {"name": "x", "type": "range", "bounds": [0.0, 1.0]},
            {"name": "n", "type": "range", "bounds": [1, 8], "value_type": "int"},
            {"name": "lr", "type": "range", "bounds": [1e-4, 1e-1], "log_scale": True},
            {"name": "act", "type": "choice", "values": ["relu", "tanh"]},
            {"name": "k", "type": "fixed", "value": 3},
        ]
        expected = {
            "x": tune.uniform(0, 1),
            "n": tune.randint(1, 9),
            "lr": tune.loguniform(1e-4, 1e-1),
            "act": tune.choice(["relu", "tanh"]),
            "k": 3,
        }
        assert_read("AxSearch", given, expected)
        with pytest.raises(InvalidInputError, match="'x' of the search space is"):
            read_library_space("AxSearch", [{"name": "x", "type": "ranje"}])

    @pytest.mark.parametrize("arguments", [{"outcome_constraints": ["l2norm <= 1.25"]}, {"ax_client": object()}])
    def test_unsupported_arguments(self, arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from trialpod.tune.search import AxSearch

        monkeypatch.setattr(AxSearch, "LIBRARY", ())
        AxSearch(outcome_constraints=[])
        with pytest.raises(NotSupportedError, match="not supported"):
            AxSearch(**arguments)


class TestHEBO:
    def test_design_space(self) -> None:
        made = type("DesignSpace", (), {"__module__": "hebo.design_space.design_space"})()
        made.para_config = [
            {"name": "x", "type": "num", "lb": 0, "ub": 20},
            {"name": "n", "type": "int", "lb": 1, "ub": 3},
            {"name": "lr", "type": "pow", "lb": 1e-4, "ub": 1e-1},
            {"name": "act", "type": "cat", "categories": ["a", "b"]},
            {"name": "on", "type": "bool"},
        ]
        expected = {
            "x": tune.uniform(0, 20),
            "n": tune.randint(1, 4),
            "lr": tune.loguniform(1e-4, 1e-1),
            "act": tune.choice(["a", "b"]),
            "on": tune.choice([False, True]),
        }
        assert_read("HEBOSearch", made, expected)
        made.para_config = [{"name": "x", "type": "step_int"}]
        with pytest.raises(InvalidInputError, match="'x' of the search space is of the type 'step_int'"):
            read_library_space("HEBOSearch", made)


@pytest.mark.xdist_group("ConfigSpace")
class TestBOHB:
    def test_configuration_space(self) -> None:
        parts = pytest.importorskip("ConfigSpace")
        space = parts.ConfigurationSpace()
        space.add(parts.UniformFloatHyperparameter("x", lower=0, upper=20))
        space.add(parts.UniformFloatHyperparameter("lr", lower=1e-4, upper=1e-1, log=True))
        space.add(parts.UniformIntegerHyperparameter("n", lower=1, upper=8))
        space.add(parts.CategoricalHyperparameter("act", choices=["relu", "tanh"]))
        space.add(parts.OrdinalHyperparameter("o", sequence=[1, 2, 4]))
        space.add(parts.Constant("k", 3))
        expected = {
            "x": tune.uniform(0, 20),
            "lr": tune.loguniform(1e-4, 1e-1),
            "n": tune.randint(1, 9),
            "act": tune.choice(["relu", "tanh"]),
            "o": tune.choice([1, 2, 4]),
            "k": 3,
        }
        assert_read("TuneBOHB", space, expected)

    def test_what_has_no_counterpart_is_refused(self) -> None:
        parts = pytest.importorskip("ConfigSpace")
        space = parts.ConfigurationSpace()
        space.add(parts.CategoricalHyperparameter("act", choices=["relu", "tanh"], weights=[1, 2]))
        with pytest.raises(InvalidInputError, match="a choice with weights"):
            read_library_space("TuneBOHB", space)
        space = parts.ConfigurationSpace()
        kind, depth = parts.Categorical("kind", ["a", "b"]), parts.Integer("depth", (1, 3))
        space.add(kind, depth, parts.EqualsCondition(depth, kind, "a"))
        with pytest.raises(InvalidInputError, match="has conditions or forbidden clauses"):
            read_library_space("TuneBOHB", space)


class TestNevergrad:
    pytestmark = needing("nevergrad", "pip install nevergrad")

    def test_parameters(self) -> None:
        from trialpod.tune.search.nevergrad_library import nevergrad_library

        p = nevergrad_library().p
        parameters = {
            "x": p.Scalar(lower=0, upper=20),
            "n": p.Scalar(lower=1, upper=8).set_integer_casting(),
            "lr": p.Log(lower=1e-4, upper=1e-1),
            "act": p.Choice(["relu", "tanh"]),
        }
        expected = {
            "x": tune.uniform(0, 20),
            "n": tune.randint(1, 9),
            "lr": tune.loguniform(1e-4, 1e-1),
            "act": tune.choice(["relu", "tanh"]),
            "k": 3,
        }
        assert_read("NevergradSearch", p.Dict(**parameters, k=3), expected)
        assert_read("NevergradSearch", {**parameters, "k": 3}, expected)
        with pytest.raises(InvalidInputError, match="a Scalar without bounds"):
            read_library_space("NevergradSearch", p.Dict(x=p.Scalar()))

    def test_optimizer_may_be_a_class(self) -> None:
        from trialpod.tune.search import NevergradSearch
        from trialpod.tune.search.nevergrad_library import nevergrad_library

        ng = nevergrad_library()
        space = ng.p.Dict(x=ng.p.Scalar(lower=0, upper=20))
        for optimizer in (ng.optimizers.OnePlusOne, ng.optimizers.NGOpt, None):
            search = NevergradSearch(optimizer, space=space, metric="loss", mode="min")
            assert 0 <= (search.suggest("a") or {})["x"] <= 20
        with pytest.raises(InvalidInputError, match="is made for a space of its own"):
            NevergradSearch(ng.optimizers.OnePlusOne(parametrization=space, budget=9))
