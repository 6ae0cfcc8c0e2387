"""`trialpod why` and `trialpod status` against a stand-in for the API server."""

from __future__ import annotations

import datetime as dt
import json
import re
import socket
from typing import Any

import pytest
from api_server import ApiServer, Run, condition_of, experiment_object, trial_object
from display_views import experiment, trial

from trialpod.storage.lock import LockOwner
from trialpod_operator.cluster.shards.assignment import SHARDS, Shard, ShardMap
from trialpod_operator.commands.why import local_findings, local_text
from trialpod_operator.display.view import TrialRow
from trialpod_operator.view.reading import Activity

Json = dict[str, Any]


def waiting_experiment() -> Json:
    message = "no trial runs: climb-d75de-00000: not enough cpu; ask for less in spec.resources"
    return experiment_object(
        "climb",
        conditions=[condition_of("Ready", "False", "Unschedulable", message)],
        trials={"pending": 2, "starting": 2, "running": 0, "done": 1, "total": 4, "error": 1, "progress": "1/4"},
        waiting={"reason": "Unschedulable", "message": "climb-d75de-00000: not enough cpu", "count": 2},
        startTime="2026-11-21T10:00:00Z",
        storageUri="s3://tune/runs/climb",
        disruptions=2,
    )


def test_why_groups_pending_and_failed_trials_with_remedy(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", waiting_experiment())
    why = {"reason": "Unschedulable", "message": "not enough cpu; ask for less in spec.resources"}
    server.put("tunetrials", trial_object("climb", 0, "PENDING", waiting=why))
    server.put("tunetrials", trial_object("climb", 1, "PENDING", waiting=why))
    failed = {"message": "ran out of memory; raise spec.resources.memory", "storageUri": "s3://tune/runs/climb/t2"}
    server.put("tunetrials", trial_object("climb", 2, "ERROR", **failed))
    server.put("events", {
        "metadata": {"name": "e1"}, "type": "Warning", "reason": "Waiting", "message": "no trial runs",
        "lastTimestamp": "2026-11-21T10:00:00Z", "involvedObject": {"name": "climb"},
    })  # fmt: skip
    text = trialpod("why", "climb")
    assert text.startswith("climb (namespace team): Waiting, 1/4 trials done, 2 starting\n")
    assert re.search(r"Ready=False Unschedulable, [\d.]+ \S+( \d+ \w+)? ago: ", text)
    assert "  Unschedulable: not enough cpu; ask for less in spec.resources\n    d75de_00000, d75de_00001\n" in text
    assert "  1 trial: ran out of memory; raise spec.resources.memory\n" in text
    assert "    d75de_00002; log: s3://tune/runs/climb/t2/log.txt\n" in text
    assert "2 attempts ended by the cluster; no trial fails by that" in text
    assert "Warning Waiting: no trial runs" in text
    assert "next: kubectl -n team get pods -l trialpod.dev/experiment=climb" in text
    assert "next: trialpod logs climb d75de_00002 -n team" in text
    assert "next: trialpod results climb -n team --failed" in text


def test_why_shows_attempts_that_failed_while_they_end(server: ApiServer, trialpod: Run) -> None:
    running = condition_of("Ready", "True", "Running", "trials are running")
    server.put("tuneexperiments", experiment_object("climb", conditions=[running]))
    ready = condition_of("Ready", "False", "AttemptFailed", "worker 1 broke")
    server.put("tunetrials", trial_object("climb", 0, "RUNNING", message="worker 1 broke", conditions=[ready]))
    text = trialpod("why", "climb")
    assert "being ended, each within its grace period:\n  1 trial: worker 1 broke\n    d75de_00000\n" in text
    assert "no obstacle" not in text


def test_why_says_one_message_once_for_all_trials(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", waiting_experiment())
    for index in range(3):
        name = f"climb-d75de-{index:05d}"
        failed = {"message": f"ran out of memory ({name}-1 of {name})", "podName": f"{name}-1"}
        server.put("tunetrials", trial_object("climb", index, "ERROR", **failed))
    text = trialpod("why", "climb")
    assert "  3 trials: ran out of memory (climb-d75de-00000-1 of climb-d75de-00000)\n" in text
    assert text.count("ran out of memory") == 1


def test_why_uses_experiment_while_trials_have_no_reason(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", waiting_experiment())
    assert "pending trials:\n  Unschedulable: climb-d75de-00000: not enough cpu\n" in trialpod("why", "climb")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (experiment_object("climb"), "no operator has seen its latest change"),
        (
            experiment_object(
                "climb", conditions=[condition_of("Stalled", "True", "InvalidSpec", "spec.stop is wrong")]
            ),
            "next: correct the manifest, check it with `trialpod validate FILE`",
        ),
        (
            experiment_object(
                "climb", conditions=[condition_of("Stalled", "True", "SecretNotFound", "no Secret minio")]
            ),
            "next: correct what the message names",
        ),
        (
            experiment_object("climb", conditions=[condition_of("Suspended", "True", "Suspended", "suspended")]),
            "next: trialpod resume climb -n team",
        ),
        (
            experiment_object("climb", conditions=[condition_of("Ready", "True", "Running", "trials are running")]),
            "no obstacle is known",
        ),
        (
            experiment_object(
                "climb", conditions=[condition_of("Ready", "False", "StorageUnavailable", "it does not answer")]
            ),
            "next: check the S3 server; the experiment continues when it answers",
        ),
    ],
)
def test_why_says_what_to_do_next(server: ApiServer, trialpod: Run, item: Json, expected: str) -> None:
    server.put("tuneexperiments", item)
    assert expected in trialpod("why", "climb")


def test_why_knows_the_way_out_of_a_deletion_that_hangs(server: ApiServer, trialpod: Run) -> None:
    item = experiment_object("climb", conditions=[])
    item["metadata"] |= {"deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["trialpod.dev/storage"]}
    server.put("tuneexperiments", item)
    assert """--type=merge -p '{"metadata":{"finalizers":null}}'""" in trialpod("why", "climb")


def test_why_is_there_for_programs_too(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", waiting_experiment())
    found = json.loads(trialpod("why", "climb", "--json"))
    assert found["state"] == "Waiting"
    assert found["conditions"]["Ready"]["reason"] == "Unschedulable"


def test_status_shows_the_trials_and_the_best_one(server: ApiServer, trialpod: Run) -> None:
    item = experiment_object(
        "climb",
        conditions=[condition_of("Ready", "True", "Running")],
        trials={"running": 1, "terminated": 2, "done": 2, "total": 4},
        best={"trial": "climb-d75de-00001", "trialId": "d75de_00001", "value": "0.25", "iteration": 3},
        startTime="2026-11-21T10:00:00Z",
        storageUri="s3://tune/runs/climb",
        resources={"trial": {"used": "2", "useful": "1.5", "lost": "0.5"}, "cpu": {"used": "4", "useful": "4"}},
    )
    server.put("tuneexperiments", item)
    for index in range(2):
        server.put("tunetrials", trial_object("climb", index, "TERMINATED", value=str(0.5 / (index + 1))))
    server.put("tunetrials", trial_object("climb", 2, "RUNNING", nodeName="a"))
    text = trialpod("status", "climb")
    assert "\ntrial time: 2 h 00 min (75% useful, 25% lost to interruptions)\n" in text
    assert text.startswith("climb: Running, 2/4 trials, 1 running")
    assert "d75de_00001  TERMINATED     3  0.25" in text
    assert "best trial: climb-d75de-00001 with loss=0.25 at iteration 3" in text
    assert "raise --limit" in trialpod("status", "climb", "--limit", "1")
    assert len(json.loads(trialpod("status", "climb", "--json"))["trials"]) == 3


def test_a_pod_that_does_not_run_yet_is_no_running_trial(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", waiting_experiment())
    why = {"reason": "Unschedulable", "message": "not enough cpu"}
    server.put("tunetrials", trial_object("climb", 0, "PENDING", iteration=0, waiting=why))
    text = trialpod("status", "climb")
    assert "running" not in text.splitlines()[0]
    assert "d75de_00000  PENDING" in text
    assert "why: trialpod why climb -n team" in text


def test_an_experiment_that_is_not_there_is_status_2(trialpod: Run) -> None:
    assert "there is no TuneExperiment nope in the namespace team" in trialpod("why", "nope", status=2)
    assert "there is no TuneExperiment nope in the namespace x" in trialpod("status", "nope", "-n", "x", status=2)


def test_why_shows_how_full_the_queue_is_and_who_is_before(server: ApiServer, trialpod: Run) -> None:
    gated = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    labels = {"trialpod.dev/experiment": "climb", "kueue.x-k8s.io/queue-name": "research"}
    pod = {"metadata": {"name": "climb-1", "uid": "u1", "namespace": "team", "labels": labels}, "spec": gated}
    server.put("pods", pod)
    server.put("tuneexperiments", waiting_experiment())
    why = {"reason": "Queued", "message": "Kueue has not admitted the pod from the queue research"}
    server.put("tunetrials", trial_object("climb", 0, "PENDING", waiting=why))
    kueue, team = "/apis/kueue.x-k8s.io/v1beta2", "namespaces/team"
    pending = f"/apis/visibility.kueue.x-k8s.io/v1beta2/{team}/localqueues/research/pendingworkloads"
    used = [{"name": "default", "resources": [{"name": "cpu", "total": "3"}]}]
    local = {"admittedWorkloads": 3, "pendingWorkloads": 2, "flavorsReservation": used}
    server.routes["GET", f"{kueue}/{team}/localqueues/research"] = {"spec": {"clusterQueue": "all"}, "status": local}
    for path in (f"{kueue}/clusterqueues/all", pending):
        server.routes["GET", path] = {"code": 403, "reason": "Forbidden", "message": "no"}
    line = "queue research: 3 admitted, 2 waiting; ClusterQueue all: in use cpu 3 (default)\n"
    assert line in trialpod("why", "climb")  # who may not see more
    owner = {"name": "w1", "ownerReferences": [{"uid": "u1"}]}
    server.routes["GET", f"{kueue}/{team}/workloads"] = {"items": [{"metadata": owner}]}
    waiting = [{"metadata": {"name": "w1"}, "positionInClusterQueue": 4}]
    server.routes["GET", pending] = {"items": waiting}
    assert line.replace("\n", "; 4 before the first of these\n") in trialpod("why", "climb")
    assert json.loads(trialpod("why", "climb", "--json"))["queues"][0].startswith("research: 3 admitted")


LEASE = "/apis/coordination.k8s.io/v1/namespaces/trialpod-system/leases/trialpod-operator"


FACTS = {"metadata": {"annotations": {"trialpod.dev/reports": "https://trialpod-operator.trialpod-system.svc:8443"}}}
CONFIG_MAP = "/api/v1/namespaces/team/configmaps/trialpod-ca"


class TestNoOperator:
    """Nobody updates what the resources say: that is said before anything else."""

    @pytest.fixture(autouse=True)
    def facts(self, server: ApiServer) -> None:
        server.routes["GET", CONFIG_MAP] = FACTS

    @pytest.mark.parametrize("command", ["why", "status"])
    @pytest.mark.parametrize(
        ("lease", "words"),
        [
            ({"holderIdentity": "a", "renewTime": "2026-01-01T10:00:00.000000Z"}, "was renewed"),
            (None, "there is no Lease"),
            ({"holderIdentity": "", "renewTime": "2026-01-01T10:00:00.000000Z"}, "no replica holds the Lease"),
        ],
    )
    def test_is_said(self, server: ApiServer, trialpod: Run, command: str, lease: Json | None, words: str) -> None:
        ready = condition_of("Ready", "True", "Running", "trials are running")
        server.put("tuneexperiments", experiment_object("climb", conditions=[ready]))
        if lease is not None:
            server.routes["GET", LEASE] = {"spec": {"leaseDurationSeconds": 15, **lease}}
        text = trialpod(command, "climb")
        assert "no operator is active" in text
        assert words in text
        assert "no obstacle is known" not in text

    def test_one_at_work_is_not_mentioned(self, server: ApiServer, trialpod: Run) -> None:
        ready = condition_of("Ready", "True", "Running", "trials are running")
        server.put("tuneexperiments", experiment_object("climb", conditions=[ready]))
        now = dt.datetime.now(dt.UTC).isoformat()
        server.routes["GET", LEASE] = {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": now}}
        assert "no obstacle is known" in trialpod("why", "climb")

    @pytest.mark.parametrize("command", ["why", "status"])
    def test_handover_to_another_is_said(self, server: ApiServer, trialpod: Run, command: str) -> None:
        ready = condition_of("Ready", "True", "Running", "trials are running")
        server.put("tuneexperiments", experiment_object("climb", conditions=[ready]))
        now = dt.datetime.now(dt.UTC).isoformat()
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 6, "renewTime": now}
        moving = ShardMap(shards=(Shard(owner="a", epoch=1, heir="b", changed=2),) * SHARDS)
        metadata = {"annotations": {"trialpod.dev/shards": moving.encode()}}
        server.routes["GET", LEASE] = {"metadata": metadata, "spec": spec}
        assert "is handed over by operator a to b" in trialpod(command, "climb")

    @pytest.mark.parametrize("command", ["why", "status"])
    def test_unserved_shard_is_said(self, server: ApiServer, trialpod: Run, command: str) -> None:
        ready = condition_of("Ready", "True", "Running", "trials are running")
        server.put("tuneexperiments", experiment_object("climb", conditions=[ready]))
        now = dt.datetime.now(dt.UTC).isoformat()
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 6, "renewTime": now}
        since = dict.fromkeys(map(str, range(SHARDS)), "2026-01-01T10:00:00Z")
        metadata = {"annotations": {"trialpod.dev/unserved-shards": json.dumps(since)}}
        server.routes["GET", LEASE] = {"metadata": metadata, "spec": spec}
        text = trialpod(command, "climb")
        assert "no operator has served the experiment" in text
        assert "since 2026-01-01T10:00:00Z" in text


@pytest.mark.parametrize(("spec", "words"), [({}, "would end them"), ({"progressDeadline": "1h"}, "end after 1 h")])
def test_why_mentions_silent_trials(server: ApiServer, trialpod: Run, spec: Json, words: str) -> None:
    ready = condition_of("Ready", "True", "Running", "trials are running")
    server.put("tuneexperiments", experiment_object("climb", spec, conditions=[ready]))
    server.put("tunetrials", trial_object("climb", 0, "RUNNING", lastReportTime="2026-01-01T10:00:00Z"))
    now = dt.datetime.now(dt.UTC).isoformat()
    server.put("tunetrials", trial_object("climb", 1, "RUNNING", lastReportTime=now))
    text = trialpod("why", "climb")
    assert "have reported nothing for up to" in text
    assert words in text
    assert "    d75de_00000\n" in text + "\n"
    assert "no obstacle is known" not in text


def local_why(*rows: TrialRow, **changes: Any) -> str:
    activity = Activity(LockOwner(pid=1, host=socket.gethostname(), started=0.0, command="trialpod run"), runs=True)
    found = local_findings(experiment(list(rows), **changes), activity, now=100.0)
    return local_text(found, "trialpod-results/digits")


class TestSilenceOnThisMachine:
    def test_is_said_with_the_deadline(self) -> None:
        silent, busy = trial(0, "RUNNING", silent_s=8.0), trial(1, "RUNNING", silent_s=1.0)
        text = local_why(silent, busy, progress_deadline_s=10.0)
        assert "reported nothing for up to 8.0 s; their attempts end after 10.0 s without a report" in text
        assert "    ab12c_00000\n" in text
        assert "no obstacle is known" not in text

    def test_of_a_minute_is_none_without_a_deadline(self) -> None:
        assert "no obstacle is known" in local_why(trial(0, "RUNNING", silent_s=60.0))
        assert "spec.progressDeadline would end them" in local_why(trial(0, "RUNNING", silent_s=301.0))
