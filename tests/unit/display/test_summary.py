from __future__ import annotations

import ast
import math
import unicodedata
from typing import Any

import pytest
import yaml
from display_views import any_view, experiment, trial
from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod_operator.display.summary import RunCommand, exit_status, summarize
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import python_literal, yaml_text
from trialpod_operator.engine.vocabulary import MANIFEST, SCRIPT, Vocabulary

COMMAND = RunCommand("experiment.yaml", num_samples=20)


def test_a_finished_run_ends_with_what_to_paste_and_what_to_type() -> None:
    rows = [trial(2), trial(1), trial(0, "ERROR", error="ValueError: lr is too large", value=None)]
    rows.append(trial(3, "ERROR", error="ValueError: lr is too large", value=None))
    view = experiment(rows, state="Succeeded", total=4)
    assert summarize(view, COMMAND) == (
        "4 trials in 14.2 s: 2 terminated, 2 failed\n"
        "results: ./trialpod-results/digits\n"
        "output:  ./trialpod-results/digits/<trial>/log.txt\n"
        "\n"
        "failures:\n"
        "  2 trials: ValueError: lr is too large\n"
        "    log: ./trialpod-results/digits/train_ab12c_00000/log.txt\n"
        "\n"
        "best trial: train_ab12c_00002 with accuracy=0.7 at iteration 9\n"
        "  directory:  ./trialpod-results/digits/train_ab12c_00002\n"
        "  checkpoint: ./trialpod-results/digits/train_ab12c_00002/checkpoint_000002\n"
        "\n"
        "best parameters, as Python:\n"
        "config = {'lr': 0.03333333333333333, 'layers': 2, 'epochs': 9}\n"
        "\n"
        "as YAML:\n"
        "  lr: 0.03333333333333333\n"
        "  layers: 2\n"
        "  epochs: 9\n"
        "\n"
        "retry:   trialpod run experiment.yaml --retry-failed\n"
        "extend:  trialpod run experiment.yaml --set spec.numSamples=40\n"
        "compare: trialpod results ./trialpod-results/digits\n"
        "look:    trialpod ui ./trialpod-results/digits"
    )


def test_interrupted_run_names_the_resume_command() -> None:
    command = RunCommand(
        "my files/experiment.yaml",
        name="second",
        storage="/data",
        sets=("spec.numSamples=12", "spec.seed=3"),
        max_concurrent=2,
        num_samples=12,
    )
    view = experiment([trial(0), trial(1, "RUNNING", value=None)], state="Suspended", message="Interrupted.")
    start = "trialpod run 'my files/experiment.yaml' --name second --storage /data --max-concurrent 2"
    text = summarize(view, command)
    assert text.startswith("1 trial in 14.2 s: 1 terminated (1 running)\nSuspended: Interrupted.\n")
    assert text.endswith(
        f"resume:  {start} --set spec.numSamples=12 --set spec.seed=3\n"
        f"extend:  {start} --set spec.seed=3 --set spec.numSamples=24\n"
        "compare: trialpod results ./trialpod-results/digits\n"
        "look:    trialpod ui ./trialpod-results/digits"
    )


class TestRunFromPython:
    RESTORE = "tune.Tuner.restore('./trialpod-results/digits', trainable"

    def test_that_was_interrupted_says_how_to_resume(self) -> None:
        rows = [trial(0), trial(1, "RUNNING", value=None)]
        text = summarize(experiment(rows, state="Suspended", vocabulary=SCRIPT))
        assert text.endswith(f"\n\nresume:  {self.RESTORE}).fit()")

    def test_with_failed_trials_says_how_to_retry_them(self) -> None:
        rows = [trial(0), trial(1, "ERROR", error="ValueError: no", value=None)]
        text = summarize(experiment(rows, state="Succeeded", vocabulary=SCRIPT))
        assert text.endswith(f"\n\nretry:   {self.RESTORE}, resume_errored=True).fit()")

    def test_without_a_metric_names_the_arguments_of_scripts(self) -> None:
        row = trial(0, last_result={"loss": 1.0})
        text = summarize(experiment([row], state="Succeeded", metric=None, best=None, vocabulary=SCRIPT))
        assert "the experiment names no metric; pass it: TuneConfig(metric='loss', mode='max'), or get_best" in text
        assert "spec." not in text

    def test_that_ended_well_needs_nothing(self) -> None:
        text = summarize(experiment([trial(0)], state="Succeeded", vocabulary=SCRIPT))
        assert "restore" not in text

    def test_in_a_cluster_has_its_own_commands(self) -> None:
        assert "restore" not in summarize(experiment([trial(0)], state="Suspended"))


@pytest.mark.parametrize(("metric", "offered"), [("accuracy", True), ("acuracy", False)])
def test_retry_is_offered_where_it_can_help(metric: str, offered: bool) -> None:
    rows = [trial(0, "ERROR", error="ValueError", last_result={metric: 0.5})]
    view = experiment(rows, state="Failed", results=3)
    assert ("retry:   trialpod run" in summarize(view, COMMAND)) is offered


def test_a_used_up_time_budget_is_doubled_to_continue() -> None:
    view = experiment([trial(0)], state="Stopped", time_budget_s=14.0, elapsed_s=14.2)
    assert "resume:  trialpod run experiment.yaml --set spec.timeBudget=28s\n" in summarize(view, COMMAND)


@pytest.mark.parametrize(
    ("last_result", "results", "reason"),
    [
        (
            {"acuracy": 0.5, "loss": 1.0, "training_iteration": 3},
            9,
            (
                "no best trial: no trial reported the metric 'accuracy'\n"
                "  reported metrics: acuracy, loss\n"
                "  did you mean 'acuracy'? Correct the metric's name in either place and run it again; for these "
                "results: trialpod best ./trialpod-results/digits --metric acuracy --mode max"
            ),
        ),
        (
            {"training_iteration": 3},
            9,
            (
                "no best trial: no trial reported the metric 'accuracy'\n"
                "  no key of the user's own was reported; pass a dict with it to tune.report"
            ),
        ),
        ({"accuracy": math.nan}, 9, "no best trial: every 'accuracy' that was reported is NaN or infinite"),
        ({"accuracy": 10**400}, 9, "no best trial: every 'accuracy' that was reported is NaN or infinite"),
        ({"accuracy": "high"}, 9, "no best trial: 'accuracy' was reported, but never as a number"),
        ({}, 0, "no best trial: no trial has reported a result"),
    ],
)
def test_without_a_best_trial_the_reason_is_plain(last_result: dict[str, Any], results: int, reason: str) -> None:
    view = experiment([trial(0, value=None, last_result=last_result)], state="Succeeded", results=results)
    assert f"\n\n{reason}\n\n" in summarize(view, COMMAND)


@pytest.mark.parametrize("vocabulary", [MANIFEST, SCRIPT])
def test_no_metric_is_asked_for_where_nothing_was_reported(vocabulary: Vocabulary) -> None:
    rows = [trial(0, "ERROR", error="FileNotFoundError: 'data.txt'", value=None, last_result={})]
    view = experiment(rows, state="Failed", results=0, metric=None, mode=None, vocabulary=vocabulary)
    assert "no best trial: no trial has reported a result\n\n" in summarize(view, COMMAND)


def test_a_used_up_budget_of_hours_is_doubled_to_continue() -> None:
    view = experiment([trial(0)], state="Stopped", budget_used_up=("maxGpuHours", 0.5))
    assert "resume:  trialpod run experiment.yaml --set spec.maxGpuHours=1\n" in summarize(view, COMMAND)


def test_wasted_time_is_reported_when_there_is_some() -> None:
    hours = {"used": 2.0, "useful": 1.5, "stopped": 0.5, "lost": 0.0, "failed": 0.0}
    text = summarize(experiment([trial(0)], resources={"trial": hours}))
    assert "\ntrial time: 2 h 00 min (75% useful, 25% stopped early)\n" in text
    useful = {**hours, "useful": 2.0, "stopped": 0.0}
    assert "trial time" not in summarize(experiment([trial(0)], resources={"trial": useful}))


def test_the_proposed_metric_is_a_number() -> None:
    text = summarize(experiment([trial(0, last_result={"a_name": "m", "score": 1.0})], metric=None, best=None))
    assert "--metric score --mode max" in text
    text = summarize(experiment([trial(0, last_result={"a_name": "m"})], metric=None, best=None))
    assert "no best trial: nothing that was reported is a number: a_name" in text


def test_an_experiment_without_a_metric_says_so() -> None:
    view = experiment([trial(0)], metric=None, best=None)
    assert "no best trial: the experiment names no metric; name one here: trialpod best" in summarize(view)


def test_many_failures_are_cut_with_the_command_for_all() -> None:
    rows = [trial(number, "ERROR", error=f"E{number}", value=None) for number in range(8)]
    text = summarize(experiment(rows))
    assert text.count("log:") == 5
    assert (
        "  3 trials with 3 other messages\n    all of them: trialpod results ./trialpod-results/digits --failed"
        in text
    )


def test_an_older_checkpoint_is_named_with_its_iteration() -> None:
    text = summarize(experiment([trial(0, checkpoint_iteration=7)]))
    assert "checkpoint_000002 (iteration 7)" in text
    assert "checkpoint: none was saved" in summarize(experiment([trial(0, checkpoint=None)]))


@pytest.mark.parametrize(
    ("status", "state", "interrupted", "expected"),
    [
        ("TERMINATED", "Succeeded", False, 0),
        ("TERMINATED", "Stopped", False, 0),
        ("ERROR", "Succeeded", False, 1),
        ("TERMINATED", "Failed", False, 1),
        ("TERMINATED", "Suspended", True, 130),
        ("ERROR", "Failed", True, 130),
    ],
)
def test_the_exit_status_tells_failures_and_interruptions(
    status: str, state: str, interrupted: bool, expected: int
) -> None:
    assert exit_status(experiment([trial(0, status)], state=state), interrupted=interrupted) == expected


def test_what_the_storage_does_not_have_counts_as_a_failure() -> None:
    view = experiment([trial(0, "TERMINATED")], state="Succeeded")
    assert exit_status(view, interrupted=False, uncopied="not everything is copied") == 1


def test_ambiguous_yaml_strings_are_quoted() -> None:
    params = {"a": "1e-4", "b": "y", "c": "0o17", "d": "12", "e": "no", "f": "adam", "g": 1e-05, "h": "1_0"}
    assert yaml_text(params) == ("a: '1e-4'\nb: 'y'\nc: '0o17'\nd: '12'\ne: 'no'\nf: adam\ng: 1.0e-05\nh: '1_0'")


def test_numbers_without_a_literal_are_written_as_expressions() -> None:
    assert python_literal({"a": math.inf, "b": [math.nan]}) == "{'a': float(\"inf\"), 'b': [float(\"nan\")]}"


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(params=st.dictionaries(st.text(), _plain, max_size=5))
def test_pasted_parameters_are_the_parameters(params: dict[str, Any]) -> None:
    assert ast.literal_eval(python_literal(params)) == params
    assert yaml.safe_load(yaml_text(params)) == params


@settings(max_examples=40)
@given(view=any_view)
def test_any_view_can_be_summed_up(view: ExperimentView) -> None:
    text = summarize(view, COMMAND)
    assert all(character == "\n" or unicodedata.category(character) != "Cc" for character in text)
    assert exit_status(view, interrupted=False) in (0, 1)
