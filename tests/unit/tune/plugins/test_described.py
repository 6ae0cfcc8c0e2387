from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pytest

from trialpod.tune.arguments import UnknownArgumentError
from trialpod.tune.plugins.described import arguments_of
from trialpod.tune.schedulers import ASHAScheduler, FIFOScheduler, create_scheduler, scheduler_name
from trialpod.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher, searcher_name
from trialpod.tune.search.hyperopt_search import HyperOptSearch
from trialpod.tune.search.optuna import OptunaSearch
from trialpod.tune.stopper import CombinedStopper, MaximumIterationStopper, stopper_name


class Own(Searcher):
    def __init__(self, width: int, **more: Any) -> None:
        super().__init__()
        self.width = width


def test_arguments_are_known_by_name_however_they_were_given() -> None:
    assert arguments_of(ASHAScheduler("time_total_s", max_t=9)) == {"time_attr": "time_total_s", "max_t": 9}
    assert arguments_of(FIFOScheduler()) == {}
    assert arguments_of(Own(3, depth=2)) == {"width": 3, "depth": 2}


def test_copies_know_them_too() -> None:
    made = ASHAScheduler(max_t=9)
    assert arguments_of(copy.deepcopy(made)) == {"max_t": 9}
    assert arguments_of(pickle.loads(pickle.dumps(made))) == {"max_t": 9}
    assert "_made_with" not in vars(made)


class Depth:
    def __init__(self, depth: int) -> None:
        self.depth = depth


class Choosy(Own):
    """Chooses what its copies have."""

    def __getstate__(self) -> dict[str, Any]:
        return {"width": self.width}


def test_copies_of_a_class_that_chooses_their_state_do() -> None:
    made = Choosy(3, depth=Depth(2))
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(cloudpickle.dumps(made))):
        assert again.width == 3
        found = arguments_of(again)
        assert found is not None
        assert (found["width"], found["depth"].depth) == (3, 2)


def test_copies_of_searchers_of_libraries_do() -> None:
    optuna = pytest.importorskip("optuna")
    for made in (
        OptunaSearch(sampler=optuna.samplers.TPESampler(seed=1), metric="loss", mode="min"),
        OptunaSearch(storage=optuna.storages.InMemoryStorage(), study_name="kept"),
        HyperOptSearch(n_initial_points=3),
    ):
        arguments = arguments_of(made)
        assert arguments
        for again in (copy.deepcopy(made), pickle.loads(cloudpickle.dumps(made))):
            found = arguments_of(again)
            assert found is not None
            assert {name: type(value) for name, value in found.items()} == {
                name: type(value) for name, value in arguments.items()
            }


def test_what_no_manifest_can_say_is_not_known() -> None:
    assert arguments_of(CombinedStopper(MaximumIterationStopper(3))) is None
    assert arguments_of(object()) is None


def test_what_is_made_again_by_name_is_of_the_same_class() -> None:
    made = ASHAScheduler(max_t=9, grace_period=3)
    name = scheduler_name(made)
    assert name is not None
    again = create_scheduler(name, **(arguments_of(made) or {}))
    assert type(again) is type(made)
    assert arguments_of(again) == arguments_of(made)


def test_names_are_those_of_the_factories() -> None:
    assert searcher_name(BasicVariantGenerator()) in ("variant_generator", "random")
    assert stopper_name(MaximumIterationStopper(3)) == "maximum_iteration"
    assert searcher_name(Own(1)) is None
    assert searcher_name(ConcurrencyLimiter(Own(1), 2)) is None


def test_a_class_that_takes_no_arguments_still_refuses_them() -> None:
    with pytest.raises(TypeError):
        FIFOScheduler(1)  # type: ignore[call-arg]


def test_a_copy_may_have_an_argument_that_its_class_has_lost() -> None:
    """A pickle of an earlier version; only a call by the user is checked."""
    made = ASHAScheduler()
    made._made_with = ((), {"of_old": 1})
    assert copy.copy(made)._made_with == ((), {"of_old": 1})
    with pytest.raises(UnknownArgumentError):
        ASHAScheduler(of_old=1)  # type: ignore[call-arg]
