"""The table of Ray's public names in the documentation says what is so."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialpod.compat import ray as alias

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "ray-names.md"
GENERATOR = ROOT / "tools" / "make_ray_table"


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


def test_the_table_is_what_its_generator_writes() -> None:
    assert len(rows()) > 400
    checked = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr or "run tools/make_ray_table"


@pytest.mark.usefixtures("_alias")
def test_what_is_not_offered_says_what_to_do_instead() -> None:
    for name, status, note in rows():
        assert status in ("same", "differs", "not offered"), name
        assert note or status != "not offered", name
    assert {name for name, status, _ in rows() if status == "not offered" and name.startswith("ray.tune.")} == {
        "ray.tune.TuneContext.get_metadata",
        "ray.tune.TuneContext.get_storage",
        "ray.tune.trainable.FuncCheckpointUtil",
    }


@pytest.mark.usefixtures("_alias")
def test_a_class_is_the_same_wherever_it_is_looked_for() -> None:
    from trialpod import tune

    for name in ("Checkpoint", "CheckpointConfig", "FailureConfig", "Result", "RunConfig", "SyncConfig"):
        for module in ("ray.train", "ray.air", "ray.tune"):
            assert getattr(importlib.import_module(module), name) is getattr(tune, name)


@pytest.mark.usefixtures("_alias")
def test_what_trialpod_exports_for_scripts_is_in_the_table() -> None:
    from trialpod import tune

    listed = {name.rpartition(".")[2] for name, _, _ in rows()}
    ours = {
        "Command",
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
