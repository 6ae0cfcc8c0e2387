"""The table of Ray's public names in the documentation says what is so."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialpod.compat import ray as alias
from trialpod.compat.ray.unsupported import Unsupported

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-ray.md"


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].startswith("`ray."):
            found.append((cells[0].strip("`"), cells[5], cells[6]))
    return found


@pytest.fixture(scope="module")
def _alias() -> Iterator[None]:
    alias.install(replace=True)
    yield
    alias.uninstall()


def resolve(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if isinstance(found, type) and part in ("path", "filesystem"):  # of objects, not of the class
                return found
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.usefixtures("_alias")
def test_every_name_in_the_table_is_what_it_says() -> None:
    listed = rows()
    assert len(listed) > 350
    for name, status, note in listed:
        found = resolve(name)
        assert status in ("same", "differs", "not offered"), name
        if status == "not offered":
            assert note, name
        else:
            assert not isinstance(found, Unsupported), name


@pytest.mark.usefixtures("_alias")
def test_what_trialpod_exports_for_scripts_is_in_the_table() -> None:
    from trialpod import tune

    listed = {name.rpartition(".")[2] for name, _, _ in rows()}
    ours = {
        "get_experiment_name",
        "logger",
        "schedulers",
        "search",
        "stopper",
        "utils",
        "Resources",
        "StatusReporter",
    }
    assert set(tune.__all__) - ours <= listed
