"""The Job controller in memory: a pod for each Job, conditions from what becomes of the pod.

It behaves as the real one with `backoffLimit: 0`: the first pod that fails fails the Job; a deadline sets
ends the pod, and then Failed. With `retries` it makes another pod in the place of one that failed or is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from fake_api import FakeApi, Object, copied, stamp

LAG_S = 0.3


class FakeJobs:
    """The controller.

    Attributes:
        works: False: nobody looks after Jobs.
        retries: how many pods a Job may make after its first.
    """

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.works = True
        self.retries = 0
        self.made: list[Object] = []
        self._numbers = itertools.count(1)
        self._pods = api.on_pod
        api.on_other = self._job_changed
        api.on_pod = self._pod_changed

    def deadline(self, job: Object) -> None:
        """The Job's activeDeadlineSeconds are over."""
        self._condition(job["metadata"]["name"], "FailureTarget", "DeadlineExceeded", "Job was active too long")
        for pod in self.pods(job["metadata"]["name"]):
            self.api.delete(pod)

    def pods(self, name: str) -> list[Object]:
        """The pods of a Job."""
        return [pod for pod in self.api.all("pods") if _job_of(pod) == name]

    def _job_changed(self, kind: str, item: Object) -> None:
        if item["_plural"] == "jobs" and kind == "ADDED":
            self.made.append(item)
            self._soon(lambda: self._make_pod(item["metadata"]["name"]))

    def _pod_changed(self, kind: str, pod: Object) -> None:
        self._pods(kind, pod)
        name = _job_of(pod)
        if name is None:
            return
        phase = pod["status"].get("phase")
        if phase == "Succeeded":
            self._soon(lambda: self._condition(name, "Complete", "CompletionsReached", "it is done"))
        elif phase == "Failed" or kind == "DELETED":
            self._soon(lambda: self._failed(name))

    def _failed(self, name: str) -> None:
        job = self.api.get("jobs", name)
        if job is None:
            return
        deadline = any(each["type"] == "FailureTarget" for each in (job.get("status") or {}).get("conditions", ()))
        if deadline:
            self._condition(name, "Failed", "DeadlineExceeded", "Job was active too long")
        elif len([pod for pod in self.made if pod["metadata"]["name"] == name]) <= self.retries:
            self.made.append(job)
            self._make_pod(name)
        else:
            self._condition(name, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def _make_pod(self, name: str) -> None:
        job = self.api.get("jobs", name)
        if job is None or not self.works:
            return
        self.api.edit(job, lambda each: each.update(status={"active": 1}))
        template = copied(job["spec"]["template"])
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        metadata = {**template["metadata"], "name": f"{name}-x{next(self._numbers)}", "ownerReferences": [owner]}
        body = {"metadata": metadata, "spec": template["spec"]}
        self.api._create("POST", "/api/v1/namespaces/team/pods", "pods", "team", body)

    def _condition(self, name: str, kind: str, reason: str, message: str) -> None:
        job = self.api.get("jobs", name)
        if job is None:
            return
        made = {"type": kind, "status": "True", "reason": reason, "message": message, "at": stamp(self.api.now())}

        def mark(each: Object) -> None:
            status = each.setdefault("status", {})
            others = [one for one in status.get("conditions") or () if one["type"] != kind]
            status["conditions"] = [*others, made]

        self.api.edit(job, mark)

    def _soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(LAG_S, call)


def _job_of(pod: Object) -> str | None:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return owners[0].get("name") if owners[0].get("kind") == "Job" else None
