"""Deciding code of a user's, and the process that runs it in a simulated pod."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from trialpod import tune
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import TransportError
from trialpod.protocol.messages import TrainableRef
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.schedulers import FIFOScheduler, TrialScheduler
from trialpod.tune.search import Searcher
from trialpod_operator.decider.code import load_plan, pack_code
from trialpod_operator.decider.deciding import DecidingEngine
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.experiment.decisions.messages import (
    DecisionAnswer,
    DecisionRequest,
    decode_answer,
    encode,
    read_lessons,
)

KEY = ".trialpod/decider.pkl"


class BelowMean(FIFOScheduler):
    """Stops a trial that is below the mean at iteration 2, pauses it at 4 where others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[float] = []
        self.paused: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        iteration = result["training_iteration"]
        if iteration == 2:
            self.scores.append(result["score"])
            if result["score"] < sum(self.scores) / len(self.scores):
                return TrialScheduler.STOP
        if iteration == 4 and trial.trial_id not in self.paused:
            self.paused.append(trial.trial_id)
            return TrialScheduler.PAUSE
        return TrialScheduler.CONTINUE

    def horizons(self, trial: Any) -> Any:
        return None


class Steps(Searcher):
    """Suggests what depends on what it learned."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.best, self.count = 0.0, 0

    def suggest(self, trial_id: str) -> Any:
        self.count += 1
        return {"x": 0.5 + (self.count * 0.37 + self.best) % 1.0}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        if result and "score" in result:  # one that its user stopped may have none
            self.best = max(self.best, result["score"])


def ends(trial_id: str, result: dict[str, Any]) -> bool:
    """A function as `stop`."""
    return bool(result["training_iteration"] >= 5)


KINDS: dict[str, dict[str, Any]] = {
    "scheduler": {"scheduler": BelowMean()},
    "searcher": {"search_alg": Steps()},
    "function": {"stop": ends},
    "all": {"search_alg": Steps(), "scheduler": BelowMean(), "stop": [ends]},
}


@cache
def code_of(kind: str, samples: int) -> bytes:
    """Return the file with the code of a kind."""
    return pack_code(
        ExperimentRequest(
            name="digits",
            storage_path="/",
            trainable=TrainableRef(entrypoint="train:train"),
            trainable_name="train",
            is_class=True,
            param_space={} if "search_alg" in KINDS[kind] else {"x": tune.uniform(0.5, 1.5)},
            metric="score",
            mode="max",
            num_samples=samples,
            **KINDS[kind],
        )
    )


def spec_of(kind: str, samples: int, uri: str) -> dict[str, Any]:
    """Return `spec.decider`."""
    return {"pickle": {"uri": uri, "sha256": hashlib.sha256(code_of(kind, samples)).hexdigest()}}


def run_decider(client: ReportClient) -> int:
    """Be a decider's process, with one thread; return its exit status."""

    def call(request: DecisionRequest) -> DecisionAnswer:
        while True:
            client.wait_until_allowed()
            try:
                with client.lock:
                    return client.call("decisions", encode(request), decode_answer, timeout_s=50.0)
            except TransportError:
                continue

    while True:
        try:
            if _session(call):
                return 0
        except RefusedError as error:
            if error.status != 409:
                return 1


def _session(call: Any) -> bool:
    """Decide until the session is over; return whether no decider is needed any more."""
    answer: DecisionAnswer = call(DecisionRequest())
    if answer.start is None:
        return True
    start, session, outbox, sent = answer.start, answer.session, list[SuggestionReady](), 0
    plan = load_plan(start.code, start.seed, start.name, lessons=read_lessons(start))
    deciding = DecidingEngine(plan, outbox.append, start.position, start.snapshot, threaded=False)
    while answer.loading:
        for item in answer.items:
            deciding.replay(item.record)
        answer = call(
            DecisionRequest(
                session=session,
                position=deciding.position,
                view=deciding.view(),
                horizons=deciding.horizons(of_all=True),
            )
        )
    deciding.release()
    while not answer.ended:
        request = DecisionRequest(
            session=session,
            choices=deciding.decide(answer.items),
            position=deciding.position,
            view=deciding.view(),
            horizons=deciding.horizons(),
        )
        request.snapshot = deciding.release(0.0 if answer.snapshot_wanted else None)
        while deciding.search.work():
            pass
        if answer.snapshot_wanted and request.snapshot is None:
            request.snapshot = deciding.snapshot()
        while outbox:  # perhaps before the choices that asked for it
            sent += 1
            call(DecisionRequest(session=session, suggestion=outbox.pop(0), suggestion_number=sent))
        answer = call(request)
    return not answer.restart
