"""The definitions in a real API server: accepted as structural, and what they refuse the validator refuses too."""

from __future__ import annotations

import copy
import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect
from testcluster import binaries, layout

from trialpod_operator.api.inspection import changeable
from trialpod_operator.api.loader import check_text
from trialpod_operator.api.status_models import StatusModel, TuneExperimentStatus
from trialpod_operator.api.trial_models import TuneTrialStatus

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
CHANGES = yaml.safe_load((CORPUS / "changes.yaml").read_text())
KUBECTL = [str(binaries.path("kubectl")), f"--kubeconfig={layout.KUBECONFIG}"]
NAMESPACE = "crds"

pytestmark = pytest.mark.xdist_group("definitions")  # in one namespace

ONLY_THE_OPERATOR_REFUSES = {
    ("algorithms", 0),  # what an algorithm takes is for the algorithm to say
    ("asha_without_metric", 0),
    ("nulls", 0),  # the API server takes a null for a field that is left out
    ("points", 0),
    ("same_names", 0),  # each of the two is valid
    ("same_names", 1),
    ("search_space", 0),
}
"""Documents of the corpus, by file and position, that the API server accepts: they end as Stalled."""


def kubectl(*arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
    text = given if isinstance(given, str) or given is None else json.dumps(given)
    return subprocess.run([*KUBECTL, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60)


def done(*arguments: str, given: object = None) -> str:
    result = kubectl(*arguments, given=given)
    assert result.returncode == 0, result.stderr
    return result.stdout


class Api(http.client.HTTPConnection):
    """The API server behind ``kubectl proxy``: 200 questions by a kubectl each would take more than a minute."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)

    def refusal(self, method: str, path: str, body: object, kind: str = "json") -> str:
        """Return why a request would be refused; empty when it would not. Nothing is kept."""
        place = f"/apis/trialpod.dev/v1alpha1/namespaces/{NAMESPACE}/{path}?dryRun=All&fieldValidation=Strict"
        self.request(method, place, json.dumps(body), {"Content-Type": f"application/{kind}"})
        response = self.getresponse()
        answer = json.loads(response.read())
        return str(answer["message"]) if response.status >= 300 else ""

    def create(self, manifest: dict[str, Any]) -> str:
        """Return why the API server refuses an experiment."""
        return self.refusal("POST", "tuneexperiments", manifest)

    def patch(self, name: str, spec: dict[str, Any]) -> str:
        """Return why the API server refuses a change of an experiment's spec."""
        if spec.get("metrics"):  # they stand for these two
            spec = {**spec, "metric": None, "mode": None}
        if spec.get("warmStart"):  # it is advice for this search alone
            spec = {**spec, "searchAlgorithm": {"name": "auto"}}
        return self.refusal("PATCH", f"tuneexperiments/{name}", {"spec": spec}, "merge-patch+json")


@pytest.fixture(scope="module")
def api(_definitions: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path = tmp_path_factory.mktemp("api") / "socket"
    proxy = subprocess.Popen([*KUBECTL, "proxy", f"--unix-socket={path}"], stdout=subprocess.PIPE)
    try:
        assert proxy.stdout is not None
        assert b"Starting to serve" in proxy.stdout.readline()
        connection = Api(path)
        yield connection
        connection.close()
    finally:
        proxy.terminate()
        proxy.communicate(timeout=30)


def refusal(manifest: str) -> str:
    """Return why the API server refuses a manifest as kubectl reads it; empty when it does not."""
    result = kubectl("create", "--dry-run=server", "-n", NAMESPACE, "-f", "-", given=manifest)
    return result.stderr if result.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def _definitions(no_shared_operator: None) -> Iterator[None]:
    """No operator looks at the objects: what the API server alone makes of them is the question."""
    kubectl("create", "namespace", NAMESPACE)
    yield
    kubectl("delete", "tuneexperiments,tunetrials", "--all", "-n", NAMESPACE)


def changed(change: dict[str, Any]) -> dict[str, Any]:
    manifest: dict[str, Any] = copy.deepcopy(CHANGES["base"])
    ((path, value),) = ((path, value) for path, value in change.items() if path != "says")
    place = manifest
    *parents, last = path.split(".", 2)
    for part in parents:
        place = place[part]
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return manifest


def documents(folder: str) -> list[tuple[str, int, str]]:
    """Return the documents of the corpus that are, or try to be, experiments: file, position, text."""
    found = []
    for file in sorted((CORPUS / "manifests" / folder).iterdir()):
        text = re.sub(r"namespace: ml\b", f"namespace: {NAMESPACE}", file.read_text())
        parts = [part for part in re.split(r"^---$", text, flags=re.MULTILINE) if "trialpod.dev" in part]
        found += [(file.stem, index, part) for index, part in enumerate(parts)]
    return found


@pytest.mark.parametrize("name", ["tuneexperiments.trialpod.dev", "tunetrials.trialpod.dev"])
def test_the_api_server_accepts_the_schema_as_structural(name: str) -> None:
    definition = json.loads(done("get", "crd", name, "-o", "json"))
    conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("change", [*CHANGES["nobody"], *CHANGES["validator"]], ids=str)
def test_the_api_server_accepts(api: Api, change: dict[str, Any]) -> None:
    assert api.create(changed(change)) == ""


@pytest.mark.parametrize("change", CHANGES["server"], ids=str)
def test_the_api_server_refuses_and_says_what_and_where(api: Api, change: dict[str, Any]) -> None:
    assert change["says"] in api.create(changed(change))


@pytest.mark.parametrize(("file", "index", "text"), documents("valid"), ids=str)
def test_valid_manifests_of_the_corpus_are_accepted(file: str, index: int, text: str) -> None:
    assert refusal(text) == ""


@pytest.mark.parametrize(("file", "index", "text"), documents("invalid"), ids=str)
def test_validator_refuses_what_the_api_server_refuses(file: str, index: int, text: str) -> None:
    if refusal(text):
        assert check_text(text, file).problems
        assert (file, index) not in ONLY_THE_OPERATOR_REFUSES
    else:
        assert (file, index) in ONLY_THE_OPERATOR_REFUSES


OTHERS: dict[str, Any] = CHANGES["others"]
STORAGE = {"uri": "s3://tune/a", "credentialsSecret": "minio"}


@pytest.fixture(scope="module")
def started() -> str:
    """An experiment of which the operator has said that it started."""
    manifest = changed({"metadata.name": "started"})
    manifest["spec"]["storage"] = STORAGE
    done("apply", "-n", NAMESPACE, "-f", "-", given=manifest)
    return begin("started")


def begin(name: str) -> str:
    status = json.dumps({"status": {"observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z"}})
    done("patch", "te", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", status)
    return name


@pytest.mark.parametrize("field", sorted(changeable("any time") & set(OTHERS)))
def test_the_budget_can_change_at_any_time(api: Api, started: str, field: str) -> None:
    assert api.patch(started, {field: OTHERS[field]}) == ""


@pytest.mark.parametrize("field", sorted(set(OTHERS) - changeable("any time")))
def test_immutable_fields_are_fixed_after_the_start(api: Api, started: str, field: str) -> None:
    since = "a trial has reported" if field in changeable("before results") else "the experiment has started"
    assert f"spec.{field} cannot change once {since}" in api.patch(started, {field: OTHERS[field]})


def test_only_the_number_of_workers_is_fixed(api: Api) -> None:
    manifest = changed({"metadata.name": "group"})
    manifest["spec"]["workers"] = {"replicas": 2}
    done("apply", "-n", NAMESPACE, "-f", "-", given=manifest)
    begin("group")
    more = {"replicas": 2, "resources": {"memory": "2Gi"}, "startTimeout": "1h"}
    assert api.patch("group", {"workers": more}) == ""
    for other in ({"replicas": 3}, None):
        assert "spec.workers cannot change once the experiment has started" in api.patch("group", {"workers": other})


@pytest.mark.parametrize("fixed", [False, True])
def test_the_trainable_can_change_until_a_trial_has_reported(api: Api, fixed: bool) -> None:
    name = f"correctable-{fixed}".lower()
    done("apply", "-n", NAMESPACE, "-f", "-", given=changed({"metadata.name": name}))
    status = {"observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z", "trainableFixed": fixed}
    told = json.dumps({"status": status})
    done("patch", "te", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", told)
    assert ("spec.trainable cannot change" in api.patch(name, {"trainable": OTHERS["trainable"]})) == fixed
    assert "spec.metric cannot change" in api.patch(name, {"metric": OTHERS["metric"]})


@pytest.mark.parametrize("field", ["metric", "searchSpace"])
def test_nor_can_it_be_taken_away(api: Api, started: str, field: str) -> None:
    assert f"spec.{field} cannot change" in api.patch(started, {field: None})


def test_data_location_is_immutable_but_access_is_not(api: Api, started: str) -> None:
    assert "spec.storage.uri cannot change" in api.patch(started, {"storage": {"uri": "s3://tune/b"}})
    assert "spec.storage.endpoint cannot change" in api.patch(started, {"storage": {"endpoint": "http://other"}})
    assert "spec.storage cannot change" in api.patch(started, {"storage": None})
    assert api.patch(started, {"storage": {"credentialsSecret": "other", "deletionPolicy": "Delete"}}) == ""


def test_an_experiment_that_has_not_started_can_be_put_right(api: Api) -> None:
    done("apply", "-n", NAMESPACE, "-f", "-", given=changed({"metadata.name": "wrong"}))
    before = CHANGES["base"]["spec"]
    for field, value in OTHERS.items():
        assert api.patch("wrong", {field: value}) == "", field
        restored = {each: before.get(each) for each in (field, "metric", "mode", "searchAlgorithm")}
        assert api.patch("wrong", restored) == "", field
    assert api.patch("wrong", {"storage": STORAGE}) == ""


def test_reapplying_after_defaults_changes_nothing() -> None:
    manifest = changed({"metadata.name": "twice"})
    manifest["spec"].update(storage=STORAGE, checkpoint={"atEnd": True}, failurePolicy={"maxFailures": 1})
    done("apply", "-n", NAMESPACE, "-f", "-", given=manifest)
    begin("twice")
    assert "unchanged" in done("apply", "-n", NAMESPACE, "-f", "-", given=manifest)
    generation = done("get", "te", "twice", "-n", NAMESPACE, "-o", "jsonpath={.metadata.generation}")
    assert generation == "1"


def test_new_experiment_is_unobserved_then_columns_update() -> None:
    done("apply", "-n", NAMESPACE, "-f", "-", given=changed({"metadata.name": "columns"}))
    assert done("get", "te", "columns", "-n", NAMESPACE, "-o", "jsonpath={.status.observedGeneration}") == "-1"
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Running",
        "message": "3 trials run",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "observedGeneration": 1,
        "conditions": [condition],
        "trials": {"running": 3, "progress": "12/40"},
        "best": {"trial": "columns-a-1", "value": "0.97"},
    }
    patch_text = json.dumps({"status": status})
    done("patch", "te", "columns", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch_text)
    header, row = done("get", "te", "columns", "-n", NAMESPACE).splitlines()
    assert header.split() == ["NAME", "TRIALS", "RUNNING", "BEST", "READY", "REASON", "AGE"]
    assert row.split()[:-1] == ["columns", "12/40", "3", "0.97", "True", "Running"]
    done("wait", "te/columns", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=5s")


def trial(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneTrial",
        "metadata": {"name": name},
        "spec": {
            "experiment": "digits",
            "trialId": "d75de_00001",
            "index": 1,
            "tag": "1_lr=0.1",
            "params": {"lr": 0.1, "net": {"layers": [1, 2]}},
            **spec,
        },
    }


@pytest.fixture(scope="module")
def one_trial() -> str:
    done("apply", "-n", NAMESPACE, "-f", "-", given=trial("digits-d75de-00001"))
    return "digits-d75de-00001"


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": "other"},
        {"trialId": "d75de_00002"},
        {"index": 2},
        {"tag": "2"},
        {"params": {"lr": 0.2}},
        {"params": None},
    ],
    ids=str,
)
def test_a_trial_is_written_once(api: Api, one_trial: str, change: dict[str, Any]) -> None:
    refused = api.refusal("PATCH", f"tunetrials/{one_trial}", {"spec": change}, "merge-patch+json")
    (field,) = change
    assert f"{field} is written once, by the operator" in refused


def test_a_trial_can_be_told_to_stop_once_and_for_all() -> None:
    done("apply", "-n", NAMESPACE, "-f", "-", given=trial("stopping"))
    done("patch", "tt", "stopping", "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"stop": true}}')
    back = kubectl("patch", "tt", "stopping", "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"stop": false}}')
    assert "a stopped trial does not continue" in back.stderr


@pytest.mark.skipif(layout.KUBERNETES_MINOR < 31, reason="Kubernetes 1.30 selects by no fields of definitions")
def test_trials_are_selected_by_experiment_and_state(one_trial: str) -> None:
    selector = "--field-selector=spec.experiment=digits,status.state=PENDING"
    assert one_trial in done("get", "tt", "-n", NAMESPACE, selector, "-o", "name")
    run_trial(one_trial)
    assert one_trial not in done("get", "tt", "-n", NAMESPACE, selector, "-o", "name")


def test_columns_of_a_trial_show_its_status(one_trial: str) -> None:
    run_trial(one_trial)
    row = done("get", "tt", one_trial, "-n", NAMESPACE, "--no-headers").split()
    assert row[:-1] == [one_trial, "RUNNING", "2", "7", "0.5"]


def run_trial(name: str) -> None:
    """Have a trial's status say that it runs."""
    status = {"observedGeneration": 1, "state": "RUNNING", "attempt": 2, "iteration": 7, "value": "0.5"}
    text = json.dumps({"status": status})
    done("patch", "tt", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", text)


def _filled(kind: inspect.Type) -> Any:
    """Return a value of a type with every field set."""
    if isinstance(kind, inspect.Metadata):
        if (kind.extra or {}).get("format") == "date-time":
            return "2026-01-01T00:00:00Z"
        return _filled(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _filled(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
    if isinstance(kind, inspect.StructType):
        return {field.encode_name: _filled(field.type) for field in kind.fields}
    if isinstance(kind, inspect.ListType):
        return [_filled(kind.item_type)]
    if isinstance(kind, inspect.LiteralType):
        return kind.values[-1]
    if isinstance(kind, inspect.DictType) and not isinstance(kind.value_type, inspect.AnyType):
        return {"cpu": _filled(kind.value_type)}
    if isinstance(kind, inspect.DictType):
        return {"lr": 0.1, "net": {"layers": [1, None], "name": "x"}, "big": 2**53 + 1}
    return {inspect.IntType: 7, inspect.StrType: "Text", inspect.BoolType: True}[type(kind)]


@pytest.mark.parametrize(
    ("manifest", "resource", "model"),
    [
        (changed({"metadata.name": "whole"}), "te/whole", TuneExperimentStatus),
        (trial("whole"), "tt/whole", TuneTrialStatus),
    ],
    ids=["experiment", "trial"],
)
def test_every_field_of_a_status_is_kept_as_it_was_written(
    manifest: dict[str, Any], resource: str, model: type[StatusModel]
) -> None:
    status = _filled(inspect.type_info(model))
    msgspec.convert(status, model)
    done("apply", "-n", NAMESPACE, "-f", "-", given=manifest)
    text = json.dumps([{"op": "replace", "path": "/status", "value": status}])
    done("patch", resource, "-n", NAMESPACE, "--subresource=status", "--type=json", "-p", text)
    assert json.loads(done("get", resource, "-n", NAMESPACE, "-o", "json"))["status"] == status


def test_experiments_are_in_category_all_and_trials_are_not() -> None:
    assert "tuneexperiment" in done("get", "all", "-n", NAMESPACE, "-o", "name")
    assert "tunetrial" not in done("get", "all", "-n", NAMESPACE, "-o", "name")
    assert "tunetrial" in done("get", "trialpod", "-n", NAMESPACE, "-o", "name")


def test_explain_is_documentation() -> None:
    text = re.sub(r"\s+", " ", done("explain", "tuneexperiment.spec.checkpoint"))
    assert "When trials checkpoint, and what is kept." in text
    assert "How many checkpoints of a trial to keep. Default: all." in text
