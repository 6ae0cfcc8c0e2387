"""Search algorithms and PBT with values of any type among their choices."""

from __future__ import annotations

import enum
import random
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from trialpod import tune
from trialpod.protocol.values import opaque_decoder, open_leniently, params_encoder, same_value
from trialpod.tune.schedulers.pbt_mutations import compiled_mutations, explore
from trialpod.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater
from trialpod.tune.search.hyperopt_search import HyperOptSearch
from trialpod.tune.search.optuna.optuna_search import OptunaSearch
from trialpod.tune.search.search_generator import SearchGenerator
from trialpod_operator.engine.algorithms import adopt
from trialpod_operator.engine.choices import Created


class Act(enum.Enum):
    RELU = "relu"
    TANH = "tanh"


class Point(NamedTuple):
    x: Any


class Plain:
    """An object that is equal to nothing but itself."""

    def __init__(self, depth: int) -> None:
        self.depth = depth


OPTIONS = [np.ones(3), np.zeros((2, 2)), (64, 64), Path("/a"), Act.RELU, Point(1), {1, 2}, Plain(3), np.float32(0.5)]


@pytest.mark.parametrize("make", [OptunaSearch, HyperOptSearch])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: ConcurrencyLimiter(s, 9), lambda s: Repeater(s, 1)])
def test_suggestions_have_the_options_and_are_adopted_again(make: Any, wrap: Any) -> None:
    space = {"option": tune.choice(OPTIONS), "lr": tune.uniform(0, 1)}

    def generator() -> SearchGenerator:
        made = SearchGenerator(wrap(make(points_to_evaluate=[{"option": OPTIONS[1], "lr": 0.5}])))
        made.configure(space, 20, metric="loss", mode="min", seed=3)
        return made

    search, again = generator(), generator()
    for number in range(12):
        suggestion = search.next_suggestion()
        assert suggestion is not None
        option = suggestion.config["option"]
        assert any(same_value(option, known) for known in OPTIONS)
        assert number or option is OPTIONS[1]
        created = Created(suggestion.trial_id, suggestion.tag, params_encoder.encode(suggestion.config))
        adopt(again, created, opens_values=True)
        result = {"loss": np.float32(number), "training_iteration": 1, "pair": (1, 2)}
        for each in (search, again):
            each.on_trial_complete(suggestion.trial_id, result)
    following, repeated = search.next_suggestion(), again.next_suggestion()
    assert following is not None
    assert repeated is not None
    assert repeated.config["lr"] == following.config["lr"]
    assert same_value(repeated.config["option"], following.config["option"])


def test_groups_of_any_kind_of_dict_and_list_stay_that_kind() -> None:
    space = {
        "ordered": OrderedDict(b=tune.uniform(0, 1), a=1),
        "default": defaultdict(list, a=[tune.choice([1])]),
        "point": Point(tune.choice([(1, 2)])),
        "grid": tune.grid_search([OrderedDict(c=(1,))]),
    }
    search = BasicVariantGenerator(random_state=1)
    search.configure(space, 1)
    suggestion = search.next_suggestion()
    assert suggestion is not None
    config = open_leniently(params_encoder.encode(suggestion.config))
    assert [type(config[name]) for name in space] == [OrderedDict, defaultdict, Point, OrderedDict]
    assert config["default"]["a"] == [1]
    assert config["default"]["missing"] == []
    assert config["point"] == Point((1, 2))


@pytest.mark.parametrize("decode", [open_leniently, opaque_decoder.decode])
def test_pbt_explores_typed_values_also_closed(decode: Any) -> None:
    mutations = compiled_mutations({"option": OPTIONS, "lr": tune.uniform(0, 1)})
    config = decode(params_encoder.encode({"option": OPTIONS[1], "lr": np.float32(0.5), "kept": (1, Act.TANH)}))
    if decode is not open_leniently:
        mutations["option"] = tune.choice([decode(params_encoder.encode(option)) for option in OPTIONS])
    found, operations = explore(config, mutations, 0.0, [1.2, 0.8], random.Random(1))
    assert operations["option"].startswith("shift")
    assert operations["lr"] in ("* 1.2", "* 0.8")
    opened = open_leniently(params_encoder.encode(found))
    assert any(same_value(opened["option"], known) for known in (OPTIONS[0], OPTIONS[2]))
    assert opened["kept"] == (1, Act.TANH)
