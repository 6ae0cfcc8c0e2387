"""Makes the pods, and the TuneTrials that own them, that are not there yet.

A pass begins a *round*, which makes what that pass has found beside the passes, so none waits for a request. Rounds
overlap, and up to `MAX_CONCURRENT_CREATIONS` are made at a time. What else is missing has its turn when one of them
has ended.

Invariants: names are deterministic, so one that is made twice is refused by the API server. A pod is made only when
its TuneTrial is there to own it. Where the server refuses one, only one is asked for at a time until it takes that,
the one that it has refused least often: what is refused of one trial keeps no other from beginning. Groups are made
one after the other. No round begins once this is closed.
"""

from __future__ import annotations

import asyncio
import logging

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods.attention import Look
from trialpod_operator.cluster.pods.binding import PodBinding
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.template import TrialTemplateError
from trialpod_operator.engine.events import AttemptEnded
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 2.0
"""Maximum time that a round waits for the storage before it recreates a pod."""

MAX_CONCURRENT_CREATIONS = 24
"""Maximum number of pods and TuneTrials created at a time: other experiments' requests have their turn in between."""

CLOSE_S = 2.0
"""Maximum time that closing waits for the requests of rounds; the next opening sees what became of later ones."""


class PodCreation:
    """Makes those of one experiment. Owned by the event loop."""

    def __init__(self, experiment_pods: ExperimentPods) -> None:
        self._pods = experiment_pods
        self._rounds: set[asyncio.Task[None]] = set()
        self._making: set[str] = set()  # ids of the trials that they are about
        self._left = False  # whether others could be made when one has ended
        self._error: Exception | None = None  # what the latest was ended by
        self._closed = False

    def begin(self, now: float, look: Look) -> None:
        """Begin to make those of these that are missing.

        Raises:
            Exception: what has ended a round.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._pods.work.notice_room()
        if now >= self._pods.work.rejections.until:
            self._begin_round(*self._find_missing(now, look))
        for binding in look.bindings:
            if self._needs_pod(binding):
                self._pods.attention.add(binding.trial.trial_id)

    async def close(self) -> None:
        """Begin nothing any more, and wait for the requests that were made."""
        self._closed = True
        if self._rounds:
            _, late = await asyncio.wait(self._rounds, timeout=CLOSE_S)
            for each in late:
                each.cancel()
            if late:
                await asyncio.wait(late)

    def _find_missing(self, now: float, look: Look) -> tuple[list[PodBinding], list[Trial]]:
        """Return the attempts without pods, and the other trials without TuneTrials, that no round is about."""
        missing = [binding for binding in look.bindings if self._needs_pod(binding) and now >= binding.not_before]
        missing.sort(key=lambda binding: binding.refused)
        first = self._pods.groups.first_in_line(look.bindings)
        if first is None:
            first = next((binding for binding in missing if binding.group is not None), None)
        late = {binding.trial.trial_id for binding in missing if binding.group is not None and binding is not first}
        # TuneTrials of attempts are made with their pods, unless these wait.
        trials = [
            each
            for each in self._missing_trials(look)
            if each.trial_id in late or not self._has_own_pod(each.trial_id)
        ]
        late |= self._making
        missing = [binding for binding in missing if binding.trial.trial_id not in late]
        trials = [trial for trial in trials if trial.trial_id not in self._making]
        return missing, trials

    def _begin_round(self, missing: list[PodBinding], trials: list[Trial]) -> None:
        room = MAX_CONCURRENT_CREATIONS - len(self._making)
        if self._making and (self._pods.work.rejections.why is not None or any(each.group for each in missing)):
            room = 0
        rest = trials[max(0, room - len(missing)) :]
        for trial in rest:
            self._pods.attention.add(trial.trial_id)
        self._left = bool(rest) or len(missing) > room
        missing, trials = missing[:room], trials[: max(0, room - len(missing))]
        if missing or trials:
            making = {binding.trial.trial_id for binding in missing} | {trial.trial_id for trial in trials}
            self._making |= making
            beside = asyncio.ensure_future(self._make_round(missing, trials, making))
            self._rounds.add(beside)
            beside.add_done_callback(self._rounds.discard)

    async def _make_round(self, missing: list[PodBinding], trials: list[Trial], making: set[str]) -> None:
        rejections = self._pods.work.rejections
        refused = rejections.why is not None
        try:
            await self._make(missing, trials)
        except Exception as error:  # noqa: BLE001 - the next pass raises it
            self._error = error
        finally:
            self._making -= making
        found = [binding for trial_id in making if (binding := self._pods.bindings.get(trial_id)) is not None]
        self._left |= any(map(self._needs_pod, found))  # of another attempt that began meanwhile
        # A pass notes when to try again, and the status says why.
        if self._left or self._error is not None or refused or rejections.why is not None:
            self._left = False
            self._pods.enqueue()

    async def _make(self, missing: list[PodBinding], trials: list[Trial]) -> None:
        if any(binding.recreated or binding.adopted for binding in missing):
            # Another operator may have continued from here, and know that one of these had begun when its pod went
            # away: then what follows is another attempt, and not the same one in a second pod.
            self._pods.durable.require_fencing_check()
            if not await self._pods.durable.wait_committed(COMMIT_TIMEOUT_S):
                self._left = True
                self._pods.attention.sweep_by(self._pods.clock())
                return
        # The first alone: where the server refuses it, it may refuse them all.
        rejections = self._pods.work.rejections
        if missing and (rejections.why is not None or len(missing) > 4):
            if not await self._create(missing[0]):
                return
            missing = missing[1:]
            rejections.ease()
        results = await gather_all(
            *(self._create(binding) for binding in missing), *(self._create_trial(trial) for trial in trials)
        )
        if all(results):
            rejections.clear()

    def _needs_pod(self, binding: PodBinding) -> bool:
        return self._needs_head(binding) or bool(self._pods.groups.missing(binding))

    def _needs_head(self, binding: PodBinding) -> bool:
        if binding.assigned or binding.created_at or binding.expected_by or (binding.stop_at is not None):
            return False
        return self._pods.own_pod(binding) is None

    def _has_own_pod(self, trial_id: str) -> bool:
        binding = self._pods.bindings.get(trial_id)
        return binding is not None and not binding.pod_trial

    def _missing_trials(self, look: Look) -> list[Trial]:
        missing = []
        for trial_id in look.among(self._pods.changed):
            trial = self._pods.durable.engine.state.trials.get(trial_id)
            if (
                trial is not None
                and self._pods.cache.trial(self._pods.key, names.trial_name(self._pods.name, trial_id)) is None
            ):
                missing.append(trial)
        return sorted(missing, key=lambda trial: trial.trial_id)

    async def _create(self, binding: PodBinding) -> bool:
        """Create the pods of an attempt; return False where one was refused."""
        if self._closed or self._pods.bindings.get(binding.trial.trial_id) is not binding:
            return True
        try:
            made = await self._create_pods(binding)
        except TrialTemplateError as error:
            self._fail(binding, error)
            return True
        binding.refused += not made
        return made

    def _fail(self, binding: PodBinding, error: TrialTemplateError) -> None:
        """No pod can be made with the parameters of this trial: another attempt would have the same."""
        trial, attempt = binding.trial, binding.attempt
        if binding.assigned or not binding.current:
            return
        logger.info("attempt %d of %s fails: %s", attempt, trial.trial_id, error)
        end = AttemptEnd(cause="failed", error=str(error), retry=False)
        self._pods.meter.ended(trial.trial_id, attempt, Reason.INVALID_TRIAL_RESOURCE, "failure")
        self._pods.durable.apply(AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end))

    async def _create_pods(self, binding: PodBinding) -> bool:
        if binding.recreated:
            await self._pods.work.refresh_trial(
                binding.trial
            )  # pods whose owner has gone unseen would go with it at once
        if self._needs_head(binding):
            uid = await self._pods.work.create_pod(binding.trial, binding.attempt, binding.resources)
            if uid is None:
                return False
            binding.created_at = self._pods.clock()
            if not binding.assigned:
                binding.pod_uid = uid
        ranks = self._pods.groups.missing(binding)
        uids = await gather_all(*(self._create_worker(binding, rank) for rank in ranks))
        return all(uids)

    async def _create_trial(self, trial: Trial) -> bool:
        return self._closed or await self._pods.work.create_trial(trial)

    async def _create_worker(self, binding: PodBinding, rank: int) -> bool:
        uid = await self._pods.work.create_pod(binding.trial, binding.attempt, binding.resources, rank)
        if uid is not None:
            self._pods.groups.created(binding, rank, uid)
        return uid is not None
