"""What an object of another kind says of its pod's end counts when it was asked for after that end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.trial_objects.attempt_objects import AttemptObjects

NAME = "digits-a-0-1"
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {"template": {"spec": {"containers": [{"name": "trial", "image": "any:1"}]}}},
}
MANIFEST = msgspec.convert(
    {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits"},
        "spec": {"trainable": {"command": ["./train"]}, "trialResource": {"template": JOB}},
    },
    TuneExperiment,
)


def job(*conditions: str) -> dict[str, Any]:
    """A Job with these conditions."""
    made = [{"type": each, "status": "True", "reason": "DeadlineExceeded", "message": ""} for each in conditions]
    return {"metadata": {"name": NAME, "namespace": "team", "uid": "u"}, "status": {"conditions": made}}


class SlowServer:
    """Answers with the Job as it is when a request begins, and later."""

    def __init__(self) -> None:
        self.now = 1.0
        self.item = job()
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def get(self, _collection: str, _name: str) -> dict[str, Any]:
        found = self.item
        self.asked.set()
        await self.answers.wait()
        return found


class TestReportedEnd:
    def test_waits_for_an_answer_that_was_asked_for_after_it(self) -> None:
        async def scenario() -> None:
            server: Any = SlowServer()
            kinds = {"batch/v1/Job": "jobs"}
            objects = AttemptObjects(
                "team/digits", lambda: MANIFEST, server, ObjectCache(), lambda: float(server.now), kinds
            )
            objects.put(job())
            asking = asyncio.ensure_future(objects.refresh_one(NAME))
            await server.asked.wait()
            server.now, server.item = 2.0, job("FailureTarget")
            assert objects.judge_report(NAME, AttemptEnd(cause="preempted")) is None
            server.now = 3.0
            server.answers.set()
            await asking
            assert objects.judge_report(NAME, AttemptEnd(cause="preempted")) is None
            await objects.refresh_one(NAME)
            judged = objects.judge_report(NAME, AttemptEnd(cause="preempted"))
            assert judged is not None
            assert (judged.cause, judged.error) == ("failed", "the Job failed: DeadlineExceeded")

        asyncio.run(scenario())
