"""What the pages of search algorithms show can be made, word by word, where the library is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod.errors import InvalidInputError
from trialpod.tune.search import create_searcher, prepare
from trialpod.tune.search.sample import loguniform, randint

DOCS = Path(__file__).parents[4] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("search.md", "random-search.md"))
BLOCKS = re.findall(r"```(yaml|python)\n(.*?)```", TEXT, re.DOTALL)
MANIFESTS = [text for kind, text in BLOCKS if kind == "yaml"]
SCRIPTS = [text for kind, text in BLOCKS if kind == "python"]


def _or_skip(error: Exception) -> None:
    if isinstance(error, InvalidInputError) and "pip install" in str(error):
        pytest.skip(str(error))
    raise error


@pytest.mark.parametrize("text", MANIFESTS)
def test_a_manifest_of_the_documentation_is_valid(text: str) -> None:
    document: dict[str, Any] = yaml.safe_load(text)
    component = document.get("spec", document)["searchAlgorithm"]
    parameters = component.get("parameters", {})
    try:
        searcher = create_searcher(component["name"], **parameters)
        goal = {} if "metric" in parameters else {"metric": "loss", "mode": "min"}
        space = {"lr": loguniform(1e-4, 1e-1), "layers": randint(1, 5)}
        prepare(searcher, space=space, num_samples=4, seed=1, **goal)
    except InvalidInputError as error:
        _or_skip(error)


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_of_the_documentation_runs(text: str) -> None:
    try:
        exec(compile(text, "docs", "exec"), {})
    except (InvalidInputError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError):
            pytest.skip(str(error))
        _or_skip(error)
