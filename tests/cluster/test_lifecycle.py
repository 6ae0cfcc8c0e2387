"""What users do with an experiment while it runs: look, edit, suspend, stop one trial, delete."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle
from cluster_access import Cluster
from experiments import STEPS, Experiment, assert_unbroken, counts, manifest
from operator_release import Operator


def test_trials_run_as_pods_with_data_in_the_bucket(operator: Operator, namespace: Cluster) -> None:
    source = STEPS.replace("time.sleep", "print('step', self.count + 1); time.sleep")
    experiment = Experiment.apply(
        namespace,
        manifest(namespace, "plain", steps=6, source=source, numSamples=3, resources={"nvidia.com/gpu": 1}),
    )
    pod = experiment.running_pod()
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "TuneTrial"
    status = experiment.wait_until_over()
    assert (status["trials"]["terminated"], status["trials"]["progress"]) == (3, "3/3")
    assert experiment.condition("Succeeded")["status"] == "True"
    for results in experiment.results():
        assert_unbroken(counts(results), 6)
    assert len(experiment.checkpoint_iterations()) == 6
    for trial in experiment.trials():
        assert trial["status"]["state"] == "TERMINATED"
        assert trial["status"]["iteration"] == 6
        assert trial["status"]["checkpoint"]["iteration"] == 6
        assert trial["spec"]["params"]["x"]
    namespace.wait_for(lambda: not experiment.pods(), "the pods are deleted")
    namespace.wait_for(lambda: experiment.logs().count("step 6") == 3, "what they printed is kept")
    columns = namespace.kubectl("get", "te", "plain")
    assert "3/3" in columns


def test_more_samples_while_it_runs_and_after_it_has_ended(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "more", steps=4))
    experiment.running_pod()
    namespace.kubectl("patch", "te", "more", "--type=merge", "-p", '{"spec": {"numSamples": 2}}')
    assert experiment.wait_until_over()["trials"]["terminated"] == 2
    namespace.kubectl("patch", "te", "more", "--type=merge", "-p", '{"spec": {"numSamples": 3}}')
    experiment.wait(lambda status: status.get("trials", {}).get("terminated") == 3, "the third trial ends")
    experiment.wait_until_over()
    assert len(experiment.results()) == 3


def test_a_change_of_anything_but_the_budget_is_refused(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "fixed", steps=200))
    experiment.running_pod()
    said = namespace.kubectl(
        "patch", "te", "fixed", "--type=merge", "-p", '{"spec": {"metric": "other"}}', check=False
    )
    assert "metric" in said
    assert "cannot" in said or "immutable" in said or "may" in said


def test_suspended_trials_checkpoint_and_resume(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "pause", steps=60))
    experiment.wait_for_checkpoint(2)
    namespace.kubectl("patch", "te", "pause", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    experiment.wait(lambda status: status.get("trials", {}).get("running") == 0, "nothing runs")
    assert experiment.condition("Suspended")["status"] == "True"
    namespace.wait_for(lambda: not experiment.pods(), "no pod is left")
    namespace.kubectl("patch", "te", "pause", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    status = experiment.wait_until_over()
    assert (status["failures"], status["disruptions"]) == (0, 0)
    assert_unbroken(counts(experiment.results()[0]), 60)
    assert experiment.trial_status()["attempt"] == 2


def test_deleting_a_running_trial_resource_stops_only_it(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "one", steps=50, numSamples=2))
    namespace.wait_for(lambda: experiment.trial_status(0).get("state") == "RUNNING", "the first trial runs")
    experiment.running_pod()
    name = experiment.trials()[0]["metadata"]["name"]
    namespace.kubectl("patch", "tt", name, "--type=merge", "-p", '{"spec": {"stop": true}}')
    experiment.wait_until_over()
    first, second = (trial["status"] for trial in experiment.trials())
    assert first["state"] == second["state"] == "TERMINATED"
    assert first["iteration"] < 50
    assert first["lastDecision"]["reason"] == "user"
    assert second["iteration"] == 50


def test_deleted_trial_resource_is_recreated_and_trial_resumes(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "removed", steps=50))
    experiment.wait_for_checkpoint(3)
    before = experiment.trials()[0]["metadata"]
    namespace.kubectl("delete", "tt", before["name"], "--wait=false")
    status = experiment.wait_until_over()
    after = experiment.trials()[0]
    assert (after["metadata"]["name"], after["status"]["state"]) == (before["name"], "TERMINATED")
    assert after["metadata"]["uid"] != before["uid"]
    assert status["failures"] == 0
    assert_unbroken(counts(experiment.results()[0]), 50, repeated=5)


def test_finished_experiment_expires_and_its_data_stay(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "brief", steps=2, ttlSecondsAfterFinished=3))
    namespace.wait_for(lambda: experiment.object == {}, "it is deleted", 120)
    namespace.wait_for(lambda: not namespace.list("tunetrials"), "its trials are deleted")
    assert_unbroken(counts(experiment.results()[0]), 2)


def test_deletion_removes_data_only_with_that_policy(operator: Operator, namespace: Cluster) -> None:
    kept = Experiment.apply(namespace, manifest(namespace, "kept", steps=300))
    document = manifest(namespace, "dropped", steps=300)
    document["spec"]["storage"]["deletionPolicy"] = "Delete"
    dropped = Experiment.apply(namespace, document)
    for experiment in (kept, dropped):
        experiment.wait_for_checkpoint(1)
    namespace.kubectl("delete", "te", "kept", "dropped", "--timeout=90s", timeout=100)
    namespace.wait_for(lambda: not namespace.list("pods"), "their pods are gone", 60)
    assert kept.storage.list()
    assert dropped.storage.list() == []


def test_code_comes_from_a_config_map_or_a_pickle_in_the_bucket(operator: Operator, namespace: Cluster) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code", "namespace": namespace.namespace},
            "data": {"steps.py": STEPS},
        }
    )
    mapped = manifest(namespace, "mapped", steps=3)
    mapped["spec"]["trainable"] = {"configMapRef": {"name": "code", "key": "steps.py", "entrypoint": "steps:Steps"}}
    first = Experiment.apply(namespace, mapped)

    def train(config: dict[str, Any]) -> None:
        from trialpod import tune

        for count in (1, 2, 3):
            tune.report({"score": config["x"] * count, "count": count})

    data = cloudpickle.dumps(train)
    Experiment(namespace, "code").storage.write("trainable.pkl", data)
    import hashlib

    pickled = manifest(namespace, "pickled")
    uri = f"{pickled['spec']['storage']['uri']}/code/trainable.pkl"
    pickled["spec"]["trainable"] = {"pickle": {"uri": uri, "sha256": hashlib.sha256(data).hexdigest()}}
    pickled["spec"]["checkpoint"] = {}
    second = Experiment.apply(namespace, pickled)
    for experiment in (first, second):
        assert experiment.wait_until_over()["trials"]["terminated"] == 1, experiment.trial_status()
        assert_unbroken(counts(experiment.results()[0]), 3)


def test_pods_that_failed_stay_when_the_manifest_says_so(operator: Operator, namespace: Cluster) -> None:
    source = "def train(config):\n    print('before the end')\n    raise ValueError('on purpose')\n"
    document = manifest(namespace, "fails", source=source, checkpoint={}, finishedPods="KeepFailed")
    experiment = Experiment.apply(namespace, document)
    assert experiment.wait_until_over()["trials"]["error"] == 1
    assert "on purpose" in experiment.trial_status()["message"]
    namespace.wait_for(lambda: "before the end" in experiment.logs(), "its log is kept", 90)
    (pod,) = experiment.pods()
    assert pod["status"]["phase"] == "Failed"
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert "on purpose" in state["message"]


def test_a_secret_that_comes_late_is_waited_for(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "late", steps=2)
    document["spec"]["storage"]["credentialsSecret"] = "later"
    experiment = Experiment.apply(namespace, document)
    waiting = experiment.wait(lambda _: experiment.condition("Stalled"), "it says what it waits for", 90)
    assert (waiting["reason"], "later" in waiting["message"]) == ("SecretNotFound", True)
    secret = namespace.get("secret", "minio")
    assert secret is not None
    keys = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "later", "namespace": namespace.namespace},
            "stringData": keys,
        }
    )
    assert experiment.wait_until_over()["trials"]["terminated"] == 1
    assert not experiment.condition("Stalled")


def test_error_only_the_operator_sees_stalls_without_pods(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "typo", scheduler={"name": "ashaa"})
    experiment = Experiment.apply(namespace, document)
    stalled = experiment.wait(lambda _: experiment.condition("Stalled"), "it stalls", 90)
    assert stalled["reason"] == "InvalidSpec"
    assert "spec.scheduler.name" in stalled["message"]
    assert "asha" in stalled["message"]
    assert experiment.trials() == []
    assert experiment.pods() == []


def test_namespace_deletion_leaves_the_operator_healthy(
    operator: Operator, cluster: Cluster, namespace: Cluster
) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "doomed", steps=300, numSamples=2))
    experiment.running_pod()
    cluster.delete_namespace(namespace.namespace, wait=True)
    assert cluster.get("namespace", namespace.namespace) is None
    operator.wait_ready()
    assert "Traceback" not in operator.logs()


def test_pods_authenticate_and_speak_for_their_trial_only(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "tokens", steps=300, numSamples=2))

    def reported() -> bool:
        iterations = [(trial.get("status") or {}).get("iteration", 0) for trial in experiment.trials()]
        return len(iterations) == 2 and min(iterations) > 0

    namespace.wait_for(reported, "both have reported, and the operator knows their pods", 120)
    mine, other = experiment.pods()
    other_id = other["metadata"]["labels"]["trialpod.dev/trial-id"]
    program = f"""
import os
from trialpod.protocol.client import ReportClient, RefusedError
from trialpod.protocol.messages import ReportRequest
client = ReportClient(os.environ['TRIALPOD_ADDRESS'], os.environ['TRIALPOD_EXPERIMENT'],
                      token_file=os.environ['TRIALPOD_TOKEN_FILE'], ca_file=os.environ['TRIALPOD_CA_FILE'])
try:
    print(client.call('report', client.encode(ReportRequest(trial_id='{other_id}', attempt=1)), bytes))
except RefusedError as error:
    print('refused:', error)
"""
    said = namespace.exec(mine["metadata"]["name"], "python", "-c", program)
    assert "refused:" in said
    assert "does not belong to trial" in said


def test_search_learns_from_an_experiment_beside_it(operator: Operator, namespace: Cluster) -> None:
    first = Experiment.apply(namespace, manifest(namespace, "first", steps=2, numSamples=3))
    best = first.wait_until_over()["best"]["params"]["x"]
    search = {"name": "auto", "parameters": {"warm_start": "first"}}
    second = Experiment.apply(namespace, manifest(namespace, "second", steps=2, searchAlgorithm=search))
    second.wait_until_over()
    assert [trial["spec"]["params"]["x"] for trial in second.trials()] == [best]
    learns = {"algorithm": "auto", "warmStart": {"auto": True}}
    third = Experiment.apply(namespace, manifest(namespace, "third", steps=2, numSamples=1, **learns))
    third.wait_until_over()
    assert [trial["spec"]["params"]["x"] for trial in third.trials()] == [best]
