"""Tests what a pickle of the user's code keeps."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from trialpod.protocol.pickling import dumps


def loaded(source: str, name: str, *, by_name: bool = False) -> Any:
    """Return what a name stands for in a script, as a trial gets it."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "/home/me/train.py", "exec"), scope)
    return pickle.loads(dumps(scope[name], by_name=by_name))


class TestTracebacks:
    def test_names_the_file_and_line(self) -> None:
        train = loaded("\ndef train(config):\n    return config['lr']\n", "train")
        try:
            train({})
        except KeyError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
        assert (last.filename, last.lineno, last.name) == ("/home/me/train.py", 3, "train")

    def test_functions_within_keep_it_too(self) -> None:
        make = loaded("def make():\n    return lambda: 1\n", "make")
        assert make().__code__.co_filename == "/home/me/train.py"

    def test_methods_of_a_class_keep_it_too(self) -> None:
        trainable = loaded("class Mine:\n    def step(self):\n        return 1\n", "Mine")
        assert trainable.step.__code__.co_filename == "/home/me/train.py"

    def test_what_is_looked_up_by_name_keeps_it_too(self) -> None:
        train = loaded("def train(config):\n    return 1\n", "train", by_name=True)
        assert train.__code__.co_filename == "/home/me/train.py"


class TestModuleThatTravelsByValue:
    """A module of the user's beside the script, as it goes to pods that do not have it."""

    WRITES = """
import sys; sys.path.insert(0, ".")
import cloudpickle, helper
from trialpod.protocol.pickling import dumps
cloudpickle.register_pickle_by_value(helper)
open("sent", "wb").write(dumps([helper.Thing(3), helper.Thing, helper.double], by_name=True))
"""
    PASSES = """
import pickle
import subprocess
import sys
from trialpod.protocol.pickling import dumps
things = pickle.load(open("sent", "rb"))
assert things[0].size == 3 and things[2](2) == 4 and type(things[0]) is things[1]
open("returned", "wb").write(dumps(things, by_name=True))
"""
    READS = """
import sys; sys.path.insert(0, ".")
import pickle, helper
for name in ("sent", "returned"):
    thing, kind, function = pickle.load(open(name, "rb"))
    assert kind is helper.Thing and type(thing) is helper.Thing and thing.size == 3, name
    assert function is helper.double, name
"""

    def test_its_classes_are_those_that_a_script_has_imported(self, tmp_path: Path) -> None:
        (tmp_path / "helper.py").write_text(
            "class Thing:\n    def __init__(self, size):\n        self.size = size\n\n"
            "def double(x):\n    return 2 * x\n"
        )
        for source in (self.WRITES, self.PASSES, self.READS):
            done = subprocess.run(
                [sys.executable, "-P", "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
