"""The statuses of every state, as kstatus's own library judges them: it and `kstatus.verdict` say the same.

The library is a Go program, built by ``tools/build_go kstatus`` (the tests in the cluster do that). Without it there
is nothing to compare.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kstatus import verdict
from test_argocd_health import EXPERIMENTS, TRIALS, experiment, trial

ROOT = Path(__file__).parents[4]


def library() -> Path:
    done = subprocess.run([ROOT / "tools/build_go", "--where", "kstatus"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def judged(resources: list[dict[str, Any]]) -> list[str]:
    program = library()
    if not program.exists():
        pytest.skip("kstatus is not built here: run tools/build_go kstatus")
    text = "\n".join(json.dumps(each) for each in resources)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["status"] for line in done.stdout.splitlines()]


def resource(state: str, **metadata: Any) -> dict[str, Any]:
    return whole("TuneExperiment", experiment(state), **metadata)


def whole(kind: str, made: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": "trialpod.dev/v1alpha1", "kind": kind}
    return {**head, **made, "metadata": {"name": "digits", "namespace": "team", **made["metadata"], **metadata}}


def test_every_state_is_what_the_library_says() -> None:
    resources = [resource(state) for state in EXPERIMENTS]
    resources += [resource(state, generation=3) for state in EXPERIMENTS]
    resources += [whole("TuneTrial", trial(state)) for state in TRIALS]
    resources += [resource("running", deletionTimestamp="2026-01-01T00:00:00Z")]
    resources += [{**resource("running"), "status": {"observedGeneration": -1}}]
    assert judged(resources) == [verdict(each) for each in resources]
