"""The trials of random and grid search are Ray Tune's, one by one, where NumPy's generators make the draws.

The data was made by tools/compare_with_ray/variants.py from Ray 2.60.0: for each space the configs and tags of the
trials with a seed, with a RandomState, and after ``numpy.random.seed``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from ray_spaces import CONSTANT, POINTS, spaces

from trialpod import tune
from trialpod.tune.search import BasicVariantGenerator
from trialpod.tune.search.variant_generator import format_vars, generate_variants

DATA = json.loads((Path(__file__).parents[3] / "data" / "ray_variants.json").read_text())
NAMES = sorted(DATA["cases"])


def made(search: BasicVariantGenerator, name: str, samples: int = 3) -> list[list[Any]]:
    search.configure(spaces(tune)[name], samples)
    return drawn(search)


def drawn(search: BasicVariantGenerator, count: int = 1000) -> list[list[Any]]:
    found = []
    while len(found) < count and (suggestion := search.next_suggestion()) is not None:
        found.append([suggestion.config, suggestion.tag])
    return json.loads(json.dumps(found))  # tuples are lists in the data, too


class TestDraws:
    @pytest.mark.parametrize("name", NAMES)
    def test_seed(self, name: str) -> None:
        assert made(BasicVariantGenerator(random_state=7), name) == DATA["cases"][name]["seed"]

    @pytest.mark.parametrize("name", NAMES)
    def test_random_state(self, name: str) -> None:
        search = BasicVariantGenerator(random_state=np.random.RandomState(7))
        assert made(search, name) == DATA["cases"][name]["RandomState"]

    @pytest.mark.parametrize("name", NAMES)
    def test_global_generator(self, name: str) -> None:
        before = np.random.get_state()
        try:
            np.random.seed(7)
            assert made(BasicVariantGenerator(), name) == DATA["cases"][name]["global"]
        finally:
            np.random.set_state(before)

    @pytest.mark.parametrize("name", sorted(POINTS))
    def test_points_to_evaluate(self, name: str) -> None:
        search = BasicVariantGenerator(random_state=7, points_to_evaluate=POINTS[name])
        assert made(search, name) == DATA["cases"][name]["points"]

    @pytest.mark.parametrize("name", CONSTANT)
    def test_constant_grid_search(self, name: str) -> None:
        search = BasicVariantGenerator(random_state=7, constant_grid_search=True)
        assert made(search, name) == DATA["cases"][name]["constant"]

    @pytest.mark.parametrize("name", sorted(DATA["single"]))
    def test_domain_sample(self, name: str) -> None:
        space, key = name.split("/")
        domain = spaces(tune)[space][key]
        several, one = DATA["single"][name]
        assert (
            json.loads(json.dumps(np.asarray(domain.sample(size=5, random_state=3), dtype=object).tolist()))
            == several
        )
        assert json.loads(json.dumps(domain.sample(random_state=4))) == one

    @pytest.mark.parametrize("name", NAMES)
    def test_generate_variants(self, name: str) -> None:
        found = list(generate_variants(spaces(tune)[name], random_state=np.random.default_rng(7)))
        known = DATA["cases"][name]["seed"][: len(found)]
        configs = json.loads(json.dumps([config for _, config in found]))
        assert configs == [config for config, _ in known]
        assert [format_vars(resolved) for resolved, _ in found] == [tag.partition("_")[2] for _, tag in known]

    def test_a_seed_begins_every_draw(self) -> None:
        """As of Ray 2.60; a generator gives each variable values of its own."""
        space = {"g": tune.grid_search([1, 2]), "a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}
        space |= {"c": tune.randint(0, 100), "d": tune.choice([1, 2, 3])}
        drawn = {"a": 0.08564916714362436, "b": 0.08564916714362436, "c": 81, "d": 3}
        found = [config for _, config in generate_variants(space, random_state=3)]
        assert found == [{"g": 1, **drawn}, {"g": 2, **drawn}]


class TestResume:
    @pytest.mark.parametrize("name", ["floats", "grid_in_grid", "grid_in_choice", "integers"])
    @pytest.mark.parametrize("taken", [0, 1, 4])
    def test_state_continues(self, name: str, taken: int) -> None:
        """Through the engine's encoding, which has no numbers beyond 64 bits."""
        for random_state in (7, np.random.RandomState(7)):
            search = BasicVariantGenerator(random_state=random_state)
            search.configure(spaces(tune)[name], 3)
            first = drawn(search, taken)
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(search.get_state()))
            other = BasicVariantGenerator(random_state=1)
            other.configure(spaces(tune)[name], 3)
            other.set_state(state)
            kind = "seed" if random_state == 7 else "RandomState"
            assert first + drawn(other) == DATA["cases"][name][kind]
            assert other.finished

    def test_more_samples(self) -> None:
        search = BasicVariantGenerator(random_state=7)
        search.configure(spaces(tune)["floats"], 1)
        first = drawn(search)
        assert search.finished
        search.set_num_samples(3)
        assert first + drawn(search) == DATA["cases"]["floats"]["seed"]

    def test_state_of_independent_draws(self) -> None:
        """A state of a version that drew every trial by itself is continued as it began."""
        old = BasicVariantGenerator(seed=7)
        old.configure(spaces(tune)["floats"], 4)
        first = drawn(old, 2)
        new = BasicVariantGenerator(random_state=7)
        new.configure(spaces(tune)["floats"], 4)
        new.set_state(old.get_state())
        assert drawn(new) == drawn(old)
        assert len(first) == 2


class TestWithoutNumPy:
    def test_grid_in_choice(self) -> None:
        """A drawn value may contain a grid whatever the generator is."""
        search = BasicVariantGenerator(seed=1)
        search.configure(spaces(tune)["grid_in_choice"], 20)
        trials = drawn(search)
        assert 20 < len(trials) < 40
        assert {config["a"]["x"] for config, _ in trials} == {1, 2, 9}
        assert search.total == len(trials)
