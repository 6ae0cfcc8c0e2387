"""Which earlier experiments a search in the operator can open."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trialpod.errors import InvalidInputError
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster.earlier_experiments import EarlierExperiments
from trialpod_operator.cluster.experiment_plan import make_plan
from trialpod_operator.cluster.storage_access import StorageLocation


@pytest.mark.parametrize("given", ["climb", "{parent}/climb", "{parent}/climb/"])
def test_one_beside_it_is_opened_by_name_or_uri(tmp_path: Path, given: str) -> None:
    open_storage(str(tmp_path / "runs" / "climb")).write("result.json", b"{}")
    opener = EarlierExperiments(f"{tmp_path}/runs/next", StorageOptions())
    assert opener(given.format(parent=f"{tmp_path}/runs")).list() == ["result.json"]


@pytest.mark.parametrize(
    "given",
    [
        "next",
        "../other/climb",
        "/etc",
        "s3://tune/other/climb",
        "s3://tune/runs/../other",
        "s3://tune/runs/a/b",
        "",
        ".",
    ],
)
def test_any_other_place_is_refused(given: str) -> None:
    opener = EarlierExperiments("s3://tune/runs/next", StorageOptions())
    with pytest.raises(InvalidInputError, match="no other experiment that is kept in s3://tune/runs") as raised:
        opener(given)
    assert raised.value.parameter == ("warm_start",)


def test_one_of_another_namespace_is_refused(tmp_path: Path) -> None:
    stored = open_storage(str(tmp_path / "runs" / "climb"))
    stored.write(".trialpod/experiment.json", b'{"version": 1, "name": "climb", "namespace": "theirs"}')
    assert EarlierExperiments(f"{tmp_path}/runs/next", StorageOptions(), "theirs")("climb").list()
    with pytest.raises(InvalidInputError, match="another namespace than this one, ours"):
        EarlierExperiments(f"{tmp_path}/runs/next", StorageOptions(), "ours")("climb")


def test_all_others_are_listed(tmp_path: Path) -> None:
    for name in ("next", "climb", "_odd", "walk"):
        open_storage(str(tmp_path / "runs" / name)).write("result.json", b"{}")
    assert EarlierExperiments(f"{tmp_path}/runs/next", StorageOptions()).names() == ["climb", "walk"]


def test_the_plan_of_a_first_start_opens_them_so() -> None:
    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "next"},
        "spec": {
            "trainable": {"source": "def train(config): pass"},
            "searchSpace": {"x": {"uniform": [0, 1]}},
            "metric": "loss",
            "mode": "min",
            "searchAlgorithm": {"name": "auto", "parameters": {"warm_start": "/etc"}},
            "storage": {"uri": "s3://tune/runs"},
        },
    }
    experiment = msgspec.convert(document, TuneExperiment)
    location = StorageLocation(uri="s3://tune/runs/next", own=StorageOptions(), pods=StorageOptions())
    with pytest.raises(InvalidInputError, match="no other experiment that is kept in s3://tune/runs"):
        make_plan(experiment, location, "team", None, None)
