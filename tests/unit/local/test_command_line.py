"""An experiment from a command line."""

from __future__ import annotations

import json

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.api.loader import load_manifests
from trialpod_operator.local.command_line import document_of


def spec_of(*words: str, **options) -> dict:
    document = document_of(words, **options)
    load_manifests(json.dumps(document), "test")
    return document["spec"]


class TestDocument:
    def test_distributions_become_the_search_space(self) -> None:
        spec = spec_of("python", "train.py", "--lr={lr:loguniform:1e-4:1e-1}", "{opt:choice:sgd:adam}", metric="loss")
        assert spec["trainable"] == {"command": ["python", "train.py", "--lr={lr}", "{opt}"]}
        assert spec["searchSpace"] == {"lr": {"loguniform": [0.0001, 0.1]}, "opt": {"choice": ["sgd", "adam"]}}
        assert (spec["metric"], spec["mode"], spec["numSamples"]) == ("loss", "min", 10)

    def test_a_grid_alone_runs_once(self) -> None:
        assert spec_of("x", "{a:grid_search:1:2}")["numSamples"] == 1
        assert spec_of("x", "{a:grid_search:1:2}", samples=3)["numSamples"] == 3

    def test_doubled_braces_and_second_uses_stay(self) -> None:
        spec = spec_of("x", "{a:uniform:0:1}", "{a}", "{{b:uniform:0:1}}")
        assert spec["trainable"]["command"] == ["x", "{a}", "{a}", "{{b:uniform:0:1}}"]

    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("{a:unifrom:0:1}", "did you mean 'uniform'"),
            ("{a:uniform}", "has no arguments; write"),
            ("{a:uniform:0:1}{a:uniform:0:2}", "another distribution before"),
        ],
    )
    def test_mistakes(self, word: str, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            document_of(["x", word])

    @pytest.mark.parametrize(
        ("words", "name"),
        [
            (["python3.11", "-u", "src/train_it.py"], "train-it"),
            (["./bin/My Program"], "my-program"),
            (["Rscript", "fit.R"], "fit"),
            (["bash", "-c", "x"], "bash"),
            (["é"], "command"),
        ],
    )
    def test_name_of_the_experiment(self, words: list[str], name: str) -> None:
        assert document_of(words)["metadata"]["name"] == name
