from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from trialpod import tune
from trialpod.compat.ray import numpy_rng
from trialpod.tune.search.spaces.numpy_draws import generator_of

Rng: Any = vars(numpy_rng)["_BackwardsCompatibleNumpyRng"]


class TestGeneratorOfRaysDomains:
    def test_names_of_the_new_generators_work_for_the_old_ones(self) -> None:
        old = Rng(np.random.RandomState(3))
        assert old.legacy_rng
        assert old.integers(0, 100) == np.random.RandomState(3).randint(0, 100)
        assert old.random() != old.random()

    def test_a_seed_makes_a_new_one(self) -> None:
        assert not Rng(3).legacy_rng
        assert Rng(3).uniform(0, 1) == np.random.default_rng(3).uniform(0, 1)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
    def test_can_be_copied(self, copied: Any) -> None:
        rng = Rng(3)
        assert copied(rng).uniform(0, 1) == rng.uniform(0, 1)

    @pytest.mark.parametrize("state", [3, np.random.RandomState(3)], ids=["seed", "old generator"])
    def test_is_a_random_state_of_domains(self, state: Any) -> None:
        first = tune.uniform(0, 1).sample(random_state=Rng(copy.deepcopy(state)))
        assert first == tune.uniform(0, 1).sample(random_state=copy.deepcopy(state))

    def test_of_the_global_one_follows_its_seed(self) -> None:
        np.random.seed(5)
        expected = tune.uniform(0, 1).sample(random_state=generator_of(None))
        np.random.seed(5)
        assert tune.uniform(0, 1).sample(random_state=Rng(None)) == expected
