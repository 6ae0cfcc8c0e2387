from __future__ import annotations

import random

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.search.library import require, require_all, seeded


def test_missing_library_names_the_install_command() -> None:
    with pytest.raises(InvalidInputError, match=r"OptunaSearch needs optuna>=5.*pip install 'optuna>=5'"):
        require("no_such_library_at_all", "optuna>=5", "OptunaSearch")


def test_one_message_names_all_missing_libraries() -> None:
    libraries = [("random", "random"), ("no_such_library.a", "first>=1"), ("nor_this_one", "second")]
    with pytest.raises(InvalidInputError, match=r"needs first>=1 and second, .*: pip install 'first>=1' 'second'$"):
        require_all(libraries, "TuneBOHB")


def test_global_generators_are_put_back() -> None:
    np = pytest.importorskip("numpy")
    random.seed(1)
    np.random.seed(1)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    with seeded(7):
        first = (random.random(), np.random.random())
    with seeded(7):
        assert (random.random(), np.random.random()) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
