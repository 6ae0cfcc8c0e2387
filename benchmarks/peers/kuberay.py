"""Ray Tune on KubeRay: the operator from its Go module, Ray from its wheel, an experiment as a RayJob.

The operator's manifests are those of `config/default`. What differs: images, which there is no registry for; operator
and head stay on one node; one worker on each node, with four logical CPUs, so eight trials at a time.
"""

from __future__ import annotations

import json
from typing import Any

import ingredients
import yaml
from access import Cluster, KubectlError, binaries, system
from image import Image, give
from peer import SOURCE, Part, Peer, Run, config_map, listed, pinned, program_image

NAMESPACE = "ray-system"
USER = 65532
WORKERS = 2
_RAY = b'#!/bin/sh\nexec python3 -m ray.scripts.scripts "$@"\n'
_TUNE = """
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train(config):
    steps_of(repr(config["x"]), config["x"], {steps}, {seconds}, lambda value: tune.report({{"score": value}}))


NAME, PLACE = "experiment", "/shared"
if tune.Tuner.can_restore(f"{{PLACE}}/{{NAME}}"):
    tuner = tune.Tuner.restore(f"{{PLACE}}/{{NAME}}", train)
else:
    tuner = tune.Tuner(
        train,
        param_space={{"x": tune.uniform(0.0, 1.0)}},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples={trials}, max_concurrent_trials={at_once},
            scheduler=ASHAScheduler(max_t={steps}, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name=NAME, storage_path=PLACE),
    )
tuner.fit()
"""


class KubeRay(Peer):
    """Ray Tune with ASHA, in a Ray cluster that KubeRay makes for the experiment."""

    name = "kuberay"
    title = "Ray Tune on KubeRay"
    method = "ASHA"
    namespaces = (NAMESPACE,)
    parts = (
        Part("operator", "app.kubernetes.io/component=kuberay-operator", NAMESPACE),
        Part("head", "ray.io/node-type=head"),  # a RayJob's backoffLimit is 0 by default
        Part("head, backoffLimit 1", "ray.io/node-type=head", retries=1),
    )

    def versions(self) -> dict[str, str]:
        """Return the versions of what it consists of."""
        return {"KubeRay": ingredients.module_version("kuberay"), "Ray": ingredients.RAY_VERSION}

    def install(self) -> None:
        """Install it, and wait until it is ready."""
        self.remove()
        self._image()
        own = Cluster(NAMESPACE)
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        objects = self._objects()
        objects.sort(key=lambda each: (each["kind"] != "CustomResourceDefinition", each["kind"] == "Deployment"))
        own.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=listed(objects), timeout=120)
        try:
            own.kubectl("rollout", "status", "deployment/kuberay-operator", "--timeout=180s", timeout=200)
        except KubectlError as error:
            raise system.ClusterError(f"{error}\n{own.describe_failure()}") from error

    def remove(self) -> None:
        """Remove all of it."""
        for plural in ("rayjobs", "rayclusters", "rayservices", "raycronjobs"):
            self._release(plural)
            self.cluster.kubectl("delete", "crd", f"{plural}.ray.io", "--ignore-not-found", timeout=120)
        label = ("-l", "app.kubernetes.io/name=kuberay")
        self.cluster.kubectl("delete", "clusterroles,clusterrolebindings", *label, "--ignore-not-found")
        for kind, name in (("clusterrole", "kuberay-operator"), ("clusterrolebinding", "kuberay-operator")):
            self.cluster.kubectl("delete", kind, name, "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)

    def _release(self, plural: str) -> None:
        try:
            found = self.cluster.kubectl_json("get", f"{plural}.ray.io", "--all-namespaces")["items"]
        except KubectlError:
            return  # the kind is not there
        for each in found:
            arguments = (f"{plural}.ray.io", each["metadata"]["name"], "-n", each["metadata"]["namespace"])
            self.cluster.kubectl("delete", *arguments, "--wait=false", "--ignore-not-found", check=False)
            nothing = json.dumps({"metadata": {"finalizers": None}})
            self.cluster.kubectl("patch", *arguments, "--type=merge", "-p", nothing, check=False)

    def _objects(self) -> list[dict[str, Any]]:
        folder = ingredients.module_folder("kuberay") / "config"
        # In two parts: the definitions, which nothing changes, would take kustomize minutes.
        made = [system.run([binaries.path("kubectl"), "kustomize", folder / part]) for part in ("rbac", "manager")]
        programs = ingredients.program_folder("kuberay")
        reference = program_image(programs / "manager", "manager", programs.name.rpartition("-")[2])
        texts = [*made, *(file.read_text() for file in sorted((folder / "crd/bases").glob("*.yaml")))]
        objects = [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]
        for each in objects:
            each["metadata"].pop("namespace", None)  # whatever has one is applied to this one
            for subject in each.get("subjects", ()):
                subject["namespace"] = NAMESPACE
            if each["kind"] == "Deployment":
                pod = each["spec"]["template"]["spec"]
                pod["containers"][0].update(image=reference, imagePullPolicy="Never")
                pod["securityContext"] = {**(pod.get("securityContext") or {}), "runAsUser": USER}
                each["spec"]["template"]["spec"] = pinned(pod)
        return objects

    @staticmethod
    def _image() -> str:
        made = Image(
            "peers-ray",
            {ingredients.ray(): "/opt/packages"},
            files=[("/usr/local/bin/ray", _RAY, 0o755), ("/usr/local/bin/python", "/usr/bin/python3", 0o777)],
            variables={
                "PYTHONPATH": "/opt/packages", "HOME": "/tmp", "USER": "ray", "LOGNAME": "ray",
                "PYTHONDONTWRITEBYTECODE": "1", "RAY_USAGE_STATS_ENABLED": "0",
            },
        )  # fmt: skip
        return give(made)

    def documents(self, run: Run) -> list[dict[str, Any]]:
        """Return what is applied: the experiment is the last one."""
        work, image = run.work, self._image()
        volumes, mounts = run.volumes(shared=run.shared)
        volumes.append({"name": "code", "configMap": {"name": "code"}})
        mounts.append({"name": "code", "mountPath": "/code"})

        def pod(name: str, memory: str, **spec: Any) -> dict[str, Any]:
            resources = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": memory}}
            container = {"name": name, "image": image, "resources": resources, "volumeMounts": mounts}
            return {"spec": {"containers": [container], "volumes": volumes, **spec}}

        apart = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}},
        }
        workers = {
            "groupName": "workers",
            "replicas": WORKERS,
            "minReplicas": WORKERS,
            "maxReplicas": WORKERS,
            "rayStartParams": {"num-cpus": str(work.at_once // WORKERS)},
            "template": pod("ray-worker", "5Gi", topologySpreadConstraints=[apart]),
        }
        head = {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": pod("ray-head", "4Gi", **pinned({})),
        }
        metadata = {"name": run.name, "namespace": run.space.namespace}
        job = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata,
            "spec": {
                "entrypoint": "python3 /code/tune_job.py",
                "backoffLimit": run.retries,
                "rayClusterSpec": {
                    "rayVersion": ingredients.RAY_VERSION,
                    "headGroupSpec": head,
                    "workerGroupSpecs": [workers],
                },
            },
        }
        code = SOURCE + _TUNE.format(steps=work.steps, seconds=work.step_s, trials=work.trials, at_once=work.at_once)
        return [config_map(run, "code", tune_job__py=code), job]

    def state(self, run: Run) -> tuple[bool, str]:
        """Return whether an experiment has ended, and how."""
        status = (run.space.get("rayjob", run.name) or {}).get("status") or {}
        deployment, job = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
        said = " ".join(str(status.get(key) or "") for key in ("reason", "message")).strip()[:300]
        return deployment in (
            "Complete",
            "Failed",
            "ValidationFailed",
        ), f"{job or 'no job yet'} ({deployment}) {said}"

    def results(self, run: Run) -> set[str]:
        """Return the parameter of each trial with a result."""
        found = set()
        for file in run.shared.glob("experiment/*/result.json"):
            for line in file.read_text().splitlines():
                try:
                    found.add(repr(json.loads(line)["config"]["x"]))
                except ValueError:
                    continue  # cut off when its writer was killed
        return found

    def is_overhead(self, pod: dict[str, Any], line: str) -> bool:
        """Return whether a process is not a trial."""
        return not line.startswith("ray::ImplicitFunc")
