"""An experiment with deciding code of a user's, its decider and its trials, all in one process and on one clock.

Every part can be killed at any point: the decider loses all that it knows, the operator all that is not in the
journal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.protocol.values import params_encoder
from trialpod.tune.backends import ExperimentRequest
from trialpod_operator.decider.code import load_plan, pack_code, restore_generators
from trialpod_operator.decider.deciding import DecidingEngine
from trialpod_operator.engine.actions import Action, StartAttempt, StopAttempt
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    Recovered,
    ResultsReceived,
    SettingsObserved,
    SuggestionReady,
)
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.decisions.messages import (
    DecisionAnswer,
    DecisionRequest,
    decode_answer,
    decode_request,
    encode,
    read_lessons,
)
from trialpod_operator.experiment.decisions.queue import StaleSessionError
from trialpod_operator.experiment.decisions.stand_ins import FollowedScheduler, FollowedSearch
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import DecidedElsewhere, ExperimentPlan

Report = Callable[[dict[str, Any], int], float]
"""(config, iteration) -> score."""


def request(**given: Any) -> ExperimentRequest:
    """Return a request with deciding code."""
    return ExperimentRequest(
        name="digits",
        storage_path="/",
        trainable=TrainableRef(entrypoint="train:train"),
        trainable_name="train",
        is_class=False,
        metric="score",
        mode="max",
        **given,
    )


def settings_of(given: ExperimentRequest) -> Settings:
    return Settings(
        name=given.name,
        trainable_name=given.trainable_name,
        metric=given.metric,
        mode=given.mode or "max",
        num_samples=given.num_samples,
        max_concurrent=given.max_concurrent,
        max_failures=given.max_failures,
    )


class DeciderProcess:
    """A decider whose calls are made one at a time, in this process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._session = 0
        self._suggestions: list[SuggestionReady] = []
        self._sent = 0
        self.deciding: DecidingEngine | None = None
        self.answer: DecisionAnswer | None = None
        self.waiting: asyncio.Future[DecisionAnswer] | None = None
        self._request: DecisionRequest | None = None

    def call(self, message: DecisionRequest) -> DecisionAnswer | None:
        """Make a call as it travels; None when the answer is held back."""
        found = self._world.experiment.decide(decode_request(encode(message)))
        if isinstance(found, DecisionAnswer):
            return decode_answer(encode(found))
        self.waiting = asyncio.ensure_future(found)
        return None

    async def suggest_before_deciding(self) -> None:
        """Load, decide about what came, and bring the suggestions, but not the choices that asked for them."""
        while self.deciding is None or self.answer is None or self.answer.loading:
            assert await self.step()
        self.deciding.decide(self.answer.items)
        self.deciding.release()
        while self.deciding.search.work():
            pass
        assert self._suggestions
        while self._suggestions:
            await self.step()

    async def step(self) -> bool:
        """Do the next thing; return whether there was one."""
        if self.deciding is None:
            answer = self.call(DecisionRequest())
            assert answer is not None
            if answer.start is None:
                return False
            start = answer.start
            restore_generators(start.code, start.seed)
            plan = load_plan(start.code, start.seed, start.name, lessons=read_lessons(start))
            self.deciding = DecidingEngine(
                plan, self._suggestions.append, start.position, start.snapshot, threaded=False
            )
            self._session, self.answer = answer.session, answer
            return True
        deciding = self.deciding
        if self._suggestions:
            self._sent += 1
            self.call(
                DecisionRequest(
                    session=self._session, suggestion=self._suggestions.pop(0), suggestion_number=self._sent
                )
            )
            return True
        if self.waiting is not None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not self.waiting.done():
                return deciding.search.work()
            self.answer, self.waiting = decode_answer(encode(self.waiting.result())), None
        answer = self.answer
        assert answer is not None
        if answer.ended:
            return False
        if answer.loading:
            for item in answer.items:
                deciding.replay(item.record)
            message = DecisionRequest(
                session=self._session,
                position=deciding.position,
                view=deciding.view(),
                horizons=deciding.horizons(of_all=True),
            )
        else:
            choices = deciding.decide(answer.items)
            message = DecisionRequest(
                session=self._session,
                position=deciding.position,
                choices=choices,
                view=deciding.view(),
                horizons=deciding.horizons(),
            )
            message.snapshot = deciding.release(0.0 if answer.snapshot_wanted else None)
            message.no_snapshot = answer.snapshot_wanted and not deciding.keeps_state
        self.answer = self.call(message)
        if answer.loading and (self.answer is None or not self.answer.loading):
            deciding.release()
        return True


class World(Shell):
    """One experiment on a virtual clock."""

    def __init__(
        self,
        given: ExperimentRequest,
        directory: Path,
        report: Report,
        iterations: int,
        lessons: list[list[Any]] | None = None,
    ) -> None:
        self.request = given
        self.lessons = lessons or []
        self.code = pack_code(given)
        self.directory = directory
        self.now = 1_700_000_000.0
        self._report = report
        self._iterations = iterations
        self.attempts: dict[str, tuple[int, int]] = {}  # running: attempt, results that it has
        self.decisions: list[tuple[Any, ...]] = []
        self.experiment = self._open()
        self.decider: DeciderProcess | None = DeciderProcess(self)

    def _open(self) -> DurableExperiment:
        plan = ExperimentPlan(
            settings=settings_of(self.request),
            search=FollowedSearch(),
            scheduler=FollowedScheduler(),
            stopper=None,
            trainable=self.request.trainable,
            decided=DecidedElsewhere(code=lambda: self.code, seed=7, lessons=self.lessons),
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        return DurableExperiment(plan, self.directory, lambda: self.now)

    def start(self) -> None:
        self.experiment.start(self)
        self.experiment.apply(SettingsObserved(settings=settings_of(self.request)))

    def broken(self, error: BaseException) -> None:
        raise AssertionError("the experiment broke") from error

    def perform(self, action: Action) -> None:
        if isinstance(action, StartAttempt):
            trial = action.trial
            self.attempts[trial.trial_id] = (action.attempt, 0)
            self.experiment.apply(AttemptStarted(trial_id=trial.trial_id, attempt=action.attempt, pid=1))
        elif isinstance(action, StopAttempt):
            self.attempts.setdefault(action.trial.trial_id, (action.attempt, 0))

    def kill_decider(self) -> None:
        """The decider is gone, and a new one comes."""
        if self.decider is not None and self.decider.waiting is not None:
            self.decider.waiting.cancel()
        self.experiment.decisions.end_session()
        self.decider = DeciderProcess(self)

    def kill_operator(self) -> None:
        """The operator is gone, and a new one opens the experiment; the decider finds out."""
        if self.decider is not None and self.decider.waiting is not None:
            self.decider.waiting.cancel()
        self.experiment.journaled._journal.close()
        self.experiment._stop_timers()
        self.experiment = self._open()
        self.experiment.start(self)
        state = self.experiment.engine.state
        if state.settings is None:
            self.experiment.apply(SettingsObserved(settings=settings_of(self.request)))
        live = [(trial.trial_id, trial.attempt) for trial in state.running_trials()]
        self.attempts = {trial.trial_id: (trial.attempt, trial.current.received) for trial in state.running_trials()}
        if state.settings is not None:
            self.experiment.apply(Recovered(live=live))
        self.decider = DeciderProcess(self)

    def train(self) -> bool:
        """Have each trial that may continue report once; return whether any did."""
        moved = False
        for trial_id, (attempt, _) in list(self.attempts.items()):
            trial = self.experiment.engine.state.trials[trial_id]
            if trial.attempt != attempt or not trial.running:
                self.attempts.pop(trial_id, None)
                continue
            known = self.experiment.received(trial_id, attempt)
            answer = self.experiment.answer(trial_id, attempt)
            if known is None or known != trial.current.received:
                continue  # it waits for the answer to its last report
            if answer.decision is not None:
                cause = "stopped" if answer.decision == "stop" else "paused"
                self._end(trial_id, attempt, cause)
                moved = True
                continue
            done = trial.max_iteration or 0
            if done >= self._iterations:
                self._end(trial_id, attempt, "completed")
                moved = True
                continue
            config = msgspec.msgpack.decode(trial.params)
            result = {
                "score": self._report(config, done + 1),
                "training_iteration": done + 1,
                "done": done + 1 >= self._iterations,
            }
            self.experiment.apply(
                ResultsReceived(
                    trial_id=trial_id,
                    attempt=attempt,
                    first=known + 1,
                    results=[msgspec.Raw(params_encoder.encode(result))],
                )
            )
            moved = True
        return moved

    def _end(self, trial_id: str, attempt: int, cause: Any) -> None:
        self.experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=cause)))

    def table(self) -> list[tuple[Any, ...]]:
        """Return the final table: each trial with its config, its end and its last result."""
        trials = self.experiment.engine.state.trials.values()
        return [
            (trial.trial_id, bytes(trial.params), trial.status, trial.results, trial.max_iteration)
            for trial in trials
        ]

    async def run(self, kill: Callable[[int], str] = lambda _step: "", limit: int = 20_000) -> None:
        """Run to the end; `kill` says what is killed before a step."""
        for step in range(limit):
            match kill(step):
                case "decider":
                    self.kill_decider()
                case "operator":
                    self.kill_operator()
                case "snapshot":
                    self.experiment.journaled.snapshot_wanted = True
            if self.experiment.engine.finished:
                return
            self.now += 0.01
            try:
                while self.decider is not None and await self.decider.step():
                    if (what := kill(-1)) == "decider":
                        self.kill_decider()
                    elif what == "operator":
                        self.kill_operator()
            except StaleSessionError:
                self.decider = DeciderProcess(self)
            await asyncio.sleep(0)
            self.train()
        raise AssertionError("it did not end")


def drawn(seed: int, chance: float) -> Callable[[int], str]:
    """Return kills that come at random."""
    random_ = random.Random(seed)

    def kill(_step: int) -> str:
        return random_.choice(["decider", "operator", "snapshot"]) if random_.random() < chance else ""

    return kill
