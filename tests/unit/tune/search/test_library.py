from __future__ import annotations

import random
import threading

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


def test_threads_draw_from_the_global_generators_in_turn() -> None:
    pytest.importorskip("numpy")
    random.seed(1)
    before = random.getstate()
    alone = {}
    for seed in (1, 2):
        with seeded(seed):
            alone[seed] = [random.random() for _ in range(3)]
    drawn: dict[int, list[float]] = {1: [], 2: []}
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first() -> None:
        with seeded(1):
            drawn[1].append(random.random())
            first_is_in.set()
            second_is_in.wait(0.2)  # to no effect: the second waits for this block
            drawn[1] += [random.random() for _ in range(2)]

    def second() -> None:
        first_is_in.wait(10)
        with seeded(2):
            drawn[2].append(random.random())
            second_is_in.set()
            threads[0].join(10)
            drawn[2] += [random.random() for _ in range(2)]

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert drawn == alone
    assert random.getstate() == before
