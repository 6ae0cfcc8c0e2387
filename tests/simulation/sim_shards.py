"""What must hold of several active operators: at every moment one serves each experiment, or soon one does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trialpod_operator.cluster.shards.membership import DURATION_S

if TYPE_CHECKING:
    from sim_kernel import Process
    from sim_world import Hosted, SimOperator, SimWorld

_PATH = re.compile(r"/namespaces/(?P<namespace>[^/]+)/(pods|tunetrials|tuneexperiments)(/(?P<name>[^/]+))?")

EVERY_S = 0.25
UNSERVED_S = 10.0
"""Maximum time from the last trouble of an operator, or of its wires, until each experiment is served."""


class ShardWatch:
    """Looks who serves what."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self._fingerprint: object = None
        self._quiet_since = 0.0
        self._unserved_since: dict[str, float] = {}
        self.longest_s = 0.0

    def look(self) -> None:
        """Look now, and again in a moment."""
        world, now = self.world, self.world.loop.time()
        if world.ended or world.kernel.over:
            return
        cut = world.weather.cut
        fingerprint = [
            (each.process.name, each.process.alive, each.process.stopped, each.kube.cut, each.process in cut)
            for each in world.operators
        ]
        troubled = world.api_away or world.flaky or world.lost_answers or world.weather.troubled
        troubled = troubled or any(not each.kube.road.is_set() for each in world.alive)
        if troubled or fingerprint != self._fingerprint:
            self._fingerprint, self._quiet_since = fingerprint, now
        for experiment in world.experiments:
            uid = str((experiment.resource.get("metadata") or {}).get("uid") or "")
            if uid:
                self._judge(experiment, uid, now)
        world.after(EVERY_S, self.look)

    def record_write(self, process: Process, path: str) -> None:
        """An operator changes something at the API server: it is the one that serves that."""
        world = self.world
        found = _PATH.search(path)
        if found is None:
            return
        namespace, name = found["namespace"], found["name"] or ""
        of_it = [
            each
            for each in world.experiments
            if each.plan.namespace == namespace and (name == each.name or name.startswith(f"{each.name}-"))
        ]
        if not of_it:
            return
        experiment = max(of_it, key=lambda each: len(each.name))
        uid = str((experiment.resource.get("metadata") or {}).get("uid") or "")
        writer = next(each for each in world.operators if each.process is process)
        wrong = f"shards: {process.name} writes {path} at {world.loop.time():.1f} s"
        if uid and not writer.membership.ownership.serves(uid):
            world.kernel.errors.append(f"{wrong}, which it does not serve")
        elif uid and not self._valid(writer):
            of_one_group = (each for each in world.alive if each.lease_name == writer.lease_name)
            acting = [each.process.name for each in of_one_group if each is not writer and self._acts(each, uid)]
            if acting:
                world.kernel.errors.append(f"{wrong}, served by {acting}")

    @staticmethod
    def _valid(operator: SimOperator) -> bool:
        """Whether its Lease is: asked here, whatever it believes of that."""
        membership = operator.membership
        age_s = operator.world.kernel.now - min(membership._renewed_at, membership._read_at)
        return membership.joined and age_s < DURATION_S

    def _acts(self, operator: SimOperator, uid: str) -> bool:
        serves = operator.membership.ownership.serves(uid)
        return serves and not operator.process.stopped and self._valid(operator)

    def _judge(self, experiment: Hosted, uid: str, now: float) -> None:
        world = self.world
        serving = [each for each in world.alive if each.membership.joined and each.membership.ownership.serves(uid)]
        # One of other Leases knows nothing of these, which is a fault of its own.
        of_one_group = [each for each in serving if each.lease_name == world.operators[0].lease_name]
        acting = [each for each in of_one_group if self._acts(each, uid)]
        if len(acting) > 1:
            names = [each.process.name for each in acting]
            world.kernel.errors.append(f"shards: {experiment.key} is served by {names} at {now:.1f} s")
        if any(not each.process.stopped for each in serving):
            self._unserved_since.pop(uid, None)
            return
        since = self._unserved_since.setdefault(uid, now)
        waited_s = now - max(since, self._quiet_since)
        self.longest_s = max(self.longest_s, waited_s)
        able = (not each.process.stopped and not each.kube.cut for each in world.alive)
        if waited_s > UNSERVED_S and any(able):
            self._unserved_since[uid] = now
            world.kernel.errors.append(f"shards: nobody has served {experiment.key} for {waited_s:.1f} s")
