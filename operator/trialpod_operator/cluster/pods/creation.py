"""Makes the pods, and the TuneTrials that own them, that are not there yet.

Invariants: names are deterministic, so one that is made twice is refused by the API server. A pod is made only when
its TuneTrial is there to own it. Where the server refuses one, it is asked for one alone until it takes that.
"""

from __future__ import annotations

from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import together
from trialpod_operator.cluster.pods.binding import Run
from trialpod_operator.cluster.pods.experiment_pods import Shared
from trialpod_operator.engine.trial import Trial

PROVEN_WITHIN_S = 2.0
"""So long one look waits for the storage before a pod is made again; then other work has its turn."""

MOST_CREATED = 24
"""Pods and TuneTrials that are created in one look: another experiment's requests have their turn in between."""


class PodCreation:
    """Makes those of one experiment.

    Attributes:
        more: whether some are left that could be made at once.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.more = False

    async def create_missing(self, now: float) -> None:
        """Make those that are missing, up to `MOST_CREATED`."""
        self.more = False
        if now < self._shared.work.refusals.until:
            return
        missing = [run for run in self._shared.runs.values() if self._needs_pod(run) and now >= run.not_before]
        first = self._shared.groups.first_in_line(self._shared.runs.values())
        if first is None:
            first = next((run for run in missing if run.group is not None), None)
        late = {run.trial.trial_id for run in missing if run.group is not None and run is not first}
        missing = [run for run in missing if run.trial.trial_id not in late]
        without = {
            run.trial.trial_id for run in self._shared.runs.values() if not run.pod_trial
        } - late  # their pods wait
        trials = [each for each in self._missing_trials() if each.trial_id not in without]
        if not missing and not trials:
            return
        if any(run.remade for run in missing):
            # Another operator may have gone on from here, and know that one of these had begun when its pod went
            # away: then what follows is another attempt, and not the same one in a second pod.
            self._shared.hosted.require_fencing_check()
            if not await self._shared.hosted.wait_committed(PROVEN_WITHIN_S):
                self.more = True
                return
        # The first alone: where the server refuses it, it would refuse them all.
        if (
            missing
            and (self._shared.work.refusals.count or len(missing) > 4)
            and not await self._create(missing.pop(0))
        ):
            return
        self.more = len(missing) + len(trials) > MOST_CREATED
        waiting = [self._create(run) for run in missing[:MOST_CREATED]]
        waiting += [self._shared.work.create_trial(trial) for trial in trials[: max(0, MOST_CREATED - len(waiting))]]
        results = await together(*waiting)
        if all(results):
            self._shared.work.refusals.clear()

    def _needs_pod(self, run: Run) -> bool:
        return self._needs_head(run) or bool(self._shared.groups.missing(run))

    def _needs_head(self, run: Run) -> bool:
        if run.given or run.created_at or run.expect_by or (run.stop_at is not None):
            return False
        return self._shared.own_pod(run) is None

    def _missing_trials(self) -> list[Trial]:
        missing = []
        for trial_id in self._shared.changed:
            trial = self._shared.hosted.host.engine.state.trials.get(trial_id)
            if (
                trial is not None
                and self._shared.seen.trial(self._shared.key, names.trial_name(self._shared.name, trial_id)) is None
            ):
                missing.append(trial)
        return sorted(missing, key=lambda trial: trial.trial_id)

    async def _create(self, run: Run) -> bool:
        """Make the pod of an attempt; return whether it is there."""
        if self._shared.runs.get(run.trial.trial_id) is not run:
            return True
        if run.remade:
            await self._shared.work.look_up_trial(
                run.trial
            )  # pods whose owner has gone unseen would go with it at once
        if self._needs_head(run):
            uid = await self._shared.work.create_pod(run.trial, run.attempt, run.resources)
            if uid is None:
                return False
            run.pod_uid, run.created_at = uid, self._shared.clock()
        ranks = self._shared.groups.missing(run)
        uids = await together(*(self._create_worker(run, rank) for rank in ranks))
        return all(uids)

    async def _create_worker(self, run: Run, rank: int) -> bool:
        uid = await self._shared.work.create_pod(run.trial, run.attempt, run.resources, rank)
        if uid is not None:
            self._shared.groups.created(run, rank, uid)
        return uid is not None
