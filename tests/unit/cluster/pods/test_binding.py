"""Which pod the attempt of an experiment that is opened again has, as late as the watches may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cluster_objects import NOW, experiment, live_pod, pod_for

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.assignments import Assignments
from trialpod_operator.cluster.pods.binding import PodBinding, adopt
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.reuse import InPlaceReservations
from trialpod_operator.engine.trial import Trial

KEY = "team/digits"


def second_attempt(*, pid: int = 0, reused_pod: str = "", pod_uid: str = "", label: str = "1") -> PodBinding:
    """Adopt it where the watches show the first one's pod, which still runs, and not its own."""
    trial = Trial(trial_id="d75de_00001", index=1, tag="1", params=b"\x80", created_at=NOW)
    trial.start_attempt(NOW)
    trial.start_attempt(NOW + 1)
    trial.locate_attempt(pid, "host", "10.0.0.1", reused_pod, pod_uid)
    seen = ObjectCache()
    first = live_pod(phase="Running", state={"running": {}})
    first["metadata"] = pod_for(experiment(), attempt=1)["metadata"] | {"uid": "first"}
    first["metadata"]["labels"]["trialpod.dev/attempt"] = label
    seen.update_pod(first, deleted=False)
    return adopt(KEY, trial, seen, NOW + 2)


def test_one_that_has_begun_keeps_its_own_pod() -> None:
    """The end of the pod before, which comes late as well, is not its end."""
    found = second_attempt(pid=81)
    assert (found.pod_key, found.pod_uid, found.assigned) == (("d75de_00001", 2), "", True)


def test_one_that_began_in_the_pod_before_keeps_that() -> None:
    found = second_attempt(pid=81, reused_pod="d75de_00001/1")
    assert (found.pod_key, found.pod_uid, found.assigned) == (("d75de_00001", 1), "first", True)


def test_one_that_began_in_a_pod_that_has_gone_has_none() -> None:
    """Another one of that name was made by an operator that did not know that the attempt had begun."""
    found = second_attempt(pid=81, reused_pod="d75de_00001/1", pod_uid="gone")
    assert (found.pod_key, found.pod_uid, found.assigned) == (("d75de_00001", 1), "gone", True)


def test_one_that_has_not_begun_waits_for_the_pod_before() -> None:
    found = second_attempt()
    assert (found.pod_key, found.pod_uid, found.assigned) == (("d75de_00001", 1), "first", False)
    assert found.expected_by > NOW + 2


@pytest.mark.parametrize("label", ["x", "", "0"])
def test_pod_whose_label_a_user_has_changed_is_none_before(label: str) -> None:
    found = second_attempt(label=label)
    assert (found.pod_key, found.pod_uid, found.assigned) == (("d75de_00001", 2), "", False)


class TestAnAttemptThatIsExpectedInThePodBefore:
    """An operator that sees pods late has not seen that it has one of its own."""

    @pytest.fixture
    def began(self) -> list[Any]:
        return []

    @pytest.fixture
    def assignments(self, began: list[Any]) -> Assignments:
        binding = second_attempt()
        durable = SimpleNamespace(
            apply=began.append,
            last_contact={},
            assignment=lambda _trial: SimpleNamespace(trial_id="d75de_00001", attempt=2),
            dirname=lambda _trial: "folder",
            plan=SimpleNamespace(resources_for=lambda _config: {"cpu": 1.0}),
        )
        cache, unused = ObjectCache(), SimpleNamespace(objects=None)
        groups: Any = SimpleNamespace(names=lambda _binding: set())
        pods = ExperimentPods(
            KEY,
            experiment,
            durable,  # type: ignore[arg-type]  # what answering takes
            unused,  # type: ignore[arg-type]
            unused,  # type: ignore[arg-type]
            cache,
            lambda: NOW,
            lambda: None,
            groups,
            InPlaceReservations(lambda: NOW),
        )
        binding.resources = {"cpu": 1.0}
        pods.bind(binding)
        return Assignments(pods)

    def ask(self, assignments: Assignments, attempt: int) -> AssignmentAnswer:
        answer = assignments.assign(
            AssignmentRequest(runner=f"d75de_00001/{attempt}", pid=81, hostname="h", again=attempt == 1)
        )
        assert isinstance(answer, AssignmentAnswer)
        return answer

    def test_is_given_to_its_own_pod_when_that_asks(self, assignments: Assignments, began: list[Any]) -> None:
        assert self.ask(assignments, 2).assignment is not None
        assert self.ask(assignments, 1).assignment is None
        assert [(event.attempt, event.reused_pod) for event in began[:1]] == [(2, "")]

    def test_is_given_to_the_pod_before_when_that_asks_first(
        self, assignments: Assignments, began: list[Any]
    ) -> None:
        assert self.ask(assignments, 1).assignment is not None
        assert self.ask(assignments, 2).assignment is None
        assert [(event.attempt, event.reused_pod) for event in began[:1]] == [(2, "d75de_00001/1")]
