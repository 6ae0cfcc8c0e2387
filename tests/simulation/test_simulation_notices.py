"""The simulation notices: with each of these rules taken away, a run finds that something does not hold."""

from __future__ import annotations

import pytest
from sim_defects import DEFECTS, Defect, provoking
from sim_world import simulate

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(300)]

SEEDS = 120
"""The rarest shows in one of sixty."""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_rule_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch, defect: Defect) -> None:
    with monkeypatch.context() as patched:
        defect(patched.setattr)
        assert any(simulate(provoking(seed, defect)).violations for seed in range(SEEDS))
