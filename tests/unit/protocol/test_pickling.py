"""Tests what a pickle of the user's code keeps."""

from __future__ import annotations

import pickle
import traceback
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
