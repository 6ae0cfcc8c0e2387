"""The commands that change an experiment in a cluster or read it, against a stand-in for the API server."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, Cut, Run, condition_of, experiment_object, trial_object

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.cluster import names

Json = dict[str, Any]
CORE = "/api/v1/namespaces/team"

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
  storage: {uri: "s3://tune/runs", endpoint: "http://minio.minio.svc:9000", credentialsSecret: minio}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def climbing(**status: Any) -> Json:
    given = {
        "conditions": [condition_of("Ready", "True", "Running")],
        "trials": {"running": 1, "done": 1, "total": 4, "error": 0, "progress": "1/4"},
        "storageUri": "s3://tune/runs/climb",
        **status,
    }
    return experiment_object("climb", yaml.safe_load(MANIFEST)["spec"], **given)


def pod(number: int, attempt: int = 1) -> Json:
    labels = {"trialpod.dev/experiment": "climb", "trialpod.dev/trial-id": f"d75de_{number:05d}"}
    name = f"climb-d75de-{number:05d}-{attempt}"
    return {
        "metadata": {"name": name, "labels": {**labels, "trialpod.dev/attempt": str(attempt)}},
        "spec": {"containers": [{"name": "side"}, {"name": "trial"}]},
    }


# -- submit --


def test_a_manifest_is_applied_by_the_server_under_our_name(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST)
    text = trialpod("submit", "climb.yaml", "--set", "spec.numSamples=8")
    assert "experiment climb submitted (namespace team)" in text
    assert "trialpod status climb -n team --watch" in text
    assert server.experiment("climb")["spec"]["numSamples"] == 8
    assert server.experiment("climb")["metadata"]["namespace"] == "team"
    assert ("PATCH", "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments/climb") in server.requests
    assert "was there already" in trialpod("submit", "climb.yaml", "--set", "spec.numSamples=8")
    assert "experiment climb changed" in trialpod("submit", "climb.yaml", "--set", "spec.numSamples=9")


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST)
    text = trialpod("submit", "climb.yaml", "--dry-run", "--name", "other")
    assert yaml.safe_load(text)["metadata"]["name"] == "other"
    found = json.loads(trialpod("submit", "climb.yaml", "--dry-run", "-o", "json"))
    assert found["spec"] == yaml.safe_load(MANIFEST)["spec"]
    assert server.requests == []


def test_invalid_manifest_is_reported_before_sending(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST.replace("numSamples", "numSample"))
    assert "numSamples" in trialpod("submit", "climb.yaml", status=2)
    assert server.requests == []


class TestTemplate:
    """What the API server says of the pods, before the experiment is sent."""

    TEMPLATE = "spec.template={spec: {nodeSelectr: {disk: ssd}}}"

    def test_misspelt_field_is_refused_before_anything_is_made(self, server: ApiServer, trialpod: Run) -> None:
        Path("climb.yaml").write_text(MANIFEST)
        text = trialpod("submit", "climb.yaml", "--set", self.TEMPLATE, status=2)
        assert "climb: a pod has no field spec.nodeSelectr, as in spec.template (did you mean nodeSelector?)" in text
        assert server.objects == {}

    def test_what_the_namespace_does_not_take_now_is_a_warning(self, server: ApiServer, trialpod: Run) -> None:
        Path("climb.yaml").write_text(MANIFEST)
        message = 'pods "x" is forbidden: error looking up service account team/t: serviceaccount "t" not found'
        server.routes["POST", f"{CORE}/pods"] = {"code": 403, "reason": "Forbidden", "message": message}
        text = trialpod("submit", "climb.yaml", "--set", "spec.template={spec: {serviceAccountName: t}}")
        assert "warning: a pod of climb would be refused now: the service account t does not exist; create it" in text
        assert server.experiment("climb")

    @pytest.mark.parametrize(
        "answer",
        [
            {"code": 403, "message": 'User "jane" cannot create resource "pods" in API group ""'},
            {"code": 403, "message": "no"},
            {"code": 401, "message": "Unauthorized"},
            {"code": 503, "message": "etcd leader changed"},
        ],
    )
    def test_it_is_sent_where_the_user_may_not_ask(self, server: ApiServer, trialpod: Run, answer: Json) -> None:
        Path("climb.yaml").write_text(MANIFEST)
        server.routes["POST", f"{CORE}/pods"] = {"reason": "x", **answer}
        text = trialpod("submit", "climb.yaml", "--set", self.TEMPLATE)
        assert "experiment climb submitted" in text
        assert "warning: climb.yaml: spec.template.spec.nodeSelectr: a pod of Kubernetes" in text
        assert "refused now" not in text


def test_a_config_map_in_the_file_goes_before_the_experiment(server: ApiServer, trialpod: Run) -> None:
    companion = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\ndata: {a: b}\n---"
    Path("climb.yaml").write_text(companion + MANIFEST)
    assert "ConfigMap code applied\nexperiment climb submitted" in trialpod("submit", "climb.yaml")
    Path("climb.yaml").write_text(companion.replace("ConfigMap", "Service") + MANIFEST)
    assert "kubectl apply -f climb.yaml" in trialpod("submit", "climb.yaml", status=2)


def test_an_operator_that_is_releases_apart_is_warned_of(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST)
    server.routes["GET", f"{CORE}/configmaps/trialpod-ca"] = {
        "metadata": {"annotations": {"trialpod.dev/version": "0.7.1"}}
    }
    assert 'pip install "trialpod==0.7.1"' in trialpod("submit", "climb.yaml")


def test_module_beside_manifest_is_sent_on_request(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST)
    assert "--with-code: train.py is not beside climb.yaml" in trialpod(
        "submit", "climb.yaml", "--with-code", status=2
    )
    Path("train.py").write_text("def train(config):\n    pass\n")
    assert "train.py beside climb.yaml is not sent" in trialpod("submit", "climb.yaml", "--dry-run")
    found = yaml.safe_load(trialpod("submit", "climb.yaml", "--dry-run", "--with-code"))
    assert found["spec"]["trainable"] == {"source": "def train(config):\n    pass\n", "attribute": "train"}


def test_module_that_is_sent_changes_nothing_else(trialpod: Run) -> None:
    entrypoint = 'entrypoint: "train:train"'
    assert entrypoint in MANIFEST
    Path("climb.yaml").write_text(MANIFEST.replace(entrypoint, f"{entrypoint}, runtime: injected"))
    Path("train.py").write_text("def train(config):\n    pass\n")
    found = yaml.safe_load(trialpod("submit", "climb.yaml", "--dry-run", "--with-code"))
    assert found["spec"]["trainable"]["runtime"] == "injected"
    Path("train.py").write_bytes(b"# gr\xfc\xdfe\n")
    assert "line 1 is not UTF-8" in trialpod("submit", "climb.yaml", "--dry-run", "--with-code", status=2)


def test_missing_namespace_differs_from_missing_trialpod(server: ApiServer, trialpod: Run) -> None:
    Path("climb.yaml").write_text(MANIFEST)
    path = "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments/climb"
    details = {"name": "team", "kind": "namespaces"}
    message = 'namespaces "team" not found'
    server.routes["PATCH", path] = {"code": 404, "reason": "NotFound", "message": message, "details": details}
    assert "kubectl create namespace team" in trialpod("submit", "climb.yaml", status=2)


SCRIPT = """
from trialpod import tune

def train(config):
    tune.report({"loss": config["lr"]})

tune.Tuner(
    train,
    param_space={"lr": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
    run_config=tune.RunConfig(name="parabola", storage_path="s3://tune/runs"),
).fit()
print("AFTER")
"""


def test_a_dry_run_of_a_script_prints_the_manifest_that_it_makes(
    server: ApiServer, trialpod: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("TRIALPOD_BACKEND", "TRIALPOD_NAMESPACE", "TRIALPOD_CREDENTIALS_SECRET", "TRIALPOD_IMAGE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
    Path("script.py").write_text(SCRIPT)
    text = trialpod("submit", "script.py", "--dry-run", "-n", "lab", "--secret", "keys", "--image", "train:1")
    found = yaml.safe_load(text)
    assert found["metadata"] == {"name": "parabola", "namespace": "lab"}
    assert found["spec"]["storage"]["credentialsSecret"] == "keys"
    assert found["spec"]["image"] == "train:1"
    assert found["spec"]["trainable"]["pickle"]["uri"].startswith("s3://tune/runs/parabola/.trialpod/trainable-")
    assert "AFTER" not in text
    assert server.requests == []
    assert not (tmp_path / "work" / "parabola").exists()


# -- list --


def test_the_list_has_a_line_for_each_experiment(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing(best={"value": "0.25", "trialId": "d75de_00001"}))
    stalled = [condition_of("Stalled", "True", "InvalidSpec"), condition_of("Ready", "False", "InvalidSpec")]
    server.put("tuneexperiments", experiment_object("other", conditions=stalled))
    lines = trialpod("list").splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TRIALS", "RUNNING", "FAILED", "BEST", "AGE"]
    assert lines[1].split()[:6] == ["climb", "Running", "1/4", "1", "0", "loss=0.25"]
    assert lines[2].split()[:3] == ["other", "Stalled", "(InvalidSpec)"]
    assert trialpod("list", "-A").splitlines()[1].startswith("team ")
    assert json.loads(trialpod("list", "--json"))[0]["progress"] == "1/4"


def test_a_deeply_nested_experiment_does_not_hide_the_others(server: ApiServer, trialpod: Run) -> None:
    space = '{"a":' * 1500 + "1" + "}" * 1500
    item = json.dumps(experiment_object("deep", {"searchSpace": "?"})).replace('"?"', space)
    path = "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments"
    server.routes["GET", path] = f'{{"items": [{item}, {json.dumps(climbing())}]}}'.encode()
    assert [line.split()[0] for line in trialpod("list").splitlines()[1:]] == ["climb", "deep"]


def test_the_cluster_is_chosen_as_kubectl_does(
    server: ApiServer, trialpod: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.put("tuneexperiments", climbing())
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/nowhere")
    assert "there is no ./trialpod-results here, and no cluster is known" in trialpod("list", status=2)
    text = trialpod("why", "climb", "--kubeconfig", str(tmp_path / "kubeconfig"), "--context", "here", "-n", "lab")
    assert ("GET", "/apis/trialpod.dev/v1alpha1/namespaces/lab/tuneexperiments/climb") in server.requests
    assert text.startswith("climb (namespace team): Running")
    assert "has no context 'heer'; did you mean 'here'?" in trialpod(
        "list", "--kubeconfig", str(tmp_path / "kubeconfig"), "--context", "heer", status=2
    )


def test_an_empty_list_says_what_to_do(trialpod: Run) -> None:
    text = trialpod("list")
    assert "no experiment in ./trialpod-results or in the namespace team; `trialpod list -A`" in text
    assert "trialpod submit" in text


# -- status --watch --


def test_watching_names_the_page_of_a_cluster_that_has_one(server: ApiServer, trialpod: Run) -> None:
    done = [condition_of("Ready", "True", "Succeeded"), condition_of("Succeeded", "True", "Succeeded")]
    server.put("tuneexperiments", climbing(conditions=done, trials={"done": 1, "total": 1, "terminated": 1}))
    assert "page:" not in trialpod("status", "climb", "--watch")
    facts = {names.UI_ANNOTATION: "https://trialpod-ui.trialpod-system.svc:8444"}
    server.put("configmaps", {"metadata": {"name": names.CA_CONFIG_MAP, "annotations": facts}})
    assert "page: trialpod ui climb -n team\n" in trialpod("status", "climb", "--watch")
    assert "page:" not in trialpod("status", "climb", "--watch", "--json")


def test_watching_ends_with_the_experiment_and_says_how_it_went(server: ApiServer, trialpod: Run) -> None:
    done = [condition_of("Ready", "True", "Succeeded"), condition_of("Succeeded", "True", "Succeeded")]
    server.put("tuneexperiments", climbing(conditions=done, trials={"done": 1, "total": 1, "terminated": 1}))
    server.put("tunetrials", trial_object("climb", 0, "TERMINATED", value="0.5"))
    text = trialpod("status", "climb", "--watch")
    assert "1 trial" in text
    assert "all trials: trialpod results climb -n team" in text
    failed = [condition_of("Failed", "True", "FailFast", "trial 0 failed")]
    server.put("tuneexperiments", climbing(conditions=failed, trials={"done": 1, "total": 1, "error": 1}))
    trialpod("status", "climb", "-w", status=1)


# -- logs --


def test_the_log_of_a_running_trial_is_that_of_its_newest_pod(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    server.put("tunetrials", trial_object("climb", 3, "RUNNING", nodeName="a"))
    server.put("pods", pod(3, 1))
    server.put("pods", pod(3, 2))
    server.routes["GET", f"{CORE}/pods/climb-d75de-00003-2/log"] = b"step 1\nstep 2"
    for name in (
        ["climb-d75de-00003"],
        ["d75de_00003"],
        ["climb", "3"],
        ["climb/3"],
        ["climb", "d75de_00003"],
        ["climb"],
    ):
        assert trialpod("logs", *name) == "step 1\nstep 2\n"
    assert trialpod("logs", "climb", "3", "--tail", "1") == "step 2\n"


def test_shared_pod_shows_only_the_trials_own_lines(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    server.put("tunetrials", trial_object("climb", 3, "RUNNING", nodeName="a"))
    reused = pod(3, 1)
    reused["metadata"]["name"] = "climb-d75de-00001-1"
    reused["metadata"]["annotations"] = {"trialpod.dev/made-for": "d75de_00001/1"}
    server.put("pods", reused)
    server.routes["GET", f"{CORE}/pods/climb-d75de-00001-1/log"] = (
        b"first\n\ntrialpod: trial d75de_00001 attempt 1\nof one\n\ntrialpod: trial d75de_00003 attempt 1\nof three\n"
    )
    assert trialpod("logs", "climb", "3") == "trialpod: trial d75de_00003 attempt 1\nof three\n"


def test_each_pod_of_a_group_has_a_log_of_its_own(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    server.put("tunetrials", trial_object("climb", 3, "RUNNING"))
    server.put("pods", pod(3))
    worker = pod(3)
    worker["metadata"]["name"] += "-w1"
    worker["metadata"]["labels"]["trialpod.dev/rank"] = "1"
    server.put("pods", worker)
    server.routes["GET", f"{CORE}/pods/climb-d75de-00003-1/log"] = b"head\n"
    server.routes["GET", f"{CORE}/pods/climb-d75de-00003-1-w1/log"] = b"worker\n"
    assert trialpod("logs", "climb", "3") == "head\n"
    assert trialpod("logs", "climb", "3", "--rank", "1") == "worker\n"


def test_a_trial_that_is_not_there_comes_with_those_that_are(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    assert "has no trials yet" in trialpod("logs", "climb", status=2)
    server.put("tunetrials", trial_object("climb", 3, "RUNNING"))
    server.put("tunetrials", trial_object("climb", 4, "RUNNING"))
    assert "has no trial 7; there are: d75de_00003, d75de_00004" in trialpod("logs", "climb", "7", status=2)
    assert "has 2 trials; name one" in trialpod("logs", "climb", status=2)
    assert "did you mean climb?" in trialpod("logs", "clim", status=2)


def test_why_there_is_no_output_yet_is_reported(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    why = {"reason": "Unschedulable", "message": "not enough cpu"}
    server.put("tunetrials", trial_object("climb", 3, "RUNNING", waiting=why))
    text = trialpod("logs", "climb", "3", status=1)
    assert "there is no output yet" in text
    assert "Unschedulable: not enough cpu; trialpod why climb -n team" in text


def test_the_log_of_a_pod_that_is_gone_comes_from_the_storage(
    server: ApiServer, trialpod: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bucket" / "climb"
    (folder / "trial_3").mkdir(parents=True)
    (folder / "trial_3" / "log.txt").write_text("it was\nhere\n")
    server.put("tuneexperiments", climbing(storageUri=str(folder)))
    server.put("tunetrials", trial_object("climb", 3, "TERMINATED", storageUri=f"{folder}/trial_3"))
    server.put("tunetrials", trial_object("climb", 4, "ERROR", storageUri=f"{folder}/trial_4", message="lost"))
    assert trialpod("logs", "climb", "3") == "it was\nhere\n"
    assert trialpod("logs", "climb", "3", "--previous") == "it was\nhere\n"
    (folder / "trial_3" / "log.txt").write_text("1%\r2%\r3%\nend\n", newline="")
    assert trialpod("logs", "climb", "3", "--tail", "2") == "1%\r2%\r3%\nend\n"
    assert "climb-d75de-00004 is ERROR: lost; no output of it is kept" in trialpod("logs", "climb", "4", status=1)


class Followed:
    """A trial whose output is followed; the steps are taken one after another, whenever the reader waits."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.out = io.BytesIO()
        server.put("tuneexperiments", climbing())
        server.put("tunetrials", trial_object("climb", 3, "PENDING"))

    def runs(self, attempt: int, *, name: str = "", number: int = 3) -> None:
        """The trial, or another one, runs in a pod of its own, or in one that is there."""
        made = pod(number, attempt)
        if name:
            made["metadata"] |= {"name": name, "uid": name, "annotations": {"trialpod.dev/made-for": "d75de_00003/1"}}
        self.server.put("pods", made)

    def prints(self, log: bytes | Callable[[Any], Json | bytes], name: str = "climb-d75de-00003-1") -> None:
        self.server.routes["GET", f"{CORE}/pods/{name}/log"] = log

    def ends(self, state: str = "TERMINATED") -> None:
        self.server.objects["tunetrials", "climb-d75de-00003"]["status"]["state"] = state

    def leaves(self, attempt: int = 1) -> None:
        self.server.objects.pop(("pods", f"climb-d75de-00003-{attempt}"))

    def read(self, *steps: Callable[[], object], tail: int | None = None) -> bytes:
        from trialpod_operator.commands.logs import LogReader
        from trialpod_operator.kube_client.client import Experiments

        left = iter(steps)

        def sleep(_seconds: float) -> None:
            next(left)()

        with Experiments.connect() as api:
            item, trial = api.get("climb"), api.trials("climb")[0]
            assert LogReader(api, item, trial, "-n team", sleep=sleep).follow(self.out, tail) == 0
        assert not list(left)
        return self.out.getvalue()


@pytest.fixture
def followed(server: ApiServer) -> Followed:
    return Followed(server)


def end_pod(server: ApiServer, name: str) -> None:
    states = [{"name": "side", "state": {"running": {}}}, {"name": "trial", "state": {"terminated": {}}}]
    server.objects["pods", name]["status"] = {"phase": "Running", "containerStatuses": states}


class TestFollow:
    def test_shows_each_attempt_until_the_trial_ends(self, followed: Followed) -> None:
        def first() -> None:
            followed.runs(1)
            followed.prints(b"one\n")

        def second() -> None:
            followed.leaves(1)
            followed.runs(2)
            followed.prints(b"two\n", "climb-d75de-00003-2")

        def end() -> None:
            followed.leaves(2)
            followed.ends()

        assert followed.read(first, second, end) == b"one\ntwo\n"

    def test_ends_with_a_pod_that_is_kept(self, followed: Followed, server: ApiServer) -> None:
        for attempt in (1, 2):
            followed.runs(attempt)
            end_pod(server, f"climb-d75de-00003-{attempt}")
        followed.prints(b"two\n", "climb-d75de-00003-2")
        followed.ends()
        assert followed.read() == b"two\n"

    def test_ends_when_the_trial_was_deleted(self, followed: Followed, server: ApiServer) -> None:
        followed.runs(1)
        followed.prints(b"one\n")

        def delete() -> None:
            followed.leaves()
            del server.objects["tunetrials", "climb-d75de-00003"]

        assert followed.read(delete) == b"one\n"

    def test_says_that_the_trial_was_deleted_before_it_ran(self, followed: Followed, server: ApiServer) -> None:
        with pytest.raises(TrialpodError, match="climb-d75de-00003 was deleted while this waited for its output"):
            followed.read(lambda: server.objects.pop(("tunetrials", "climb-d75de-00003")))
        server.put("tunetrials", trial_object("climb", 3, "RUNNING"))
        with pytest.raises(TrialpodError, match="was deleted while this waited"):
            followed.read(lambda: server.put("tunetrials", trial_object("climb", 3, "RUNNING")))

    def test_continues_where_the_connection_broke_off(self, followed: Followed) -> None:
        followed.runs(1)
        followed.prints(Cut(b"one\ntwo\nthree\nfo"))

        def again() -> None:
            followed.prints(b"one\ntwo\nthree\nfour\n\nfive\n")

        def end() -> None:
            followed.leaves()
            followed.ends()

        assert followed.read(again, end) == b"one\ntwo\nthree\nfour\n\nfive\n"

    def test_shows_progress_bars_before_their_line_ends(self, followed: Followed) -> None:
        followed.runs(1)
        followed.prints(Cut(b"one\n10%\r20%\r3"))

        def again() -> None:
            assert followed.out.getvalue() == b"one\n10%\r20%\r"
            followed.prints(Cut(b"one\n10%\r20%\r30%\r\ntwo\n1%\r"))

        def more() -> None:
            followed.prints(b"one\n10%\r20%\r30%\r\ntwo\n1%\r2%\rthree\n")

        def end() -> None:
            followed.leaves()
            followed.ends()

        assert followed.read(again, more, end) == b"one\n10%\r20%\r30%\r\ntwo\n1%\r2%\rthree\n"

    def test_continues_when_the_server_ends_an_answer_early(self, followed: Followed, server: ApiServer) -> None:
        """As it does when it is restarted: the pod still runs."""
        followed.runs(1)
        followed.prints(b"one\n")

        def more() -> None:
            followed.prints(b"one\ntwo\n")
            end_pod(server, "climb-d75de-00003-1")

        assert followed.read(more, followed.ends) == b"one\ntwo\n"

    def test_survives_a_server_that_is_busy(
        self, followed: Followed, server: ApiServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        followed.runs(1)
        followed.prints({"code": 503, "reason": "ServiceUnavailable", "message": "starting"})
        pods = {"code": 429, "reason": "TooManyRequests", "message": "slow down"}

        def list_nothing() -> None:
            server.routes["GET", f"{CORE}/pods"] = pods

        def recover() -> None:
            del server.routes["GET", f"{CORE}/pods"]
            followed.prints(b"one\n")

        def end() -> None:
            followed.leaves()
            followed.ends()

        assert followed.read(lambda: None, list_nothing, recover, end) == b"one\n"
        notices = capsys.readouterr().err.splitlines()
        assert [("starting" in line, "slow down" in line) for line in notices] == [(True, False), (False, True)]

    def test_a_refusal_ends_it(self, followed: Followed) -> None:
        followed.runs(1)
        followed.prints({"code": 403, "reason": "Forbidden", "message": "no"})
        with pytest.raises(InvalidInputError, match="may not get pods/log"):
            followed.read()

    def test_a_pod_that_cannot_be_read_ends_with_its_trial(
        self, followed: Followed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from trialpod_operator.commands import logs

        monkeypatch.setattr(logs, "UPLOAD_TIMEOUT_S", 0.0)
        followed.runs(1)
        followed.prints(b"one\n")

        def lose() -> None:
            followed.prints({"code": 500, "reason": "InternalError", "message": "dial tcp: i/o timeout"})
            followed.ends("ERROR")

        assert followed.read(lose) == b"one\n"

    def test_shows_a_trial_that_resumes_in_a_reused_pod(self, followed: Followed) -> None:
        name = "climb-d75de-00003-1"
        log = [
            b"start\n\ntrialpod: trial d75de_00003 attempt 1\none\n",
            b"\ntrialpod: trial d75de_00007 attempt 1\nother\n",
            b"\ntrialpod: trial d75de_00003 attempt 2\ntwo\n",
        ]
        followed.runs(1, name=name)
        followed.prints(b"".join(log[:2]))

        def other() -> None:
            followed.runs(1, name=name, number=7)

        def resume() -> None:
            followed.runs(2, name=name)
            followed.prints(b"".join(log))

        def end() -> None:
            followed.leaves()
            followed.ends()

        own = b"start\ntrialpod: trial d75de_00003 attempt 1\none\ntrialpod: trial d75de_00003 attempt 2\ntwo\n"
        assert followed.read(other, resume, end) == own

    def test_begins_with_the_last_lines(self, followed: Followed, server: ApiServer) -> None:
        followed.runs(1)
        followed.prints(b"one\ntwo\nthree\n")

        def more() -> None:
            followed.prints(b"one\ntwo\nthree\nfour\nfive\nsix\n")
            end_pod(server, "climb-d75de-00003-1")

        assert followed.read(more, followed.ends, tail=2) == b"two\nthree\nfour\nfive\nsix\n"


def test_following_and_earlier_attempts_exclude_each_other(trialpod: Run) -> None:
    assert "choose one of them" in trialpod("logs", "climb", "3", "-f", "-p", status=2)


# -- suspend, resume, stop, delete --


def test_suspending_and_resuming_change_one_field(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    assert "to resume: trialpod resume climb -n team" in trialpod("suspend", "climb")
    assert server.experiment("climb")["spec"]["suspend"] is True
    assert "suspended already" in trialpod("suspend", "climb")
    assert "climb resumes" in trialpod("resume", "climb")
    assert server.experiment("climb")["spec"]["suspend"] is False
    assert "is not suspended" in trialpod("resume", "climb")


def test_stopping_names_the_generation_that_is_to_stop(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    server.experiment("climb")["metadata"]["generation"] = 3
    assert "climb is being stopped" in trialpod("stop", "climb")
    assert server.experiment("climb")["metadata"]["annotations"] == {"trialpod.dev/stop": "3"}
    assert server.experiment("climb")["metadata"]["generation"] == 3
    assert "cannot be undone" in trialpod("resume", "climb", status=2)


def test_an_experiment_that_was_stopped_and_continued_resumes(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    trialpod("stop", "climb")
    trialpod("suspend", "climb")
    climb = server.experiment("climb")
    climb["metadata"]["generation"] += 1  # of more samples
    assert "climb resumes" in trialpod("resume", "climb")
    trialpod("suspend", "climb")
    climb["metadata"]["annotations"] = {}
    climb["status"] = {"conditions": [{"type": "Ready", "status": "True", "reason": "Stopping"}]}
    assert "cannot be undone" in trialpod("resume", "climb", status=2)


class TestRetry:
    def test_asks_for_all_failed_trials(self, server: ApiServer, trialpod: Run) -> None:
        server.put("tuneexperiments", climbing(trials={"error": 1, "done": 2, "total": 4}))
        server.experiment("climb")["metadata"]["annotations"] = {"trialpod.dev/stop": "3"}
        assert "its failed trials to be retried from their newest checkpoints" in trialpod("retry", "climb")
        notes = server.experiment("climb")["metadata"]["annotations"]
        assert list(notes) == ["trialpod.dev/retry"]
        first = notes["trialpod.dev/retry"]
        trialpod("retry", "climb")
        assert server.experiment("climb")["metadata"]["annotations"]["trialpod.dev/retry"] != first

    def test_asks_for_one(self, server: ApiServer, trialpod: Run) -> None:
        server.put("tuneexperiments", climbing())
        server.put("tunetrials", trial_object("climb", 3, "RUNNING"))
        server.put("tunetrials", trial_object("climb", 4, "ERROR"))
        said = trialpod("retry", "climb", "3", status=2)
        assert "has not failed: it is running; nothing was changed (failed: d75de_00004)" in said
        assert "d75de_00004 to be retried from scratch" in trialpod("retry", "climb", "4", "--from-scratch")
        asked = server.experiment("climb")["metadata"]["annotations"]["trialpod.dev/retry"]
        assert asked.split()[1:] == ["from-scratch", "d75de_00004"]

    def test_says_how_a_continued_trial_stands(self, server: ApiServer, trialpod: Run) -> None:
        server.put("tuneexperiments", climbing())
        trial = trial_object("climb", 3, "TERMINATED")
        trial["status"].update(attempt=3, failures=2)
        server.put("tunetrials", trial)
        said = trialpod("retry", "climb", "3", status=2)
        assert "it completed, attempt 3, after 2 failures; nothing was changed (no other trial has failed" in said

    def test_refuses_where_nothing_has_failed(self, server: ApiServer, trialpod: Run) -> None:
        server.put("tuneexperiments", climbing(trials={"error": 0, "done": 2, "total": 4}))
        assert "no trial of climb has failed" in trialpod("retry", "climb", status=2)


def test_one_trial_can_be_stopped(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    server.put("tunetrials", {**trial_object("climb", 3, "RUNNING")})
    assert "climb-d75de-00003 is being stopped" in trialpod("stop", "climb", "--trial", "3")
    assert server.objects["tunetrials", "climb-d75de-00003"]["spec"]["stop"] is True
    server.put("tunetrials", trial_object("climb", 4, "ERROR"))
    assert "has ended already (ERROR)" in trialpod("stop", "climb", "--trial", "4", status=2)


def test_what_has_ended_cannot_be_stopped(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing(conditions=[condition_of("Succeeded", "True", "Succeeded")]))
    assert "climb has ended (Succeeded) and cannot be stopped" in trialpod("stop", "climb", status=2)
    assert "numSamples" in trialpod("resume", "climb", status=2)


def test_deleting_says_what_becomes_of_the_data(server: ApiServer, trialpod: Run) -> None:
    server.put("tuneexperiments", climbing())
    text = trialpod("delete", "climb", status=2)
    assert "1/4 trials done, 1 running, which end now" in text
    assert "s3://tune/runs/climb stays" in text
    assert "add --yes" in text
    assert server.experiment("climb")
    item = climbing()
    item["spec"]["storage"]["deletionPolicy"] = "Delete"
    server.put("tuneexperiments", item)
    assert "s3://tune/runs/climb is deleted too" in trialpod("delete", "climb", "--yes", "--wait")
    assert ("tuneexperiments", "climb") not in server.objects
    assert "there is no TuneExperiment climb" in trialpod("delete", "climb", "--yes", status=2)


def test_delete_says_how_to_delete_a_folder(
    server: ApiServer, trialpod: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("tuneexperiments", climbing())
    (tmp_path / "trialpod-results" / "climb" / ".trialpod").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    text = trialpod("delete", "climb", "--yes", status=2)
    assert "rm -r trialpod-results/climb. " in text
    assert "trialpod delete climb -n NAMESPACE" in text
    assert server.experiment("climb")


# -- results, best --


def test_results_by_name_use_the_cluster_without_storage(server: ApiServer, trialpod: Run) -> None:
    server.put(
        "tuneexperiments", climbing(best={"trial": "climb-d75de-00001", "trialId": "d75de_00001", "value": "0.25"})
    )
    for number in range(2):
        server.put("tunetrials", trial_object("climb", number, "TERMINATED", value=str(0.5 / (number + 1))))
    server.routes["GET", f"{CORE}/secrets/minio"] = {"code": 403, "reason": "Forbidden", "message": "no"}
    text = trialpod("results", "climb")
    assert "may not read the Secret minio: set AWS_ACCESS_KEY_ID" in text
    assert "d75de_00001  TERMINATED     3  0.25" in text
    rows = trialpod("results", "climb", "-o", "csv").splitlines()
    assert rows[0].startswith("trial_id,name,status")
    assert "best trial: climb-d75de-00001" in trialpod("best", "climb")
    assert "lr: 0.1" in trialpod("best", "climb", "--output", "yaml")
    assert "choose one" in trialpod("results", "climb", "--json", "-o", "csv", status=2)


def test_a_name_that_is_nowhere_is_reported(
    server: ApiServer, trialpod: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("tuneexperiments", climbing())
    assert "did you mean climb?" in trialpod("results", "clim", status=2)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    text = trialpod("results", "clim", status=2)
    assert "clim does not exist, here or in ./trialpod-results; if it is the name of an experiment" in text
    assert "in a cluster: no cluster is known" in text
    assert "--kubeconfig FILE" in text
