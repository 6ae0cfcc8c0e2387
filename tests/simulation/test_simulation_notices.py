"""The simulation notices: with each of these rules taken away, a run finds that something does not hold."""

from __future__ import annotations

import pytest
from sim_defects import DEFECTS, Defect, provoking
from sim_world import shows, simulate

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(300)]

SEEDS = 120
"""The rarest shows in one of sixty."""
QUICK = {
    "a_completion_hides_a_workers_failure": 421,
    "a_place_is_anybodys": 2,
    "announced_before_commit": 49,
    "attempt_not_checked": 162,
    "checkpoint_not_handed_over": 12,
    "counters_restart": 12,
    "dead_replicas_keep_their_shards": 8,
    "deleted_checkpoints_come_back": 55,
    "deleted_places_are_written": 75,
    "duplicate_not_recognised": 5,
    "expired_leases_are_good": 12,
    "no_mark_of_removal": 25,
    "one_journal_in_a_place": 161,
    "passes_finish_for_others": 8,
    "silence_taken_for_death": 10,
    "superseded_attempts_write": 65,
}
"""A plan that shows it at once, tried first, for what takes longest to find; any other will do too."""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_rule_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch, defect: Defect) -> None:
    with monkeypatch.context() as patched:
        defect(patched.setattr)
        seeds = [QUICK.get(defect.__name__, 0), *range(SEEDS)]
        assert any(shows(simulate(provoking(seed, defect))) for seed in seeds)
