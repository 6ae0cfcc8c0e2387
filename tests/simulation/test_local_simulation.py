"""`trialpod run` under faults, on virtual time: whatever goes wrong on a machine or with it, every rule holds.

A seed is a whole experiment with all its runs; `make soak` finds new ones. What failed once stays here by its name.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sim_local import simulate_local
from sim_local_defects import LOCAL_DEFECTS, LocalDefect, provoking_locally
from sim_local_plan import (
    LOCAL_KINDS,
    LocalPlan,
    earlier_local_plan_of,
    local_plan_from_text,
    local_plan_of,
    long_local_plan_of,
)
from sim_plan import Fault
from sim_world import shows

PARTS = 4
SEEDS = 60
MORE_SEEDS = 400
NOTICED_WITHIN = 40
"""A defect shows in one of so many seeds."""
QUICK = {"attempts_begin_unknown": 35}
"""A seed that shows it at once, tried first, for what takes longest to find; any other will do too."""


def holds(plan: LocalPlan) -> Counter[str]:
    """Run a plan; return what happened in it."""
    outcome = simulate_local(plan)
    assert not outcome.violations, f"make soak SOAK_SEED=local-{plan.seed}: {outcome.violations}"
    return Counter(outcome.fired)


@pytest.mark.once
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", range(2))
def test_every_rule_holds_on_a_machine_whatever_goes_wrong(part: int) -> None:
    for seed in range(part, SEEDS, 2):
        holds(local_plan_of(seed))


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_holds_on_a_machine_in_many_runs(part: int) -> None:
    fired: Counter[str] = Counter()
    for seed in range(SEEDS + part, SEEDS + MORE_SEEDS, PARTS):
        fired += holds(local_plan_of(seed))
    assert [kind for kind in LOCAL_KINDS if not fired[kind]] == []


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(
            44,
            [Fault("store answers lost", 4.947, 31.504, 0.2198)],
            id="an experiment was refused forever when the answer to its last copy was lost",
        ),
        pytest.param(
            46,
            [
                Fault("another machine takes over", 3.665, 0.227, 0.4051),
                Fault("another machine takes over", 18.136, 7.985, 0.9568),
            ],
            id="a machine that woke removed the checkpoints of the one that had taken over",
        ),
    ],
)
def test_known_local_violations_stay_fixed(seed: int, faults: list[Fault]) -> None:
    holds(earlier_local_plan_of(seed).with_faults(tuple(faults)))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3590774864, id="an attempt was given to a process of whose death the run had just been told"),
        pytest.param(3590786372, id="the results of a trial that had paused before a kill never came to the bucket"),
        pytest.param(3590805421, id="a run that was told twice to end did not say what the bucket lacks"),
        pytest.param(3590980533, id="an attempt that was given to a dead process was a failure of its trial"),
    ],
)
def test_what_went_wrong_once_on_a_machine_does_not_again(seed: int) -> None:
    holds(earlier_local_plan_of(seed))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3591337404, id="an attempt was given in answer to a request that its process had given up"),
        pytest.param(3591368466, id="a machine that was stopped had replaced the same segment by another snapshot"),
        pytest.param(3591362688, id="killed between seals and snapshot, it took itself for another process"),
    ],
)
def test_what_went_wrong_once_does_not_again(seed: int) -> None:
    holds(long_local_plan_of(seed))


@pytest.mark.once
def test_without_a_fault_nothing_is_repeated_or_left_over() -> None:
    for seed in range(10):
        holds(local_plan_of(seed).with_faults(()))


def test_a_local_seed_is_the_same_run_each_time() -> None:
    for seed in range(3):
        first, second = simulate_local(local_plan_of(seed)), simulate_local(local_plan_of(seed))
        assert (first.digest, first.events, first.fired) == (second.digest, second.events, second.fired)


def test_a_local_plan_is_read_back_as_it_was_written() -> None:
    for seed in range(20):
        assert local_plan_from_text(local_plan_of(seed).text()) == local_plan_of(seed)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", LOCAL_DEFECTS, ids=lambda defect: defect.__name__)
def test_a_rule_that_is_taken_away_on_a_machine_is_missed(
    monkeypatch: pytest.MonkeyPatch, defect: LocalDefect
) -> None:
    with monkeypatch.context() as patched:
        defect(patched.setattr)
        seeds = [QUICK.get(defect.__name__, 0), *range(NOTICED_WITHIN)]
        assert any(shows(simulate_local(provoking_locally(seed, defect))) for seed in seeds)
