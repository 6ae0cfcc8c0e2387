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
    sizes: dict[str, float | str] = field(default_factory=dict)
    needs_s3: bool = False


def _checkpoints(name: str, kind: str, count: int, *figures: Figure) -> Workload:
    blocked = (
        Figure("blocked_s", "blocked in tune.report", "s"),
        Figure("blocked_to_copy", "... of the time of one local copy", "", target=1.0),
        Figure("committed_s", "from tune.report until committed", "s"),
        Figure("mb_per_s", "... bytes by that time", " MB/s", more_is_better=True),
    )
    moved = Figure("moved_mb", "bytes that the server read", "MB")
    sizes: dict[str, float | str] = {"kind": kind, "count": count, "raw": float(_CHANGED not in figures)}
    return Workload(name, "checkpoints.py", (*blocked, *figures, moved), 420.0, sizes, needs_s3=True)


_RAW = (
    Figure("minio_py_mb_per_s", "raw rate of minio-py", " MB/s", more_is_better=True),
    Figure("obstore_mb_per_s", "raw rate of obstore", " MB/s", more_is_better=True),
    Figure("of_raw", "rate behind the report, of the better raw one", "", target=0.85, more_is_better=True),
    Figure("of_raw_with_copy", "rate with the blocked time, of the better raw one", "", more_is_better=True),
)
_SMALL_FIRST = Figure("first_committed_s", "... the first of five", "s")
_SMALL_LATER = Figure("later_committed_s", "... the later ones", "s", target=0.2)
_CHANGED = Figure("moved_to_changed", "bytes read to bytes changed", "", target=1.2)

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
            Figure("p50_us", "tune.report without a wait: p50", "us", target=10.0),
            Figure("p99_us", "tune.report without a wait: p99", "us"),
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
    Workload(
        "pbt",
        "pbt.py",
        (
            Figure("fit_s", "PBT, 4 trials of 200 steps of 20 ms, checkpoints of 1 MB", "s", ideal="ideal_s"),
            Figure("to_ideal", "... of the time that the steps take", "", target=2.0),
        ),
        timeout_s=240.0,
    ),
    Workload(
        "asha_64",
        "asha_64.py",
        (
            Figure("fit_s", "64 ASHA trials, steps of 50 ms, 8 at a time", "s", ideal="ideal_s"),
            Figure("to_ideal", "... of the time that the steps take", "", target=1.3),
        ),
        timeout_s=240.0,
    ),
    Workload(
        "optuna_16",
        "optuna_16.py",
        (Figure("fit_s", "16 trials of 2 s with Optuna, 8 at a time", "s", target=4.5, ideal="ideal_s"),),
        timeout_s=120.0,
    ),
    _checkpoints("checkpoints_1gb", "one", 1, *_RAW),
    _checkpoints("checkpoints_10x100mb", "ten", 1, *_RAW),
    _checkpoints("checkpoints_1000x10kb", "small", 5, _SMALL_FIRST, _SMALL_LATER, *_RAW),
    _checkpoints("checkpoints_near", "near", 10, _CHANGED),
    _checkpoints("checkpoints_near_file", "near_file", 10, _CHANGED),
)
