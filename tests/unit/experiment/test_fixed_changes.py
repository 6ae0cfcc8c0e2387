"""What of a spec cannot change once trials exist."""

from __future__ import annotations

from typing import Any

import pytest

from trialpod_operator.experiment.stored import fixed_changes


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"replicas": 2}, {"replicas": 3}, ["spec.workers"]),
        ({"replicas": 2}, None, ["spec.workers"]),
        (None, {"replicas": 2}, ["spec.workers"]),
        ({"replicas": 2}, {"replicas": 2, "resources": {"memory": "2Gi"}, "startTimeout": "1h"}, []),
        ({"replicas": 2, "resources": {"cpu": 1}}, {"replicas": 2}, []),
        (None, None, []),
    ],
)
def test_only_the_number_of_workers_is_fixed(before: Any, now: Any, changed: list[str]) -> None:
    specs = [{"metric": "loss", **({"workers": each} if each else {})} for each in (before, now)]
    assert fixed_changes(*specs) == changed
