from __future__ import annotations

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.environment import Overrides


def test_an_empty_environment_overrides_nothing() -> None:
    assert Overrides.read({}) == Overrides()


def test_all_variables_are_read() -> None:
    environ = {
        "TRIALPOD_RUN_NAME": "mine",
        "TRIALPOD_STORAGE": "/data",
        "TRIALPOD_MAX_CONCURRENT": "3",
        "TRIALPOD_RESUME": "1",
    }
    assert Overrides.read(environ) == Overrides("mine", "/data", 3, True)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRIALPOD_MAX_CONCURRENT", "0"),
        ("TRIALPOD_MAX_CONCURRENT", "many"),
        ("TRIALPOD_RESUME", "maybe"),
        ("TRIALPOD_RUN_NAME", "a/b"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=variable):
        Overrides.read({variable: value})
