"""A backend that runs nothing: it fabricates outcomes and remembers what it was asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome


class MemoryBackend:
    """Implements `trialpod.tune.backends.Backend`; each trial reports what `results` holds for it."""

    def __init__(self) -> None:
        self.requests: list[ExperimentRequest] = []
        self.results: list[list[dict[str, Any]]] = [[{"loss": 1.0, "training_iteration": 1}]]
        self.errors: dict[int, str] = {}
        self.outcomes: dict[str, ExperimentOutcome] = {}
        self.before: Callable[[ExperimentRequest], None] = lambda request: None

    def run(self, request: ExperimentRequest) -> ExperimentOutcome:
        self.before(request)
        self.requests.append(request)
        trials = []
        for index, rows in enumerate(self.results):
            path = os.path.join(request.directory, f"trial_{index}")
            os.makedirs(path, exist_ok=True)
            Path(path, "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            error = self.errors.get(index, "")
            trials.append(
                TrialOutcome(
                    trial_id=f"abcde_{index:05d}",
                    name=f"{request.trainable_name}_abcde_{index:05d}",
                    config=dict(request.param_space),
                    status="ERROR" if error else "TERMINATED",
                    path=path,
                    last_result=rows[-1] if rows else None,
                    error=error,
                    traceback=f"Traceback ...\n{error}" if error else "",
                )
            )
        outcome = ExperimentOutcome(
            name=request.name,
            path=request.directory,
            state="Succeeded",
            metric=request.metric,
            mode=request.mode,
            trials=trials,
        )
        self.outcomes[request.directory] = outcome
        return outcome

    def load(self, path: str) -> ExperimentOutcome:
        return self.outcomes[path]

    def can_restore(self, path: str) -> bool:
        return path in self.outcomes


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRIALPOD_")]:
        monkeypatch.delenv(name)
