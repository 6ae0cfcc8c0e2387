"""The parts that Ray Tune documents as its internals, as views of what trialpod has instead.

| Ray's part | what it is here |
|---|---|
| `TunerInternal` | a `Tuner`, under its other name |
| `TrialRunner` | a list of trials, and `tune.run`: one `step` runs all that have been added, to their end |
| `RayTrialExecutor` | runs the Trainables of single trials in this process, by hand; experiments do not use it |
| `Trial` | one trial: what it is to be, and after a run what became of it |

While an experiment runs it is the engine that decides, in the process of the local shell or of the operator. Nobody
else can step it, and what would have to says so when it is called.
"""

from __future__ import annotations

from trialpod.tune.internals.executor import ExecutorEvent, RayTrialExecutor
from trialpod.tune.internals.trial import Trial
from trialpod.tune.internals.trial_runner import TrialRunner
from trialpod.tune.internals.tuner_internal import TunerInternal

__all__ = ["ExecutorEvent", "RayTrialExecutor", "Trial", "TrialRunner", "TunerInternal"]
