"""Each command that a message names is one that works where it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, Run, condition_of, experiment_object, trial_object

from trialpod.cli.main import main
from trialpod_operator.kube_client import backend
from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

MANIFEST = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: climb}
spec:
  trainable: {entrypoint: "train:train"}
  searchSpace: {lr: {uniform: [0, 1]}}
  metric: loss
  mode: min
  numSamples: 4
"""
COMMAND = re.compile(r"trialpod (?:[a-z]+)(?: +(?:-{1,2}[\w-]+|[\w./-]+))*")
DONE = [condition_of("Ready", "True", "Succeeded"), condition_of("Succeeded", "True", "Succeeded")]
SITUATIONS: dict[str, Json] = {
    "succeeded": {"conditions": DONE},
    "suspended": {
        "conditions": [condition_of("Ready", "True", "Suspended"), condition_of("Suspended", "True", "Suspended")]
    },
    "failed": {
        "conditions": [
            condition_of(kind, status, "Failed") for kind, status in (("Ready", "False"), ("Failed", "True"))
        ]
    },
    "not looked at": {"conditions": [], "observedGeneration": 0},
    "waiting": {
        "conditions": [condition_of("Ready", "False", "Unschedulable")],
        "waiting": {"reason": "Unschedulable", "message": "no room", "count": 1},
    },
}


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.chdir(tmp_path)
    Path("climb.yaml").write_text(MANIFEST)
    folder = tmp_path / "bucket" / "climb" / "trial_0"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("what it printed\n")
    storage = {"storage": {"uri": str(tmp_path / "bucket")}, "metric": "loss", "mode": "min"}
    server.put("tuneexperiments", experiment_object("climb", {**yaml.safe_load(MANIFEST)["spec"], **storage}))
    trial = trial_object("climb", 0, "ERROR", message="ValueError: no", storageUri=str(folder), value="0.5")
    server.put("tunetrials", trial)
    return server


def commands(text: str) -> list[list[str]]:
    """The trialpod commands that a text names; those that would wait are only looked up."""
    found = [shlex.split(each.rstrip(".")) for each in COMMAND.findall(text)]
    return [each[1:] for each in found if "FILE" not in each and "NAME" not in each and "SCRIPT" not in each]


def run_all(text: str, capsys: Any, *, least: int = 1) -> list[list[str]]:
    """Run them; 2 is the status of what cannot work."""
    found = commands(text)
    assert len(found) >= least, text
    for each in found:
        arguments = [part for part in each if part not in ("--watch", "shows", "prints", "lists", "goes", "says")]
        if arguments[0] in ("delete", "stop"):
            arguments.append("--help")  # what it does is tested elsewhere
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        shown = capsys.readouterr()
        assert status != 2, (arguments, shown.err if hasattr(shown.err, "split") else shown.err.decode())
    return found


@pytest.mark.parametrize("situation", sorted(SITUATIONS))
def test_of_why(cluster: ApiServer, trialpod: Run, capsysbinary: Any, situation: str) -> None:
    item = cluster.experiment("climb")
    item["status"] = {"observedGeneration": 1, "trials": {"error": 1, "total": 4}, **SITUATIONS[situation]}
    text = trialpod("why", "climb")
    steps = "\n".join(
        re.split(r" shows| prints| lists| resumes| says| retries", line)[0] for line in text.splitlines()
    )
    for found in run_all(steps[steps.index("next:") :], capsysbinary):
        assert found[found.index("-n") :][:2] == ["-n", "team"]


def test_of_submit(cluster: ApiServer, trialpod: Run, capsysbinary: Any) -> None:
    cluster.experiment("climb")["status"] = {"observedGeneration": 1, "conditions": DONE}
    run_all(trialpod("submit", "climb.yaml", "--name", "climb"), capsysbinary, least=1)


def test_of_an_interrupted_script(cluster: ApiServer, capsysbinary: Any) -> None:
    cluster.experiment("climb")["status"] = {"observedGeneration": 1, "conditions": DONE}

    class Request:
        name = "climb"

    with Experiments.connect() as api:
        text = backend._farewell(api, Request())  # type: ignore[arg-type]
    found = [each[0] for each in commands(text)]
    assert found == ["status", "results", "suspend", "stop", "delete"]
    run_all("\n".join(line for line in text.splitlines() if "suspend" not in line), capsysbinary, least=4)


def test_of_an_empty_namespace(server: ApiServer, trialpod: Run, capsysbinary: Any) -> None:
    run_all(trialpod("list").replace("submit", "submit --help"), capsysbinary, least=1)


def test_of_a_log_that_is_not_there(cluster: ApiServer, trialpod: Run, capsysbinary: Any) -> None:
    waiting = {"reason": "Unschedulable", "message": "no room"}
    cluster.put("tunetrials", trial_object("climb", 1, "PENDING", waiting=waiting))
    run_all(trialpod("logs", "climb", "1", status=1), capsysbinary)
    cluster.experiment("climb")["metadata"]["name"] = "climb"
    run_all(trialpod("logs", "climb", status=2), capsysbinary)
