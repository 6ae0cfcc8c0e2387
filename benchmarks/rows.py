"""The workloads and what is read off them: figures, targets, ideals."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    `key` is the figure's name in what the workload prints; `target` is for trialpod, in the figure's own unit;
    `ideal` is what no system can pass, or the name of a figure that tells it.
    """

    key: str
    what: str
    unit: str
    target: float | None = None
    ideal: float | str | None = None
    more_is_better: bool = False

    def meets(self, value: float) -> bool:
        """Return whether a value reaches the target."""
        if self.target is None:
            return True
        return value >= self.target if self.more_is_better else value <= self.target


@dataclass(frozen=True)
class Workload:
    """One script under workloads/, with the time after which a run of it is given up, in seconds."""

    name: str
    script: str
    figures: tuple[Figure, ...]
    timeout_s: float = 120.0
    sizes: dict[str, float] = field(default_factory=dict)


WORKLOADS = (
    Workload(
        "churn_50",
        "churn_50.py",
        (Figure("fit_s", "50 trivial trials, 8 at a time, a process each", "s", target=2.0),),
        timeout_s=240.0,
    ),
    Workload(
        "churn_200_reuse",
        "churn_200_reuse.py",
        (Figure("fit_s", "200 trivial trials, 8 at a time, processes reused", "s", target=2.0),),
        timeout_s=180.0,
    ),
    Workload(
        "seconds_320",
        "seconds_320.py",
        (Figure("fit_s", "320 trials of 1 s, 16 at a time", "s", target=22.0, ideal="ideal_s"),),
        timeout_s=240.0,
    ),
    Workload(
        "report_latency",
        "report_latency.py",
        (
            Figure("p50_us", "tune.report, nobody waits for it: p50", "us", target=10.0),
            Figure("p99_us", "tune.report, nobody waits for it: p99", "us"),
            Figure("judged_us", "tune.report, each result is judged: p50", "us"),
            Figure("judged_p99_us", "tune.report, each result is judged: p99", "us"),
        ),
    ),
    Workload(
        "throughput_1",
        "throughput.py",
        (Figure("results_per_s", "one trial, until all is in result.json", "/s", 50_000.0, more_is_better=True),),
        sizes={"trials": 1},
    ),
    Workload(
        "throughput_16",
        "throughput.py",
        (Figure("results_per_s", "16 trials, until all is in result.json", "/s", 50_000.0, more_is_better=True),),
        sizes={"trials": 16},
    ),
    Workload("class_step", "class_step.py", (Figure("step_us", "an empty class step", "us", target=20.0),)),
    Workload(
        "resume_after_kill",
        "resume_after_kill.py",
        (
            Figure("next_result_s", "kill -9 of the driver, resume: next result", "s", target=1.0),
            Figure("ran_again", "... of 200 trials, finished ones run again", "", target=0.0),
            Figure("lost", "... results reported before the kill and lost", "", target=0.0),
        ),
        timeout_s=300.0,
    ),
    Workload(
        "startup",
        "startup.py",
        (
            Figure("import_s", "from ... import tune, names used", "s", target=0.15),
            Figure("first_result_s", "start of the script to its first result", "s", target=0.5),
            Figure("end_s", "start of the script to the end of fit()", "s"),
        ),
    ),
)
