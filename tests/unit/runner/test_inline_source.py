from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.inline_source import candidates
from trialpod.runner.load import load_trainable
from trialpod_operator.api.document import Document
from trialpod_operator.api.rules import check_rules

HELPER = """
from trialpod import tune

def accuracy(config):
    return config["x"] * 2

def load(path, size=3):
    return path

def train(config):
    tune.report({"score": accuracy(config)})
"""
RETURNS = """
def square(x):
    return x * x

def objective(config):
    return {"loss": square(config["x"])}
"""
TWO = """
def first(config):
    return {"a": 1}

def second(config):
    return {"a": 2}
"""


def problems(source: str, **trainable: Any) -> list[str]:
    spec = {"trainable": {"source": source, **trainable}}
    return [str(problem) for problem in check_rules(Document({"spec": spec}), set()).problems]


class TestInlineSource:
    @pytest.mark.parametrize(
        ("source", "intended"),
        [
            (HELPER, "train"),
            (RETURNS, "objective"),
            ("def a(config):\n    for _ in range(3):\n        yield 1\ndef b(x, y): return a", "a"),
            ("def report_all(c): pass\ndef f(c, *, device='cpu'): session.report(c)", "f"),
            ("def main(): train({})\ndef train(config): print(config)", "train"),
        ],
    )
    def test_helper_is_no_trainable(self, source: str, intended: str) -> None:
        assert candidates(source) == [intended]
        assert problems(source) == []
        assert load_trainable(TrainableRef(source=source)).__name__ == intended

    def test_several_are_refused_by_validate(self) -> None:
        (problem,) = problems(TWO)
        assert "(first, second); name it in spec.trainable.attribute" in problem
        assert problems(TWO, attribute="second") == []
        with pytest.raises(TrainableError, match=r"\(first, second\); say which with the attribute"):
            load_trainable(TrainableRef(source=TWO))

    def test_class_is_left_to_the_runner(self) -> None:
        assert problems("class A(B): pass\n" + TWO) == []
