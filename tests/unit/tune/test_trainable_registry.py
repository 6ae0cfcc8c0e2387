from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.registry import get_env, is_registered, resolve_trainable, shipped
from trialpod.tune.trainable.checks import inspect_trainable


class Model(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"n": 1}


def test_name_stands_for_its_trainable() -> None:
    tune.register_trainable("a-model", Model)
    tune.register_trainable("a-function", lambda config: config["x"])
    assert is_registered("a-model")
    found = resolve_trainable("a-model")
    assert issubclass(found, Model)
    assert inspect_trainable(found).name == "a-model"
    assert inspect_trainable(resolve_trainable("a-function")).name == "a-function"
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


def test_environments_are_known_here() -> None:
    tune.register_env("maze", lambda config: ("maze", config))
    assert get_env("maze")({"size": 3}) == ("maze", {"size": 3})
    with pytest.raises(InvalidInputError, match="no environment"):
        get_env("other")
    with pytest.raises(InvalidInputError, match="must be a function"):
        tune.register_env("maze", 5)  # type: ignore[arg-type]


PACKS = """
import sys
from pathlib import Path
import msgspec
from trialpod import tune
from trialpod.tune.registry import get_env, resolve_trainable
from trialpod.tune.shipping.package import pack_trainable

class Maze:
    def __init__(self, config):
        self.size = config["size"]

def train(config):
    return get_env("maze")({"size": 4}).size + resolve_trainable("other")(config)

tune.register_env("maze", Maze)
tune.register_env("locked", __import__("threading").Lock().acquire)
tune.register_trainable("other", lambda config: config["x"])
tune.register_trainable("train", train)
print(msgspec.json.encode(pack_trainable("train" and resolve_trainable("train"), Path(sys.argv[1]))).decode())
"""


def test_names_are_known_in_trials(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PACKS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "registered as 'locked' is not known in trials: it cannot be sent" in done.stderr
    program = (
        "import sys, msgspec; from trialpod.protocol.messages import TrainableRef; "
        "from trialpod.runner.load import load_trainable; "
        "print(load_trainable(msgspec.json.decode(sys.argv[1], type=TrainableRef))({'x': 38}))"
    )
    ran = subprocess.run([sys.executable, "-c", program, done.stdout], capture_output=True, text=True, check=True)
    assert ran.stdout == "42\n"


def test_large_objects_do_not_travel(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="trialpod")
    tune.register_trainable("large", tune.with_parameters(lambda config, data: 1, data=b"x" * 2_000_000))
    found = shipped(Model)
    assert "large" not in getattr(found, "trainables", {})
    assert "'large' is not known in trials" in caplog.text
