"""What trials took, in words."""

from __future__ import annotations

from trialpod_operator.display.summary import account_text, is_notable


def hours(**parts: float) -> dict[str, float]:
    return {"used": 0.0, "useful": 0.0, "stopped": 0.0, "lost": 0.0, "failed": 0.0, **parts}


def test_trials_and_gpus_of_all_kinds_have_a_line_each() -> None:
    trials, gpus = account_text(
        {
            "trial": hours(used=10.0, useful=7.0, stopped=1.0, lost=0.05, failed=0.95),
            "cpu": hours(used=80.0, useful=80.0),
            "nvidia.com/gpu": hours(used=3.0, useful=3.0),
            "nvidia.com/mig-1g.5gb": hours(used=1.0, lost=1.0),
        }
    ).splitlines()
    shares = "70% useful, 10% stopped early, 0.5% lost to interruptions, 10% failed, 10% undecided"
    assert trials == f"trial time: 10 h 00 min ({shares})"
    assert gpus == "GPU time: 4 h 00 min (75% useful, 25% lost to interruptions)"


def test_nothing_used_is_nothing_reported() -> None:
    assert account_text({}) == account_text({"trial": hours()}) == ""
    assert not is_notable({})


def test_a_short_run_and_a_useful_one_are_not_worth_a_line() -> None:
    assert not is_notable({"trial": hours(used=0.01, failed=0.01)})
    assert not is_notable({"trial": hours(used=5.0, useful=5.0)})
    assert is_notable({"trial": hours(used=5.0, useful=4.0, lost=1.0)})
