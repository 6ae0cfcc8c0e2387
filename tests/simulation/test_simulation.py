"""The whole system under faults, on virtual time: whatever goes wrong, every rule holds in the end.

A seed is a whole run; `make soak` finds new ones. What failed once stays here by the name of what it found.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sim_plan import (
    FEATURES,
    KINDS,
    Fault,
    Plan,
    decided_plan_of,
    long_plan_of,
    placed_plan_of,
    plain_plan_of,
    plan_from_text,
    plan_of,
    shrunk,
    soak_plan_of,
    swift_plan_of,
    wide_plan_of,
)
from sim_world import simulate

PARTS = 4
SEEDS = 40
MORE_SEEDS = 140
OWN_SEEDS = 8
MORE_OWN_SEEDS = 50
MOST_SEEDS = 900
HERE = Path(__file__).parent

fired: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _clean_up() -> None:
    gc.collect()


def holds(plan: Plan) -> None:
    outcome = simulate(plan)
    fired.update(outcome.fired)
    assert not outcome.violations, f"make soak SOAK_SEED={plan.seed}: {outcome.violations}"


@pytest.mark.once
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_holds_whatever_goes_wrong(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        holds(soak_plan_of(seed))


class TestOwnCode:
    """Code of a user's decides in a pod of its own, which may die like any other."""

    def test_every_rule_holds_whatever_goes_wrong(self) -> None:
        for seed in range(OWN_SEEDS):
            holds(decided_plan_of(seed))

    @pytest.mark.slow
    @pytest.mark.once
    @pytest.mark.parametrize("part", range(PARTS))
    def test_every_rule_holds_in_many_runs(self, part: int) -> None:
        for seed in range(OWN_SEEDS + part, OWN_SEEDS + MORE_OWN_SEEDS, PARTS):
            holds(decided_plan_of(seed))

    def test_decider_gone_unseen_is_replaced(self) -> None:
        for seed in (30, 35):
            holds(decided_plan_of(seed))

    def test_decider_is_kept_while_it_has_events(self) -> None:
        holds(decided_plan_of(23))

    def test_deletion_that_the_server_missed_is_repeated(self) -> None:
        holds(decided_plan_of(83))

    def test_nothing_begun_is_nothing_lost(self) -> None:
        """An operator that is replaced before the decider's first decision begins again."""
        holds(decided_plan_of(33))


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.xdist_group("simulation")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_holds_in_many_runs(part: int) -> None:
    for seed in range(SEEDS + part, SEEDS + MORE_SEEDS, PARTS):
        holds(soak_plan_of(seed))


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.xdist_group("simulation")
def test_every_kind_of_fault_has_happened() -> None:
    """In the runs before, which `xdist_group` brings here, or in a few more."""
    for seed in range(SEEDS + MORE_SEEDS, MOST_SEEDS):
        if all(fired[kind] for kind in (*KINDS, *FEATURES)):
            break
        holds(soak_plan_of(seed))
    assert [kind for kind in (*KINDS, *FEATURES) if not fired[kind]] == []


def test_without_a_fault_nothing_is_lost_repeated_or_left_over() -> None:
    for seed in range(6):
        holds(plan_of(seed).with_faults(()))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(9, id="after a clock was set back a retry waited for an hour"),
        pytest.param(14, id="an operator that knew less than another ended attempts that had lost nothing"),
        pytest.param(31, id="a snapshot replaced records of another operator that it did not know"),
        pytest.param(42, id="an attempt on a lost node took the index that its successor needed"),
        pytest.param(89, id="an operator that was out of date sent a new pod away for good"),
        pytest.param(300253, id="after a clock was set back nobody asked for an hour what a silent pod does"),
        pytest.param(100093, id="an operator wrote where another had removed the journal, and called it durable"),
        pytest.param(1795286596, id="an operator that was replaced gave a pod the attempt that it had just ended"),
        pytest.param(
            30021, id="a pod that asked twice for its next attempt was sent away when the attempt was its own"
        ),
        pytest.param(400008, id="an operator that was replaced put back what trials' files had said before"),
    ],
)
def test_what_went_wrong_once_does_not_again(seed: int) -> None:
    holds(plain_plan_of(seed))


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(
            7000117,
            [Fault("pod vanishes unseen", 6.2, 0.0, 0.2)],
            id="a worker's failure counted whose cause was another that was gone unseen",
        ),
        pytest.param(1795312099, None, id="the pods of a group that was over meanwhile were given the next attempt"),
        pytest.param(
            1795312527,
            None,
            id="a late copy of a pod's first question began an attempt before its own was over",
        ),
        pytest.param(
            1795313177, None, id="after a clock was set forward a new operator said that there was no such experiment"
        ),
        pytest.param(1795318946, None, id="an operator that was stopped sent its successor's pod away"),
        pytest.param(
            1795313328, None, id="more samples were forgotten when the storage was away as they were asked for"
        ),
    ],
)
def test_what_went_wrong_once_in_a_wider_plan_does_not_again(seed: int, faults: list[Fault] | None) -> None:
    plan = wide_plan_of(seed)
    holds(plan if faults is None else plan.with_faults(tuple(faults)))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1240, id="an experiment that was deleted before its data was held was begun all the same"),
        pytest.param(1082, id="an experiment's data went with a refused one of its name in another namespace"),
        pytest.param(1795367905, id="more samples were forgotten when it had just been found that none were left"),
        pytest.param(
            1795380553, id="an operator that was stopped wrote behind the deletion of its experiment's data"
        ),
        pytest.param(1795382441, id="an operator that was replaced made a pod again for an attempt that had begun"),
        pytest.param(1795397217, id="a file of a trial came behind the deletion of its experiment, by a slow store"),
        pytest.param(1795406571, id="an operator made the mark of a place again that another had deleted"),
        pytest.param(1795391497, id="a pod that was replaced while it waited was given the attempt all the same"),
        pytest.param(1795387290, id="a pod on a lost node stored a checkpoint behind the deletion of its experiment"),
        pytest.param(25, id="an experiment whose place was taken was written for as long as it was refused"),
    ],
)
def test_known_multi_namespace_violations_stay_fixed(seed: int) -> None:
    holds(placed_plan_of(seed))


def test_no_config_is_tried_once_the_best_are_repeated() -> None:
    """The plan of a budget changes its mind about what is left when an operator comes back."""
    holds(swift_plan_of(1795494486))


def test_pod_gone_before_its_deletion_is_not_our_doing() -> None:
    """The head of a group vanished, the operator deleted it too late: its worker's failure has that explanation."""
    holds(swift_plan_of(1795493835))


def test_new_operator_makes_no_second_pod_of_what_began() -> None:
    """The operator before it was stopped, and wrote that an attempt had begun after its journal was read."""
    holds(swift_plan_of(1264))


def test_operator_with_fast_clock_waits_for_deleted_pods() -> None:
    faults = (Fault("operator clock jumps", 8.92, 4.418, 0.3881), Fault("experiment deleted", 16.904, 0.152, 0.0326))
    holds(placed_plan_of(1795366181).with_faults(faults))


def test_new_operator_waits_for_pods_of_what_it_deletes() -> None:
    holds(placed_plan_of(21124))


def test_restarted_operator_finds_its_old_lease_removed() -> None:
    """And joins the others again."""
    holds(long_plan_of(1795683966))


def test_own_code_continues_where_a_snapshot_never_came() -> None:
    """Its operator died between sealing the journal and storing the snapshot, which only the decider could repeat."""
    fault = Fault("operator dies", 1.39, 4.509, 0.6742)
    holds(replace(decided_plan_of(32), objects=4).with_faults((fault,)))


def test_shared_place_deleted_with_code_is_stored_again() -> None:
    """The status says that the script has to run again, and its user does that."""
    faults = (Fault("store slow", 0.006, 1.194, 0.1866), Fault("experiment deleted", 5.169, 0.25, 0.1591))
    holds(long_plan_of(1795682184).with_faults(faults))


def test_retry_trains_no_further_than_the_stop_criterion() -> None:
    """A worker dies right before the head reports the last iteration."""
    faults = (
        Fault("node comes back", 4.16, 3.879, 0.7113),
        Fault("attempt dies", 7.372, 0.024, 0.6435),
        Fault("operator replaced", 28.27, 0.192, 0.6038),
    )
    holds(placed_plan_of(1795471073).with_faults(faults))


def test_head_lost_unseen_explains_the_failure_of_its_workers() -> None:
    faults = (
        Fault("pod vanishes unseen", 9.483, 4.739, 0.2478),
        Fault("operator dies", 14.592, 3.788, 0.9715),
        Fault("pod vanishes unseen", 22.3, 7.844, 0.2099),
    )
    holds(placed_plan_of(1795470968).with_faults(faults))


def test_stopped_operator_claims_no_place_of_what_was_deleted() -> None:
    faults = (
        Fault("API away", 0.003, 1.247, 0.7862),
        Fault("operator paused", 0.073, 0.244, 0.2988),
        Fault("operator paused", 2.341, 6.74, 0.3529),
        Fault("experiment deleted", 8.594, 37.064, 0.3057),
        Fault("operator paused", 25.991, 15.464, 0.4676),
    )
    holds(placed_plan_of(1795474836).with_faults(faults))


def test_a_seed_is_the_same_run_each_time() -> None:
    for seed in (2, 9):
        first, second = simulate(plan_of(seed)), simulate(plan_of(seed))
        assert (first.digest, first.events, first.fired) == (second.digest, second.events, second.fired)


@pytest.mark.slow
@pytest.mark.once
def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Nothing depends on the order of a set, or on an address."""
    code = (
        "import soak; from sim_plan import plan_of; from sim_world import simulate; "
        "print([simulate(plan_of(seed)).digest for seed in (2, 3, 9, 12, 14, 35)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=HERE,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(printed) == 1


def test_a_plan_is_read_back_as_it_was_written() -> None:
    for seed in range(20):
        assert plan_from_text(plan_of(seed).text()) == plan_of(seed)


def test_single_experiment_plan_round_trips() -> None:
    plan = plain_plan_of(3)
    values = json.loads(plan.text())
    (experiment,) = values.pop("experiments")
    values |= {"spec": experiment["spec"], "same_end": experiment["same_end"]}
    assert plan_from_text(json.dumps(values)) == plan


def test_of_a_failing_plan_the_faults_remain_that_matter() -> None:
    plan = plan_of(3).with_faults(tuple(Fault(kind, 1.0, 0.0, 0.0) for kind in KINDS[:6]))
    matter = set(KINDS[2:4])
    least = shrunk(plan, lambda candidate: matter <= {fault.kind for fault in candidate.faults})
    assert {fault.kind for fault in least.faults} == matter
