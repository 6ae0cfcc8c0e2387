"""Programs as trials in pods: metrics out of their lines, checkpoints out of their folder, ends by a decision."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, manifest

pytestmark = pytest.mark.usefixtures("operator")

STEPS = 12
PROGRAM = """
state=$TRIALPOD_CHECKPOINT_DIR/step
step=0
[ -f $state ] && step=$(cat $state)
echo "begins at $step: resumed=$TRIALPOD_RESUMED, arguments: $*"
while [ $step -lt $2 ]; do
    sleep 0.3
    step=$((step + 1))
    awk -v step=$step -v height=$1 'BEGIN {{ print "step=" step, "score=" step * height }}'
    echo $step > $state.tmp
    mv $state.tmp $state
    trialpod-report --checkpoint
    [ $step = $3 ] && [ $TRIALPOD_RESUMED = 0 ] && sleep 250
done
true
"""


def program(namespace: Cluster, name: str, heights: list[float], hold: int = 0, **spec: Any) -> dict[str, Any]:
    """Return an experiment whose program stops at the step `hold` until it is ended; 0 = it does not."""
    document = manifest(namespace, name, searchSpace={"height": {"grid_search": heights}}, **spec)
    document["spec"]["trainable"] = {
        "command": ["bash", "-c", PROGRAM, "climb", "{height}", str(STEPS), str(hold)],
        "resumeArgs": ["--again"],
        "metricsFrom": {"step": "step"},
    }
    del document["spec"]["stop"], document["spec"]["checkpoint"]
    return document


class TestProgramsInPods:
    def test_an_evicted_program_continues_where_it_was(self, namespace: Cluster) -> None:
        experiment = Experiment.apply(namespace, program(namespace, "evicted", [2.5], hold=4))
        experiment.wait_for_checkpoint(4)
        namespace.evict(experiment.running_pod())
        status = experiment.wait_until_over()
        assert status["best"]["value"] == "30"
        assert experiment.trial_status()["attempt"] == 2
        begins = f"begins at 4: resumed=1, arguments: 2.5 {STEPS} 4 --again"
        namespace.wait_for(lambda: begins in experiment.logs(), "the log of the second attempt is kept", 60)
        (rows,) = experiment.results()
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        assert all(row["score"] == 2.5 * row["training_iteration"] for row in rows)
        assert_history(experiment)

    def test_a_scheduler_ends_programs_that_are_behind(self, namespace: Cluster) -> None:
        asha = {"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 3}}
        document = program(namespace, "asha", [4.0, 3.0, 2.0, 1.0], scheduler=asha, maxConcurrentTrials=2)
        experiment = Experiment.apply(namespace, document)
        assert experiment.wait_until_over()["best"]["value"] == "48"
        assert [trial["status"]["state"] for trial in experiment.trials()] == ["TERMINATED"] * 4
        lengths = {rows[0]["config"]["height"]: len(rows) for rows in experiment.results()}
        assert lengths[4.0] == STEPS
        assert 2 <= lengths[1.0] < STEPS
        assert_history(experiment)
