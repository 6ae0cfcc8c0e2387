"""Objects of other kinds in a manifest: paths, conditions, placeholders, pod templates, and what is refused."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod_operator.api.document import Document
from trialpod_operator.api.trial_resource.check import check_resource, kind_of
from trialpod_operator.api.trial_resource.conditions import parse_condition
from trialpod_operator.api.trial_resource.field_paths import find, parse_path, put
from trialpod_operator.api.trial_resource.kinds import KINDS
from trialpod_operator.api.trial_resource.placeholders import render
from trialpod_operator.api.trial_resource.pod_templates import put_back, take
from trialpod_operator.api.validation import check_document

OWN = {"Name": "digits-0-1", "Namespace": "team"}
POD = {"spec": {"containers": [{"name": "trial", "image": "any:1"}]}}
JOB: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD}}
ARGO: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "spec": {
        "entrypoint": "all",
        "templates": [
            {"name": "all", "steps": [[{"name": "a", "template": "train"}]]},
            {"name": "train", "container": {"image": "any:1"}, "sidecars": [{"name": "beside", "image": "b"}]},
        ],
    },
}


def argo(**fields: Any) -> dict[str, Any]:
    """A Workflow of one template."""
    return {**ARGO, "spec": {"templates": [{"name": "train", "container": {"image": "any:1"}, **fields}]}}


def problems(template: dict[str, Any], **more: Any) -> list[tuple[Any, str]]:
    return list(check_resource({"template": template, **more}, ["lr", "optimizer.name"], None, {}))


DONE: dict[str, Any] = {
    "status": {"conditions": [{"type": "Complete", "status": "True", "reason": "R", "message": "M"}]}
}
PARAMS: dict[str, Any] = {"lr": 0.1, "optimizer": {"name": "sgd"}, "workers": 2}


class TestPaths:
    def test_fields_positions_and_named_items(self) -> None:
        item = {"spec": {"jobs": [{"name": "a"}, {"name": "b", "x": 1}]}}
        assert find(item, parse_path("spec.jobs[1].x")) == 1
        assert find(item, parse_path("spec.jobs[name=b].x")) == 1
        assert find(item, parse_path("spec.jobs[name=c].x")) is None
        put(item, parse_path("spec.jobs[name=b]"), {"name": "b", "x": 2})
        assert find(item, parse_path("spec.jobs[1].x")) == 2

    @pytest.mark.parametrize("text", ["", ".spec", "spec..a", "spec[", "spec[a]", "[0]", "spec.a b"])
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidInputError):
            parse_path(text)

    @given(st.text(max_size=30))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        with contextlib.suppress(InvalidInputError):
            find({"spec": [{"a": 1}]}, parse_path(text))


class TestConditions:
    @pytest.mark.parametrize(
        ("text", "item", "holds"),
        [
            ("status.conditions[type=Complete].status == True", DONE, True),
            ("status.conditions[type=Failed].status == True", DONE, False),
            ('status.conditions.#(type=="Complete")#|#(status=="True")#', DONE, True),
            ('status.conditions.#(type=="Failed")#|#(status=="True")#', DONE, False),
            ('status.phase == "Done"', {"status": {"phase": "Done"}}, True),
            ("status.phase != Done", {"status": {"phase": "Done"}}, False),
            ("status.phase != Done", {}, False),
            ("status.succeeded > 0", {"status": {"succeeded": 1}}, True),
            ("status.succeeded > 0", {"status": {"succeeded": "x"}}, False),
            ("status.ok == True", {"status": {"ok": True}}, True),
            ("status.ok == true", {"status": {"ok": True}}, True),
            ("status.ok != true", {"status": {"ok": True}}, False),
            ("status.ok == false", {"status": {"ok": False}}, True),
            ("status.ok == true", {"status": {"ok": False}}, False),
            ("status.phase == done", {"status": {"phase": "Done"}}, False),
            ("status.a == 1 && status.b == 2", {"status": {"a": 1, "b": 3}}, False),
            ("status.a == 1 || status.b == 2", {"status": {"a": 3, "b": 2}}, True),
        ],
    )
    def test_they_hold_of_what_they_say(self, text: str, item: dict[str, Any], holds: bool) -> None:
        assert parse_condition(text).holds(item) is holds

    def test_the_words_of_the_object_are_found(self) -> None:
        assert parse_condition("status.conditions[type=Complete].status == True").words(DONE) == "R: M"

    @pytest.mark.parametrize("text", ["", "status.phase", "status.phase = Done", "status.n > many", "a == 1 &&"])
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidInputError):
            parse_condition(text)

    @given(st.text(max_size=40), st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5))
    def test_any_text_is_read_or_refused(self, text: str, value: Any) -> None:
        with contextlib.suppress(InvalidInputError):
            parse_condition(text).holds({"status": value})


class TestPlaceholders:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("--lr=${trialParameters.lr}", "--lr=0.1"),
            ("${trialParameters.optimizer.name}", "sgd"),
            ("${trialParameters.workers:json}", 2),
            ("${trialParameters.dropout=0.5}", "0.5"),
            ("${trialParameters.workers=1:json}", 2),
            ("${trialParameters.none=3:json}", 3),
            ('${trialParameters.none="a:b":json}', "a:b"),
            ("--n=${trialParameters.none=true:json}", "--n=true"),
            ("${trialParameters.none=a:json:b}", "a:json:b"),
            ("${trialSpec.Name}.${trialSpec.Namespace}", "digits-0-1.team"),
            ("$(VAR) ${HOME} {{inputs.parameters.x}} {lr}", "$(VAR) ${HOME} {{inputs.parameters.x}} {lr}"),
        ],
    )
    def test_only_ours_are_replaced(self, text: str, shown: Any) -> None:
        assert render({"a": [text]}, PARAMS, OWN) == {"a": [shown]}

    def test_a_parameter_that_a_trial_lacks_is_named(self) -> None:
        with pytest.raises(InvalidInputError, match=r"no parameter 'dropout'; it has lr, optimizer\.name, workers"):
            render("${trialParameters.dropout}", PARAMS, OWN)

    @given(st.text(max_size=20))
    def test_a_value_is_never_read_again(self, value: str) -> None:
        if "\0" not in value:
            assert render("a${trialParameters.lr}b", {"lr": value}, OWN) == f"a{value}b"


class TestPodTemplates:
    def test_what_is_taken_and_put_back_is_the_same_object(self) -> None:
        item = copy.deepcopy(JOB)
        kind = kind_of({"template": item})
        put_back(item, kind, take(item, kind))
        assert item == JOB

    def test_a_template_of_argo_becomes_a_pod_and_back(self) -> None:
        item = copy.deepcopy(ARGO)
        kind = kind_of({"template": item, "podTemplatePath": "spec.templates[name=train]"})
        pod = take(item, kind)
        assert [each["name"] for each in pod["spec"]["containers"]] == ["main", "beside"]
        pod["metadata"] = {"labels": {"a": "b"}, "annotations": {}}
        pod["spec"] |= {"volumes": [{"name": "v"}], "restartPolicy": "Never", "terminationGracePeriodSeconds": 15}
        pod["spec"]["containers"][0]["command"] = ["run"]
        put_back(item, kind, pod)
        made = item["spec"]["templates"][1]
        assert made["container"] == {"image": "any:1", "command": ["run"]}
        assert made["sidecars"] == [{"name": "beside", "image": "b"}]
        assert made["volumes"] == [{"name": "v"}]
        assert made["podSpecPatch"] == '{"terminationGracePeriodSeconds": 15}'
        assert made["metadata"]["labels"] == {"a": "b"}

    @pytest.mark.parametrize("kind", [each for each, known in KINDS.items() if not known.why_not])
    def test_what_is_known_of_each_kind_can_be_read(self, kind: tuple[str, str]) -> None:
        kind_of({"template": {"apiVersion": f"{kind[0]}/v1", "kind": kind[1]}})


class TestRefusals:
    def test_a_job_is_fine(self) -> None:
        assert problems(JOB) == []

    def test_number_may_be_a_placeholder(self) -> None:
        pod = {**POD["spec"], "terminationGracePeriodSeconds": "${trialParameters.lr=30:json}"}
        assert problems({**JOB, "spec": {"template": {"spec": pod}}}) == []

    @pytest.mark.parametrize(
        ("change", "more", "path", "words"),
        [
            ({"kind": ""}, {}, ("template", "kind"), "is missing"),
            ({"kind": "Thing"}, {}, ("podTemplatePath",), "none of the known kinds"),
            ({"kind": "Jbo"}, {}, ("template",), "did you mean Job?"),
            ({"apiVersion": "v1"}, {}, ("template",), "did you mean apiVersion batch/...?"),
            (
                {"kind": "Thing"},
                {"podTemplatePath": "spec.template"},
                ("successCondition",),
                "say when it has succeeded",
            ),
            ({}, {"successCondition": "status.phase"}, ("successCondition",), "cannot be read"),
            ({}, {"podTemplatePath": "spec.pod"}, ("podTemplatePath",), "has no pod template at spec.pod"),
            ({}, {"primaryContainer": "main"}, ("primaryContainer",), "it has trial"),
            ({"metadata": {"name": "x"}}, {}, ("template", "metadata", "name"), "trialpod's to set"),
            (
                {"spec": {"template": POD, "parallelism": 2}},
                {},
                ("template", "spec", "parallelism"),
                "one pod speaks for a trial",
            ),
            (
                {"spec": {"template": POD, "x": ["${trialParameters.lrr}"]}},
                {},
                ("template", "spec", "x", 0),
                "did you mean lr?",
            ),
            (
                {"spec": {"template": POD, "x": "${trialSpec.Nam}"}},
                {},
                ("template", "spec", "x"),
                "${trialSpec.Name} and",
            ),
            *(
                (
                    {"spec": {"template": POD, "x": text}},
                    {},
                    ("template", "spec", "x"),
                    "has a default that is not JSON",
                )
                for text in (
                    "${trialParameters.lr=fast:json}",
                    "${trialParameters.lr=NaN:json}",
                    "${trialParameters.lr=\ud800:json}",
                    "${trialParameters.lr=" + "[" * 5000 + ":json}",
                )
            ),
            (
                {"spec": {"template": {"spec": {"containers": [{"name": "a", "command": ["x"]}]}}}},
                {},
                ("template", "spec", "template", "spec", "containers", 0, "command"),
                "spec.trainable.command",
            ),
            (
                {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}},
                {},
                ("template", "spec", "template", "spec", "restartPolicy"),
                "must be Never",
            ),
            (
                {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
                {},
                ("template",),
                "give the JobSet that the runtime describes",
            ),
            (ARGO, {}, ("template",), "has no container; say in podTemplatePath"),
            (
                {"spec": {"template": {"spec": [1]}}},
                {},
                ("template", "spec", "template", "spec"),
                "must be a mapping",
            ),
            (
                argo(metadata="text"),
                {"podTemplatePath": "spec.templates[0]"},
                ("template", "spec", "templates", 0, "metadata"),
                "must be a mapping",
            ),
            ({"metadata": ["a"]}, {}, ("template", "metadata"), "must be a mapping"),
            ({"metadata": {"labels": ["a"]}}, {}, ("template", "metadata", "labels"), "must be a mapping of texts"),
            (
                {"metadata": {"annotations": {"trialpod.dev/log-kept": "true"}}},
                {},
                ("template", "metadata", "annotations", "trialpod.dev/log-kept"),
                "trialpod's own",
            ),
            (
                {"spec": {"template": {**POD, "metadata": {"labels": ["a"]}}}},
                {},
                ("template", "spec", "template", "metadata", "labels"),
                "must be a mapping of texts",
            ),
            (
                {"spec": {"template": {"spec": {**POD["spec"], "terminationGracePeriodSeconds": "30s"}}}},
                {},
                ("template", "spec", "template", "spec", "terminationGracePeriodSeconds"),
                "must be a whole number, of seconds, such as 30",
            ),
            (argo(sidecars=5), {"podTemplatePath": "spec.templates[0]"}, ("podTemplatePath",), "must be a list"),
        ],
    )
    def test_mistakes_are_named_with_their_place(
        self, change: dict[str, Any], more: dict[str, Any], path: Any, words: str
    ) -> None:
        found = problems({**JOB, **change}, **more)
        assert [(at, words in message) for at, message in found] == [(path, True)], found

    def test_what_makes_pods_beside_it_is_refused(self) -> None:
        spec = {
            "trainable": {"command": ["./train", "--lr={lr}"]},
            "searchSpace": {"lr": {"uniform": [0, 1]}, "width": {"choice": [1, 2]}},
            "template": {"spec": {}},
            "reusePods": True,
            "workers": {"replicas": 1},
            "trialResource": {"template": {**JOB, "spec": {"template": POD, "x": "${trialParameters.width}"}}},
        }
        document = Document(
            {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "a"}, "spec": spec}
        )
        found = sorted(problem.path for problem in check_document(document).problems)
        assert found == ["spec.reusePods", "spec.template", "spec.workers"]
