from __future__ import annotations

import pytest

from trialpod_operator.kube_client.version_skew import missing_fields, series, skew

VERSION = "trialpod.dev/version"


@pytest.mark.parametrize("theirs", ["0.3.0", "0.3.9", "0.2.0", "0.4.1", "", "main"])
def test_adjacent_or_unknown_releases_are_compatible(theirs: str) -> None:
    assert skew({VERSION: theirs}, own="0.3.2") is None
    assert skew({}, own="0.3.2") is None


def test_distant_releases_are_reported_with_the_command() -> None:
    newer = skew({VERSION: "0.5.0"}, own="0.3.2")
    assert newer is not None
    assert newer.remedy == 'pip install "trialpod==0.5.0"'
    older = str(skew({VERSION: "0.1.0"}, own="0.3.2"))
    assert "helm upgrade trialpod charts/trialpod" in older
    assert "--set image.tag=0.3.2" in older
    assert skew({VERSION: "1.0.0"}, own="0.9.0")


def test_a_version_is_its_series() -> None:
    assert series("v0.12.3rc1") == (0, 12)
    assert series("latest") is None


def test_fields_that_a_definition_lacks_are_named() -> None:
    assert "spec.suspend" in missing_fields({})
