"""Algorithms that a manifest names by entry points: in a decider, and in the user's own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import TrainableError
from trialpod.tune.stopper import FunctionStopper
from trialpod_operator.api.document import Document
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.validation import check_document
from trialpod_operator.decider.code import load_plan
from trialpod_operator.experiment.own_code import named_parts, pack_manifest
from trialpod_operator.experiment.plan import ExperimentPlan

OWN = """
from trialpod import tune
from trialpod.tune.search import Searcher


class Mine(tune.schedulers.FIFOScheduler):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit


class Climber(Searcher):
    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        return {"x": 1}


def ends(trial_id, result):
    return result["training_iteration"] >= 3


class Other:
    pass


class Strict(tune.schedulers.FIFOScheduler):
    def __init__(self, max_t=1):
        raise ValueError("max_t must be at least 5")


class Forgetful(Searcher):
    def set_search_properties(self, metric, mode, config, **spec):
        return config["lr"]
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_algorithms.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_algorithms", None)


def experiment(decider: dict[str, Any], **spec: Any) -> TuneExperiment:
    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits"},
        "spec": {
            "trainable": {"entrypoint": "train:train"},
            "searchSpace": {"x": {"uniform": [0, 1]}},
            "metric": "score",
            "mode": "max",
            "storage": {"uri": "s3://tune/runs"},
            **spec,
            "decider": decider,
        },
    }
    checked = check_document(Document(document))
    assert checked.experiment is not None, checked.problems
    return checked.experiment


def plan(decider: dict[str, Any], **spec: Any) -> ExperimentPlan:
    return load_plan(pack_manifest(experiment(decider, **spec)), 7, "digits")


class TestInADecider:
    def test_classes_decide_with_their_parameters(self) -> None:
        made = plan(
            {
                "searchAlgorithm": {"entrypoint": "own_algorithms:Climber"},
                "scheduler": {"entrypoint": "own_algorithms:Mine", "parameters": {"limit": 4}},
                "stoppers": [{"entrypoint": "own_algorithms:ends"}],
            },
            numSamples=2,
        )
        assert made.scheduler.limit == 4  # type: ignore[attr-defined]
        assert made.search.next_suggestion().config["x"] == 1  # type: ignore[union-attr]
        assert isinstance(made.stopper, FunctionStopper)

    def test_named_ones_stay_for_the_rest(self) -> None:
        made = plan(
            {"stoppers": [{"entrypoint": "own_algorithms:ends"}]},
            scheduler={"name": "asha", "parameters": {"max_t": 9}},
        )
        assert type(made.scheduler).__name__ in ("AsyncHyperBandScheduler", "ASHAScheduler")

    @pytest.mark.parametrize(
        ("own", "words"),
        [
            ({"entrypoint": "own_algorithms:Min"}, "did you mean 'Mine'?"),
            ({"entrypoint": "no_such_module:Mine"}, "no module 'no_such_module'"),
            ({"entrypoint": "own_algorithms:Other"}, "name a class that derives from"),
            ({"entrypoint": "own_algorithms:Mine", "parameters": {"limits": 4}}, "correct its parameters"),
        ],
    )
    def test_mistakes_are_named_with_their_field(self, own: dict[str, Any], words: str) -> None:
        with pytest.raises(TrainableError, match=r"^spec\.decider\.scheduler") as caught:
            plan({"scheduler": own})
        assert words in str(caught.value)

    def test_errors_of_a_constructor_name_field_and_place(self) -> None:
        own = {"scheduler": {"entrypoint": "own_algorithms:Strict", "parameters": {"max_t": 3}}}
        with pytest.raises(TrainableError) as caught:
            plan(own)
        assert str(caught.value) == (
            "spec.decider.scheduler: own_algorithms:Strict cannot be made with max_t: ValueError: max_t must be at "
            "least 5 (own_algorithms.py:30, in __init__); correct its parameters or its code"
        )

    def test_errors_of_a_search_that_is_prepared_name_it(self) -> None:
        with pytest.raises(TrainableError) as caught:
            plan({"searchAlgorithm": {"entrypoint": "own_algorithms:Forgetful"}})
        assert str(caught.value) == (
            "spec.decider.searchAlgorithm: own_algorithms:Forgetful cannot take the search space, the metric or the "
            "mode: KeyError: 'lr' (own_algorithms.py:35, in set_search_properties); correct its code"
        )

    def test_a_wrong_parameter_is_no_place_in_trialpod(self) -> None:
        with pytest.raises(TrainableError) as caught:
            plan({"stoppers": [{"entrypoint": "own_algorithms:Other", "parameters": {"limit": 4}}]})
        assert str(caught.value) == (
            "spec.decider.stoppers[0]: own_algorithms:Other cannot be made with limit: TypeError: Other() takes no "
            "arguments; correct its parameters or its code"
        )

    def test_another_class_is_another_decider(self) -> None:
        found = [experiment({"scheduler": {"entrypoint": f"own_algorithms:{name}"}}) for name in ("Mine", "Climber")]
        parts = [named_parts(each.spec.decider) for each in found]  # type: ignore[arg-type]
        assert parts[0] != parts[1]
