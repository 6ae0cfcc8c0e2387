"""Programs in images without Python, shell or C library, as any user, with a read-only root."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_access import RESTRICTED, Cluster
from experiments import Experiment, assert_history, manifest
from testcluster import images

pytestmark = pytest.mark.usefixtures("operator")

STEPS = 12
USER = 12345


def climb(
    namespace: Cluster,
    name: str,
    image: str,
    heights: list[float],
    *,
    program: str = "/climb",
    hold: int = 0,
    **spec: Any,
) -> dict[str, Any]:
    """Return an experiment whose pods may do nothing but run the program."""
    document = manifest(namespace, name, searchSpace={"height": {"grid_search": heights}}, **spec)
    document["spec"]["trainable"] = {
        "command": [program, "{height}", str(STEPS), str(hold)],
        "metricsFrom": {"step": "step"},
        "checkpointFolder": {"readyFile": "step"},
    }
    container = {"name": "trial", "image": image, "securityContext": {**RESTRICTED, "runAsUser": USER}}
    document["spec"]["template"] = {"spec": {"terminationGracePeriodSeconds": 15, "containers": [container]}}
    del document["spec"]["stop"], document["spec"]["checkpoint"]
    return document


def suspend(namespace: Cluster, experiment: Experiment, value: bool) -> None:
    """Suspend or resume an experiment."""
    patch = json.dumps({"spec": {"suspend": value}})
    namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", patch)


class TestOtherCLibrary:
    def test_a_program_of_musl_is_evicted_and_continues(self, restricted: Cluster, musl_image: str) -> None:
        experiment = Experiment.apply(restricted, climb(restricted, "musl", musl_image, [2.5], hold=4))
        experiment.wait_for_iteration(4)
        restricted.evict(experiment.running_pod())
        experiment.wait_for_iteration(8)
        restricted.evict(experiment.running_pod())
        assert experiment.wait_until_over()["best"]["value"] == "30"
        (rows,) = experiment.results()
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        assert_history(experiment)


WHICH = """
import sys
from trialpod import tune


class Steps(tune.Trainable):
    def setup(self, config):
        self.step_number = 0

    def step(self):
        self.step_number += 1
        return {"score": self.step_number, "python": "%d.%d" % sys.version_info[:2], "from": tune.__file__}

    def save_checkpoint(self, folder):
        with open(folder + "/step", "w") as file:
            file.write(str(self.step_number))

    def load_checkpoint(self, folder):
        with open(folder + "/step") as file:
            self.step_number = int(file.read())
"""


class TestPythonWithoutTrialpod:
    @pytest.mark.parametrize(
        ("name", "python"),
        [("bookworm", "3.11"), ("trixie", "3.13"), pytest.param("python310", "3.10", marks=pytest.mark.addon)],
    )
    def test_a_class_trains_and_checkpoints(self, name: str, python: str, restricted: Cluster) -> None:
        image = images.import_debian(name) if name in images.DEBIANS else images.import_added(name)
        document = manifest(restricted, "plain", source=WHICH, steps=6, checkpoint={"frequency": 2})
        container = {"name": "trial", "image": image, "securityContext": {**RESTRICTED, "runAsUser": USER}}
        document["spec"]["template"] = {"spec": {"containers": [container]}}
        experiment = Experiment.apply(restricted, document)
        experiment.wait_until_over()
        (rows,) = experiment.results()
        assert {row["python"] for row in rows} == {python}
        assert rows[0]["from"].startswith("/var/run/trialpod-runtime/code.zip/")
        assert experiment.checkpoint_iterations()[-1] == 6
        assert_history(experiment)

    def test_an_image_without_python_is_named(self, restricted: Cluster, image: str) -> None:
        document = manifest(restricted, "none", source=WHICH)
        container = {"name": "trial", "image": image, "securityContext": {**RESTRICTED, "runAsUser": USER}}
        document["spec"]["template"] = {"spec": {"containers": [container]}}
        experiment = Experiment.apply(restricted, document)
        experiment.wait_until_over()
        assert "the image has no python or python3" in experiment.trial_status()["message"]
        assert experiment.trial_status()["attempt"] == 1, "another attempt cannot help"


class TestImagesWithNothingInThem:
    def test_a_program_is_evicted_paused_and_continues(self, restricted: Cluster, image: str) -> None:
        experiment = Experiment.apply(restricted, climb(restricted, "bare", image, [2.5], hold=4))
        experiment.wait_for_iteration(4)
        restricted.evict(experiment.running_pod())
        experiment.wait_for_iteration(8)
        suspend(restricted, experiment, True)
        experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "it is suspended", 60)
        suspend(restricted, experiment, False)
        status = experiment.wait_until_over()
        assert status["best"]["value"] == "30"
        for start in (4, 8):
            words = f"begins at {start}: resumed=1, user {USER}"
            restricted.wait_for(lambda words=words: words in experiment.logs(), "the log of each attempt is kept", 60)
        (rows,) = experiment.results()
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        assert_history(experiment)

    def test_a_scheduler_ends_programs_that_are_behind(self, restricted: Cluster, image: str) -> None:
        asha = {"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 3}}
        document = climb(restricted, "asha", image, [4.0, 3.0, 2.0, 1.0], scheduler=asha, maxConcurrentTrials=2)
        experiment = Experiment.apply(restricted, document)
        assert experiment.wait_until_over()["best"]["value"] == "48"
        assert [trial["status"]["state"] for trial in experiment.trials()] == ["TERMINATED"] * 4
        lengths = {rows[0]["config"]["height"]: len(rows) for rows in experiment.results()}
        assert lengths[4.0] == STEPS
        assert 2 <= lengths[1.0] < STEPS
        assert_history(experiment)

    def test_a_program_that_is_not_there_is_named(self, restricted: Cluster, image: str) -> None:
        experiment = Experiment.apply(restricted, climb(restricted, "lost", image, [1.0], program="/clim"))
        experiment.wait_until_over()
        assert "/clim" in experiment.trial_status()["message"]
