from __future__ import annotations

from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.registry import get_env, is_registered, resolve_trainable
from trialpod.tune.trainable_checks import inspect_trainable


class Model(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"n": 1}


def test_a_registered_name_stands_for_its_trainable_and_names_its_trials() -> None:
    tune.register_trainable("a-model", Model)
    tune.register_trainable("a-function", lambda config: config["x"])
    assert is_registered("a-model")
    found = resolve_trainable("a-model")
    assert issubclass(found, Model)
    assert inspect_trainable(found).name == "a-model"
    assert inspect_trainable("a-function").name == "a-function"
    assert resolve_trainable("a-function")({"x": 3}) == 3
    assert tune.with_resources("a-model", {"cpu": 2})({}).train()["n"] == 1


def test_an_unknown_name_says_what_is_registered() -> None:
    tune.register_trainable("my_model", Model)
    with pytest.raises(InvalidInputError, match=r"no Trainable is registered as 'my_modle'; did you mean 'my_model'"):
        resolve_trainable("my_modle")


@pytest.mark.parametrize(("name", "trainable"), [("", Model), ("a/b", Model), ("x", 5), ("x", "y"), ("x", dict)])
def test_what_cannot_be_registered_is_refused(name: str, trainable: Any) -> None:
    with pytest.raises(InvalidInputError):
        tune.register_trainable(name, trainable)


def test_environments_are_known_in_this_process() -> None:
    tune.register_env("maze", lambda config: ("maze", config))
    assert get_env("maze")({"size": 3}) == ("maze", {"size": 3})
    with pytest.raises(InvalidInputError, match="no environment"):
        get_env("other")
    with pytest.raises(InvalidInputError, match="must be a function"):
        tune.register_env("maze", 5)  # type: ignore[arg-type]
