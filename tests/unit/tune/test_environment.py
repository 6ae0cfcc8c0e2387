from __future__ import annotations

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.callback import Callback
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


class Told(Callback):
    pass


class Needy(Callback):
    def __init__(self, needed: str) -> None:
        self.needed = needed


def test_classes_of_callbacks_are_named_by_either_variable() -> None:
    path = f"{__name__}.Told"
    overrides = Overrides.read({"RAY_TUNE_CALLBACKS": f" {path}, ", "TRIALPOD_CALLBACKS": path})
    assert overrides.callbacks == (path,)
    (made,) = overrides.made_callbacks()
    assert type(made) is Told


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("Told", "module.Class"),
        ("no.such.module.Told", "cannot be imported"),
        (f"{__name__}.Toldd", "cannot be imported"),
        ("pathlib.Path", "subclass of tune.Callback"),
        (f"{__name__}.Needy", "without arguments"),
    ],
)
def test_a_callback_that_cannot_be_made_is_named(path: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=f"RAY_TUNE_CALLBACKS.*{problem}"):
        Overrides.read({"RAY_TUNE_CALLBACKS": path}).made_callbacks()


def test_the_default_storage_can_be_rays() -> None:
    assert Overrides.read({"TUNE_RESULT_DIR": "/results"}).default_storage == "/results"
