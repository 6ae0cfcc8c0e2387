"""The parts that Ray Tune documents as its internals, as views of what trialpod has instead.

| Ray's part | what it is here |
|---|---|
| `TunerInternal` | a `Tuner`, under its other name |
| `TrialRunner` | a list of trials, and an experiment that runs them in a thread: a `step` waits for its next event |
| `RayTrialExecutor` | runs the Trainables of single trials in this process, by hand; experiments do not use it |
| `Trial` | one trial: what it is to be, and after a run what became of it |

While an experiment runs it is the engine that decides, and it does not wait for a script. What a script asks for, to
pause a trial or to stop one, is answered as a scheduler would: at the trial's next result.
"""

from __future__ import annotations

from trialpod.legacy.internals.executor import ExecutorEvent, RayTrialExecutor
from trialpod.legacy.internals.trial import Trial
from trialpod.legacy.internals.trial_runner import TrialRunner
from trialpod.legacy.internals.tuner_internal import TunerInternal

__all__ = ["ExecutorEvent", "RayTrialExecutor", "Trial", "TrialRunner", "TunerInternal"]
