"""What the metrics say of each experiment's account."""

from __future__ import annotations

from cluster_objects import Run

from trialpod_operator.cluster.metrics.account import KEPT_S, Account, AccountView, account_families
from trialpod_operator.engine import accounting
from trialpod_operator.engine.events import AttemptStarted


def view_of(run: Run, view: AccountView, waits_since: float | None = None) -> Account:
    return view.observe(run.engine, run.now, queue="q", asked=["cpu"], waits_since=waits_since)


def ran(run: Run, seconds: float) -> None:
    run.apply(AttemptStarted(trial_id=run.trial(0).trial_id, attempt=1, pid=1, resources={"cpu": 2.0}))
    run.now += seconds
    run.result(0, 1.0)


def test_all_series_of_a_resource_start_with_0() -> None:
    account = view_of(Run(1), AccountView("team/digits"))
    assert account.decided == {(name, out): 0.0 for name in ("cpu", "trial") for out in accounting.OUTCOMES}


def test_what_runs_is_undecided_until_its_trial_ends() -> None:
    run, view = Run(1), AccountView("team/digits")
    ran(run, 10)
    account = view_of(run, view, run.now - 7)
    assert (account.open, account.in_use, account.pending_s) == (
        {"cpu": 20.0, "trial": 10.0},
        {"cpu": 2.0, "trial": 1.0},
        7.0,
    )
    assert account.decided["cpu", "useful"] == 0
    run.end(0)
    account = view_of(run, view)
    assert (account.decided["cpu", "useful"], account.open["cpu"]) == (20.0, 0.0)


def test_counters_do_not_fall_after_a_reopen() -> None:
    run, view = Run(1), AccountView("team/digits")
    ran(run, 10)
    run.end(0)
    view_of(run, view)
    assert view_of(Run(1), view).decided["cpu", "useful"] == 20.0


def test_finished_experiment_is_shown_for_15_minutes() -> None:
    run, view = Run(1), AccountView("team/digits")
    assert view.last(run.now) is None
    ran(run, 10)
    run.end(0)
    view_of(run, view)
    last = view.last(run.now + KEPT_S)
    assert last is not None
    assert (last.decided["trial", "useful"], last.open, last.in_use) == (10.0, {}, {})
    assert view.last(run.now + KEPT_S + 1) is None


def test_the_families_have_one_sample_for_each_series() -> None:
    run = Run(1, max_trial_hours=1.0)
    ran(run, 36)
    families = {each.name: each for each in account_families([view_of(run, AccountView("team/digits"))])}
    samples = families["trialpod_resource_seconds"].samples
    assert len(samples) == 8
    labels = {"namespace": "team", "experiment": "digits", "queue": "q", "resource": "cpu", "outcome": "lost"}
    assert [each.value for each in samples if each.labels == labels] == [0]
    (budget,) = families["trialpod_budget_used_ratio"].samples
    assert budget.labels == {"namespace": "team", "experiment": "digits", "budget": "maxTrialHours"}
    assert budget.value == 0.01
