"""Commands as trials: real programs, the real `trialpod run`."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_shell import Shell, read_json_lines

pytestmark = pytest.mark.local

TRAIN = """
lr=$1; steps=$2
i=0
[ -f "$TRIALPOD_CHECKPOINT_DIR/step" ] && i=$(cat "$TRIALPOD_CHECKPOINT_DIR/step")
echo "start at $i, resumed=$TRIALPOD_RESUMED, $*"
while [ $i -lt $steps ]; do
    i=$((i + 1))
    echo "step $i: accuracy: 0.$i"
    echo "loss=$lr"
    echo $i > "$TRIALPOD_CHECKPOINT_DIR/step.tmp"
    mv "$TRIALPOD_CHECKPOINT_DIR/step.tmp" "$TRIALPOD_CHECKPOINT_DIR/step"
    if [ -n "$GATE" ] && [ $i -eq 2 ] && [ $TRIALPOD_RESUMED = 0 ]; then
        trialpod-report --checkpoint
        cat "$GATE"
    fi
done
"""


def prepared(shell: Shell, *command: str, source: str = TRAIN, **fields: Any) -> Shell:
    shell.write("train.sh", source)
    own = ("env", "resumeArgs", "parametersFile", "metricsFrom", "checkpointFolder", "gracePeriod", "atHorizon")
    trainable = {name: fields.pop(name) for name in own if name in fields}
    given = {"metric": "loss", "mode": "min", "searchSpace": {"lr": {"grid_search": [0.25, 0.5]}}, **fields}
    shell.manifest(trainable={"command": list(command or ("sh", "train.sh", "{lr}", "3")), **trainable}, **given)
    return shell


def results_of(folder: Path) -> list[dict[str, Any]]:
    return [
        row for file in sorted(folder.glob("trialpod-results/exp/*/result.json")) for row in read_json_lines(file)
    ]


def wait_for_checkpoint(journal: Path, timeout_s: float = 60.0) -> None:
    """Wait until the journal has the first checkpoint."""
    deadline = time.monotonic() + timeout_s
    while not any(b"checkpoint_000000" in file.read_bytes() for file in journal.glob("*.log")):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


class TestRun:
    def test_parameters_metrics_and_the_last_checkpoint(self, shell: Shell) -> None:
        prepared(
            shell, "sh", "-c", '. ./train.sh "$LR" 3; cat params.yaml; echo "[$0]"', "a b;$(x)'{lr}'",
            env={"LR": "{lr}"}, parametersFile="{trial_dir}/params.yaml",
        )  # fmt: skip
        shell.write("train.sh", TRAIN.replace("lr=$1; steps=$2", "lr=$LR; steps=3"))
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        rows = results_of(shell.folder)
        assert [(row["loss"], row["accuracy"], row["training_iteration"]) for row in rows] == [
            (lr, round(0.1 * step, 1), step) for lr in (0.25, 0.5) for step in (1, 2, 3)
        ]
        (kept,) = shell.folder.glob("trialpod-results/exp/*lr=0.2500*/checkpoint_*/step")
        assert kept.read_text() == "3\n"
        (log,) = shell.folder.glob("trialpod-results/exp/*lr=0.2500*/log.txt")
        assert "[a b;$(x)'0.25']" in log.read_text()
        shell.assert_whole()

    def test_failures_say_what_was_there(self, shell: Shell) -> None:
        scripts = {"fail": "echo loss=1; echo broken pipe; exit 3", "silent": "yes los=1 | head -100; echo bye"}
        shell.write("train.sh", f"case $1 in fail) {scripts['fail']};; silent) {scripts['silent']};; esac")
        shell.manifest(
            trainable={"command": ["sh", "train.sh", "{kind}"]},
            searchSpace={"kind": {"grid_search": ["fail", "silent"]}},
            metric="loss",
            mode="min",
        )
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 1
        assert "the command exited with status 3: broken pipe" in done.stdout
        assert "the command ended without a result: 'loss' was not found; did you mean 'los'?" in done.stdout
        assert "; its output ends with 'bye'" in done.stdout
        (log,) = shell.folder.glob("trialpod-results/exp/*kind=silent*/log.txt")
        said = log.read_text()
        assert "100 lines with numbers have come, and no result yet: 'loss' was not found; did you mean" in said
        assert "Looked for in: lines of the output with name=value, name: value or a JSON object" in said
        assert said.endswith("Its last lines:\n" + "  | los=1\n" * 9 + "  | bye\n")

    def test_a_program_that_is_not_there_ends_it_soon(self, shell: Shell) -> None:
        shell.manifest(
            trainable={"command": ["trian", "{x}"]},
            searchSpace={"x": {"uniform": [0, 1]}},
            metric="loss",
            mode="min",
            numSamples=50,
            failurePolicy={"maxFailures": 3},
        )
        done = shell.run("run", "experiment.yaml", "--max-concurrent", "1")
        assert done.returncode == 1
        assert "the first 3 trials failed before their first result: there is no program 'trian'" in done.stdout
        assert "3 trials in" in done.stdout, "none is retried, and no other trial begins"

    def test_mistakes_are_named_before_the_first_trial(self, shell: Shell) -> None:
        prepared(shell, "sh", "train.sh", "{l}")
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 2
        assert "spec.trainable.command[2]: {l} is not a parameter of the search space" in done.stderr
        shell.manifest(trainable={"entrypoint": "a:b", "env": {"A": "1"}})
        assert "spec.trainable.env: goes only with command" in shell.run("validate", "experiment.yaml").stderr

    def test_one_file_for_all_trials_needs_one_at_a_time(self, shell: Shell) -> None:
        prepared(shell, source="cat c.yaml >> m.txt", parametersFile="c.yaml", metric="lr")
        done = shell.run("run", "experiment.yaml", "--cpus", "2")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "spec.trainable.parametersFile: 'c.yaml' is the same for all trials" in done.stderr
        assert "write '{trial_dir}/c.yaml'" in done.stderr
        assert not (shell.folder / "trialpod-results/exp/.trialpod/journal").exists()
        own = ("--set", "spec.trainable.parametersFile='{trial_dir}/c.yaml'")
        file = ("--set", "spec.trainable.metricsFrom.file=m.txt")
        done = shell.run("run", "experiment.yaml", "--cpus", "2", *own, *file)
        assert "spec.trainable.metricsFrom.file: 'm.txt' is the same for all trials" in done.stderr
        done = shell.run("run", "experiment.yaml", "--cpus", "2", *file, "--max-concurrent", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [row["lr"] for row in results_of(shell.folder)] == [0.25, 0.5]

    def test_what_the_group_still_passes_on_counts(self, shell: Shell) -> None:
        source = """
        exec 3>&1
        (sleep 0.1; echo loss=2 >&3) &
        echo loss=1
        printf loss=3 >&2
        """
        prepared(shell, source=source, searchSpace={"lr": 1})
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [row["loss"] for row in results_of(shell.folder)] == [1, 2, 3]


@pytest.mark.once
class TestEnding:
    def test_a_stop_rule_ends_the_program_with_sigterm(self, shell: Shell) -> None:
        source = """
        trap 'echo ended > "$TRIALPOD_TRIAL_DIR/ended"; echo last > "$TRIALPOD_CHECKPOINT_DIR/model"; exit 7' TERM
        while :; do echo loss=1; sleep 0.05; done
        """
        prepared(shell, source=source, stop={"training_iteration": 4}, searchSpace={"lr": 1})
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(results_of(shell.folder)) == 4
        assert list(shell.folder.glob("trialpod-results/exp/*/ended"))
        (model,) = shell.folder.glob("trialpod-results/exp/*/checkpoint_*/model")
        assert model.read_text() == "last\n", "what it had at its end is kept"

    @pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
    def test_it_resumes_from_what_the_program_kept(self, shell: Shell, sig: signal.Signals) -> None:
        gate = shell.folder / "gate"
        os.mkfifo(gate)
        prepared(shell, searchSpace={"lr": 0.5}, env={"GATE": str(gate)}, resumeArgs=["--again"])
        running = shell.start("run", "experiment.yaml")
        wait_for_checkpoint(shell.folder / "trialpod-results/exp/.trialpod/journal")
        running.signal(sig)
        running.wait()
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        (log,) = shell.folder.glob("trialpod-results/exp/*/log.txt")
        assert "start at 2, resumed=1, 0.5 3 --again" in log.read_text()
        assert [row["training_iteration"] for row in results_of(shell.folder)] == [1, 2, 3]
        assert shell.processes() == {}
        shell.assert_whole()

    def test_asha_stops_programs_at_their_rungs(self, shell: Shell) -> None:
        prepared(
            shell,
            "sh", "train.sh", "{lr}", "9",
            searchSpace={"lr": {"grid_search": [1, 2, 3, 4]}},
            maxConcurrentTrials=1,
            atHorizon="freeze",
            scheduler={"name": "asha", "parameters": {"max_t": 9, "grace_period": 1, "reduction_factor": 3}},
        )  # fmt: skip
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        counts: dict[float, int] = {}
        for row in results_of(shell.folder):
            counts[row["loss"]] = counts.get(row["loss"], 0) + 1
        assert counts[1] == 9
        assert counts[4] == 1

    def test_a_checkpoint_at_a_horizon_has_its_result(self, shell: Shell) -> None:
        source = """
        state=$TRIALPOD_CHECKPOINT_DIR/state
        i=0
        [ -f "$state" ] && i=$(cat "$state")
        while [ $i -lt 4 ]; do
            i=$((i + 1))
            echo $i > "$state.tmp"
            mv "$state.tmp" "$state"
            echo loss=$1
            trialpod-report --checkpoint
        done
        """
        pbt: dict[str, Any] = {"time_attr": "training_iteration", "perturbation_interval": 2}
        pbt |= {"hyperparam_mutations": {"lr": {"uniform": [1, 2]}}}
        prepared(
            shell, source=source, searchSpace={"lr": {"grid_search": [1, 2]}},
            checkpointFolder={"readyFile": "state"},
            atHorizon="freeze", scheduler={"name": "pbt", "parameters": pbt},
        )  # fmt: skip
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        kept = [
            (row["training_iteration"], (file.parent / name / "state").read_text().strip())
            for file in shell.folder.glob("trialpod-results/exp/*/result.json")
            for row in read_json_lines(file)
            if (name := row.get("checkpoint_dir_name")) and (file.parent / name).exists()
        ]
        assert kept
        assert all(state == str(iteration) for iteration, state in kept), kept
        shell.assert_whole()


@pytest.mark.once
class TestCommandLine:
    def test_a_program_without_any_file(self, shell: Shell) -> None:
        shell.write("train.sh", TRAIN)
        line = ("--metric", "loss", "--", "sh", "train.sh", "{lr:grid_search:0.5:0.25}", "2")
        done = shell.run("run", *line)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "with loss=0.25 at iteration 2" in done.stdout
        again = "run --metric loss --set spec.numSamples=2 -- sh train.sh '{lr:grid_search:0.5:0.25}' 2"
        assert again in done.stdout

    def test_dry_run_shows_the_exact_commands(self, shell: Shell) -> None:
        done = shell.run("run", "--dry-run", "--metric", "loss", "--", "./a b", "--x={lr:grid_search:1:c d}")
        assert done.stdout == f"in {shell.folder}:\n  './a b' --x=1\n  './a b' '--x=c d'\n"

    def test_a_program_that_is_not_there_creates_nothing(self, shell: Shell) -> None:
        done = shell.run("run", "--metric", "loss", "--", "./tarin.sh", "{lr:uniform:0:1}")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"trialpod: the program ./tarin.sh does not exist, seen from {shell.folder}.")
        assert not (shell.folder / "trialpod-results").exists()

    def test_what_does_not_go_together(self, shell: Shell) -> None:
        assert "there is nothing to run" in shell.run("run").stderr
        assert "go with a program after --" in shell.run("run", "--metric", "a", "x.yaml").stderr


def test_command_of_a_script(shell: Shell) -> None:
    shell.write("train.sh", TRAIN)
    shell.write(
        "tune_it.py",
        """
        from trialpod import tune

        command = tune.Command(["sh", "train.sh", "{lr}", "2"], metrics={"names": ["loss"]})
        tuner = tune.Tuner(
            command,
            param_space={"lr": tune.grid_search([0.5, 0.25])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(name="exp", storage_path="trialpod-results", verbose=0),
        )
        print("best", tuner.fit().get_best_result().metrics["loss"])
        try:
            tune.Tuner(command, param_space={"rate": 1})
        except ValueError as error:
            print(error)
        """,
    )
    done = shell.python("tune_it.py")
    assert "best 0.25" in done.stdout, done.stdout + done.stderr
    assert "{lr} is not a parameter of the search space" in done.stdout
    assert all("accuracy" not in row for row in results_of(shell.folder))
