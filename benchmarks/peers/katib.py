"""Katib, made of what its Go module has, and PostgreSQL from Debian.

Controller, database manager, metrics collector and the goptuna service are programs of the module; the early stopping
service is Python from its folder. Its manifests are those of its installation `katib-standalone-postgres`. What
differs: images, which there is no registry for; `random` is served by Katib's goptuna service, not by its hyperopt
one; no UI; the database's volume is a folder of the node; its own deployments stay on one node.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import ingredients
import yaml
from access import FOLDER, Cluster, KubectlError, binaries, images, system
from image import Image, give
from measure import until
from peer import SOURCE, Part, Peer, Run, config_map, listed, pinned, program_image

NAMESPACE = "kubeflow"
INSTALLATION = "manifests/v1beta1/installs/katib-standalone-postgres"
MEDIAN_STOP = "cmd/earlystopping/medianstop/v1beta1"
LABEL = "katib.kubeflow.org/component"
USER = 65532
DATABASE_USER = 999
_PLACE = "/opt/katib"
_SECURED = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
_PROGRAM = """
import argparse

arguments = argparse.ArgumentParser()
arguments.add_argument("--name")
arguments.add_argument("--x", type=float)
given = arguments.parse_args()
steps_of(given.name, given.x, {steps}, {seconds}, lambda value: print(f"score={{value}}", flush=True))
"""
_DATABASE = """
set -eu
bin=/usr/lib/postgresql/15/bin
if [ ! -e "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  $bin/initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --locale=C.UTF-8 > /dev/null
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  $bin/pg_ctl -w -o "-k /tmp -c listen_addresses=''" start > /dev/null
  PGPASSWORD=$POSTGRES_PASSWORD $bin/createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
  $bin/pg_ctl -w stop > /dev/null
fi
rm -f "$PGDATA/postmaster.pid"
exec $bin/postgres -k /tmp -c listen_addresses='*'
"""


class Katib(Peer):
    """Katib, with random search and median stopping."""

    name = "katib"
    title = "Katib"
    method = "random search (goptuna service) and median stopping"
    namespaces = (NAMESPACE,)
    parts = (
        Part("controller", f"{LABEL}=controller", NAMESPACE),
        Part("database", f"{LABEL}=postgres", NAMESPACE),
        Part("suggestion service", "katib.kubeflow.org/deployment"),
    )
    space_labels: ClassVar = {"katib.kubeflow.org/metrics-collector-injection": "enabled"}

    def versions(self) -> dict[str, str]:
        """Return the versions of what it consists of."""
        return {"Katib": ingredients.module_version("katib"), "PostgreSQL": ingredients.database_version()}

    def install(self) -> None:
        """Install it, and wait until it is ready."""
        self.remove()
        objects = self._objects()
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        database = FOLDER / "katib-database"
        database.mkdir(parents=True)
        database.chmod(0o777)
        own = Cluster(NAMESPACE)
        objects.sort(key=lambda each: (each["kind"] != "CustomResourceDefinition", each["kind"] == "Deployment"))
        own.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=listed(objects), timeout=120)
        for name in ("katib-postgres", "katib-db-manager", "katib-controller"):
            try:
                own.kubectl("rollout", "status", f"deployment/{name}", "--timeout=180s", timeout=200)
            except KubectlError as error:
                raise system.ClusterError(f"{error}\n{own.describe_failure()}") from error
        if not until(self._answers, 60):
            raise system.ClusterError("Katib's webhook does not answer within 60 s")

    def _answers(self) -> bool:
        """Return whether the webhook refuses what is not an experiment."""
        nothing = {
            "apiVersion": "kubeflow.org/v1beta1",
            "kind": "Experiment",
            "metadata": {"name": "none", "namespace": "default"},
            "spec": {},
        }
        said = self.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(nothing), check=False)
        return "validator.experiment" in said and "denied" in said

    def remove(self) -> None:
        """Remove all of it."""
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
            self.cluster.kubectl("delete", kind, "katib.kubeflow.org", "--ignore-not-found")
        for plural in ("experiments", "suggestions", "trials"):
            self._release(plural)
            self.cluster.kubectl("delete", "crd", f"{plural}.kubeflow.org", "--ignore-not-found", timeout=120)
        for kind, name in (("clusterrole", "katib-controller"), ("clusterrolebinding", "katib-controller")):
            self.cluster.kubectl("delete", kind, name, "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)
        system.run(["rm", "-rf", "--one-file-system", FOLDER / "katib-database"])

    def _release(self, plural: str) -> None:
        """Take away finalizers: who would answer them may be gone."""
        try:
            found = self.cluster.kubectl_json("get", f"{plural}.kubeflow.org", "--all-namespaces")["items"]
        except KubectlError:
            return  # the kind is not there
        for each in found:
            place = ("-n", each["metadata"]["namespace"])
            arguments = (f"{plural}.kubeflow.org", each["metadata"]["name"], *place)
            self.cluster.kubectl("delete", *arguments, "--wait=false", "--ignore-not-found", check=False)
            nothing = json.dumps({"metadata": {"finalizers": None}})
            self.cluster.kubectl("patch", *arguments, "--type=merge", "-p", nothing, check=False)

    # What it is made of

    def _images(self) -> dict[str, str]:
        """Return the images by the last part of the name that Katib's manifests have for them."""
        programs = ingredients.program_folder("katib")
        key = programs.name.rpartition("-")[2]
        source = ingredients.module_folder("katib")
        users = f"root:x:0:0::/root:/bin/sh\npostgres:x:{DATABASE_USER}:{DATABASE_USER}::/tmp:/bin/sh\n"
        medianstop = Image(
            "katib-medianstop",
            {
                ingredients.early_stopping(): "/opt/packages",
                source / "pkg": f"{_PLACE}/pkg",
                source / MEDIAN_STOP: f"{_PLACE}/{MEDIAN_STOP}",
            },
            entry_point=("python3", f"{_PLACE}/{MEDIAN_STOP}/main.py"),
            variables={
                "PYTHONPATH": f"{_PLACE}:{_PLACE}/pkg/apis/manager/v1beta1/python:/opt/packages",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        postgres = Image(
            "peers-postgres",
            {ingredients.database(): "/"},
            files=[("/etc/passwd", users.encode(), 0o644)],
            user=f"{DATABASE_USER}:{DATABASE_USER}",
        )
        collector = Image(
            f"katib-collector-{key}",
            {ingredients.process_tools(): "/"},
            files=[("/file-metricscollector", (programs / "file-metricscollector").read_bytes(), 0o755)],
            entry_point=("/file-metricscollector",),
        )
        named = {
            name: program_image(programs / name, name, key)
            for name in ("katib-controller", "katib-db-manager", "goptuna-suggestion")
        }
        return {
            "katib-controller": named["katib-controller"],
            "katib-db-manager": named["katib-db-manager"],
            "file-metrics-collector": give(collector),
            "suggestion-goptuna": named["goptuna-suggestion"],
            "earlystopping-medianstop": give(medianstop),
            "postgres": give(postgres),
        }

    def _objects(self) -> list[dict[str, Any]]:
        folder = ingredients.module_folder("katib") / INSTALLATION
        text = system.run([binaries.path("kubectl"), "kustomize", folder], timeout=60)
        made = self._images()
        objects = []
        for each in yaml.load_all(text, yaml.CSafeLoader):
            name, kind = each["metadata"]["name"], each["kind"]
            if "katib-ui" in name or kind in ("Namespace", "PersistentVolumeClaim"):
                continue
            if kind == "Deployment":
                _change_deployment(each, made)
            elif kind == "ConfigMap" and name == "katib-config":
                configuration = yaml.load(each["data"]["katib-config.yaml"], yaml.CSafeLoader)
                _change_configuration(configuration, made)
                each["data"]["katib-config.yaml"] = yaml.safe_dump(configuration)
            objects.append(each)
        return objects

    # Experiments

    def documents(self, run: Run) -> list[dict[str, Any]]:
        """Return what is applied: the experiment is the last one."""
        work = run.work
        volumes, mounts = run.volumes()
        container = {
            "name": "trial",
            "image": images.import_debian("bookworm"),
            "command": ["python3", "/code/trial.py", "--name=${trialParameters.name}", "--x=${trialParameters.x}"],
            "volumeMounts": [*mounts, {"name": "code", "mountPath": "/code"}],
        }
        pod = {
            "restartPolicy": "Never",
            "securityContext": {"runAsUser": USER, "runAsGroup": USER},
            "containers": [container],
            "volumes": [*volumes, {"name": "code", "configMap": {"name": "code"}}],
        }
        settings = {"min_trials_required": "3", "start_step": "2"}
        spec = {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "random"},
            "earlyStopping": {
                "algorithmName": "medianstop",
                "algorithmSettings": [{"name": name, "value": value} for name, value in settings.items()],
            },
            "parallelTrialCount": work.at_once,
            "maxTrialCount": work.trials,
            "maxFailedTrialCount": work.trials,
            "parameters": [{"name": "x", "parameterType": "double", "feasibleSpace": {"min": "0.0", "max": "1.0"}}],
            "trialTemplate": {
                # As in Katib's example of early stopping: without it, v0.19 deletes the Job of a trial that was
                # stopped before it reads the results, and waits for these without end.
                "retain": True,
                "primaryContainerName": "trial",
                "trialParameters": [
                    {"name": "x", "description": "the parameter", "reference": "x"},
                    {"name": "name", "description": "the trial", "reference": "${trialSpec.Name}"},
                ],
                "trialSpec": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}},
            },
        }
        code = SOURCE + _PROGRAM.format(steps=work.steps, seconds=work.step_s)
        metadata = {"name": run.name, "namespace": run.space.namespace}
        experiment = {
            "apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "metadata": metadata, "spec": spec,
        }  # fmt: skip
        return [config_map(run, "code", trial__py=code), experiment]

    def state(self, run: Run) -> tuple[bool, str]:
        """Return whether an experiment has ended, and how."""
        status = (run.space.get("experiment", run.name) or {}).get("status") or {}
        now = {each["type"]: each["status"] == "True" for each in status.get("conditions") or []}
        ended = next((kind for kind in ("Succeeded", "Failed") if now.get(kind)), "")
        counts = {key: value for key, value in status.items() if isinstance(value, int)}
        return bool(ended), f"{ended or 'Running'} {json.dumps(counts)}"

    def results(self, run: Run) -> set[str]:
        """Return the parameter of each trial with a result."""
        return {
            trial["metadata"]["name"]
            for trial in run.space.list("trials")
            if ((trial.get("status") or {}).get("observation") or {}).get("metrics")
        }

    def is_overhead(self, pod: dict[str, Any], line: str) -> bool:
        """Return whether a process is not a trial."""
        labels = pod["metadata"].get("labels") or {}
        is_trial = "batch.kubernetes.io/job-name" in labels
        return not is_trial or "file-metricscollector" in line.split()[0]


def _change_deployment(deployment: dict[str, Any], made: dict[str, str]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    name = container["image"].rpartition("/")[2].partition(":")[0]
    container["image"], container["imagePullPolicy"] = made[name], "Never"
    pod["securityContext"] = {**(pod.get("securityContext") or {}), "runAsUser": USER, "runAsGroup": USER}
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        if "grpc_health_probe" in json.dumps(container.get(probe) or {}):
            container[probe] = {**container[probe], "grpc": {"port": 6789}}  # the kubelet's own, without that program
            del container[probe]["exec"]
    if name == "postgres":
        pod["securityContext"].update(runAsUser=DATABASE_USER, runAsGroup=DATABASE_USER)
        container["command"] = ["bash", "-c", _DATABASE]
        folder = {"path": str(FOLDER / "katib-database"), "type": "Directory"}
        for volume in pod["volumes"]:
            if volume.pop("persistentVolumeClaim", None):
                volume["hostPath"] = folder
    deployment["spec"]["template"]["spec"] = pinned(pod)


def _change_configuration(configuration: dict[str, Any], made: dict[str, str]) -> None:
    configuration["init"]["controller"]["trialResources"] = ["Job.v1.batch"]
    runtime = configuration["runtime"]

    def here(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for entry in entries:
            name = entry["image"].rpartition("/")[2].partition(":")[0]
            if name in made:
                found.append({**entry, "image": made[name], "imagePullPolicy": "Never"})
        return found

    suggestion = {"algorithmName": "random", "image": made["suggestion-goptuna"], "imagePullPolicy": "Never"}
    given = next(each for each in runtime["suggestions"] if each["algorithmName"] == "random")
    runtime["suggestions"] = [{**given, **suggestion}]
    runtime["earlyStoppings"] = here(runtime["earlyStoppings"])
    runtime["metricsCollectors"] = here(runtime["metricsCollectors"])
    for entry in [*runtime["earlyStoppings"], *runtime["metricsCollectors"]]:
        entry["securityContext"] = {**(entry.get("securityContext") or {}), "runAsUser": USER}
    for entry in runtime["suggestions"]:
        entry["podSecurityContext"] = {**(entry.get("podSecurityContext") or {}), **_SECURED}
