"""What the watches have shown: identity, order, and little memory for what is over."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import msgspec

from python_steps import count
from trialpod_operator.cluster.cache import ObjectCache

KEY = "team/digits"


def trial(number: int = 0, *, state: str = "RUNNING", version: int = 1, uid: str = "", **spec: Any) -> dict[str, Any]:
    trial_id = f"d75de_{number:05d}"
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneTrial",
        "metadata": {
            "name": f"digits-d75de-{number:05d}",
            "namespace": "team",
            "uid": uid or f"uid-{number}",
            "resourceVersion": str(version),
            "generation": 1,
            "labels": {"trialpod.dev/experiment": "digits", "trialpod.dev/trial-id": trial_id},
            "managedFields": [{"manager": "trialpod", "fieldsV1": {f"f:{index}": {} for index in range(40)}}],
        },
        "spec": {"trialId": trial_id, "params": {"lr": 0.1 * number}, **spec},
        "status": {"state": state, "iteration": number, "conditions": [{"type": "Succeeded", "status": "True"}]},
    }


def pod(name: str = "digits-d75de-00000-1", version: int = 1) -> dict[str, Any]:
    labels = {"trialpod.dev/experiment": "digits"}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}}


def test_the_status_of_a_trial_that_has_ended_can_be_read() -> None:
    seen = ObjectCache()
    seen.update_trial(trial(3, state="TERMINATED"), deleted=False)
    found = seen.trial(KEY, "digits-d75de-00003")
    assert found is not None
    assert found["status"] == trial(3, state="TERMINATED")["status"]
    assert (found["metadata"]["uid"], found["metadata"]["generation"]) == ("uid-3", 1)


def test_state_that_is_here_already_takes_few_steps() -> None:
    """A watch shows what the operator has written itself, and an ended trial is packed."""
    seen, ended = ObjectCache(), trial(state="TERMINATED", version=5)
    first = count(lambda: seen.update_trial(ended, deleted=False))
    assert count(lambda: seen.update_trial(ended, deleted=False)) < first / 2
    assert seen.update_trial(ended, deleted=False) == KEY
    seen.update_trial(trial(state="RUNNING", version=5, uid="another"), deleted=False)
    found = seen.trial(KEY, "digits-d75de-00000")
    assert found is not None
    assert found["status"]["state"] == "RUNNING"


def test_only_a_newer_state_replaces_an_ended_trial() -> None:
    seen = ObjectCache()
    seen.update_trial(trial(state="ERROR", version=5), deleted=False)
    seen.update_trial(trial(state="RUNNING", version=4), deleted=False)
    found = seen.trial(KEY, "digits-d75de-00000")
    assert found is not None
    assert found["status"]["state"] == "ERROR"
    seen.update_trial(trial(state="PENDING", version=6), deleted=False)
    found = seen.trial(KEY, "digits-d75de-00000")
    assert found is not None
    assert found["status"]["state"] == "PENDING"


def test_end_of_an_earlier_trial_of_that_name_is_ignored() -> None:
    seen = ObjectCache()
    seen.update_trial(trial(state="TERMINATED", uid="new"), deleted=False)
    seen.update_trial(trial(uid="old"), deleted=True)
    assert seen.has_trials(KEY)
    seen.update_trial(trial(uid="old"), deleted=False)  # a late answer about it
    found = seen.trial(KEY, "digits-d75de-00000")
    assert found is not None
    assert found["metadata"]["uid"] == "new"


def test_late_news_of_an_earlier_pod_of_that_name_is_ignored() -> None:
    seen, earlier, recreated = ObjectCache(), pod(version=3), pod(version=7)
    recreated["metadata"]["uid"] = "uid-recreated"
    seen.update_pod(recreated, deleted=False)
    seen.update_pod(earlier, deleted=False)
    found = seen.pod(KEY, "digits-d75de-00000-1")
    assert found is not None
    assert found["metadata"]["uid"] == "uid-recreated"


def test_stopping_trial_is_listed_until_gone_or_kept() -> None:
    seen = ObjectCache()
    seen.update_trial(trial(1), deleted=False)
    seen.update_trial(trial(2, stop=True), deleted=False)
    seen.update_trial(trial(3, stop=True), deleted=False)
    assert seen.stops(KEY) == ["d75de_00002", "d75de_00003"]
    seen.update_trial(trial(2, version=2), deleted=False)
    seen.update_trial(trial(3, stop=True), deleted=True)
    assert seen.stops(KEY) == []


def test_what_no_list_shows_any_more_is_dropped() -> None:
    seen = ObjectCache()
    seen.update_trial(trial(1, state="TERMINATED"), deleted=False)
    seen.update_trial(trial(2), deleted=False)
    seen.update_pod(pod(), deleted=False)
    assert seen.versions(KEY).keys() == {"uid-1", "uid-2", "uid-digits-d75de-00000-1"}
    seen.drop(KEY, {"uid-1", "uid-digits-d75de-00000-1"})
    assert seen.versions(KEY).keys() == {"uid-2"}


def test_the_last_state_of_a_pod_that_is_gone_is_remembered() -> None:
    seen = ObjectCache()
    seen.update_pod(pod(), deleted=True)
    gone = seen.deleted_pod("uid-digits-d75de-00000-1")
    assert gone is not None
    assert gone["status"] == {"phase": "Running"}
    assert seen.deleted_pod("another") is None


def test_a_pod_with_empty_fields_is_taken_in() -> None:
    seen = ObjectCache()
    spec = {"containers": None, "initContainers": None, "volumes": None}
    assert seen.update_pod({**pod(), "spec": spec}, deleted=False) == KEY


def test_a_trial_that_has_ended_takes_less_than_two_kilobytes() -> None:
    seen = ObjectCache()
    number = 300
    gc.collect()
    tracemalloc.start()
    for index in range(number):
        seen.update_trial(trial(index, state="TERMINATED"), deleted=False)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / number < 2000


class TestLabelsThatChange:
    def test_a_pod_without_its_experiment_label_is_still_followed(self) -> None:
        seen = ObjectCache()
        seen.update_pod(pod(), deleted=False)
        changed = pod(version=2)
        changed["metadata"]["labels"], changed["status"] = {}, {"phase": "Failed"}
        assert seen.update_pod(changed, deleted=False) == KEY
        found = seen.pod(KEY, "digits-d75de-00000-1")
        assert found is not None
        assert (found["status"], found["metadata"]["labels"]) == ({"phase": "Failed"}, {})
        assert seen.update_pod(changed, deleted=True) == KEY
        assert seen.pods(KEY) == []

    def test_another_pod_without_labels_is_not_ours(self) -> None:
        seen = ObjectCache()
        seen.update_pod(pod(), deleted=False)
        other = pod(version=2)
        other["metadata"] |= {"uid": "another", "labels": {}}
        assert seen.update_pod(other, deleted=False) is None
        assert len(seen.pods(KEY)) == 1

    def test_a_reused_pod_is_found_by_its_latest_trial_alone(self) -> None:
        seen = ObjectCache()
        for number in range(3):
            reused = pod(version=number + 1)
            reused["metadata"]["labels"]["trialpod.dev/trial-id"] = f"t{number}"
            seen.update_pod(reused, deleted=False)
        assert [len(seen.pods_of_trial(KEY, f"t{number}")) for number in range(3)] == [0, 0, 1]
        late = pod(version=1)
        late["metadata"]["labels"]["trialpod.dev/trial-id"] = "t0"
        seen.update_pod(late, deleted=False)
        assert [len(seen.pods_of_trial(KEY, f"t{number}")) for number in range(3)] == [0, 0, 1]

    def test_a_reused_pod_takes_the_memory_of_one_trial(self) -> None:
        seen, sizes = ObjectCache(), []
        for number in range(400):
            reused = pod(version=number + 1)
            reused["metadata"]["labels"]["trialpod.dev/trial-id"] = f"t{number}"
            seen.update_pod(reused, deleted=False)
            sizes.append(len(msgspec.json.encode(seen._pods_by_trial, enc_hook=sorted)))
        assert max(sizes) < 2 * sizes[0]
