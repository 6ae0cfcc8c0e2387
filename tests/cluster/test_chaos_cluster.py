"""A short round of chaos, always the same; `make chaos-cluster` runs new ones for as long as one likes."""

from __future__ import annotations

import sys

import pytest
from cluster_access import ROOT, Cluster
from operator_release import Operator

sys.path.append(str(ROOT / "tests/chaos"))

from cluster_plan import SHORT
from cluster_round import run_round


@pytest.mark.timeout(420)
def test_nothing_is_lost_whatever_is_killed_stopped_or_cut_off(operator: Operator, cluster: Cluster) -> None:
    report = run_round(cluster, operator, SHORT)
    print(report.line())
    assert not report.violations, f"kept in {report.place}"
