from __future__ import annotations

from typing import Any, ClassVar

import pytest

from trialpod_operator.api.document import Document
from trialpod_operator.api.rules import check_rules


def _findings(spec: dict[str, Any], broken: set[tuple[str | int, ...]] | None = None) -> list[tuple[str, str]]:
    spec = {"trainable": {"entrypoint": "a:b"}, **spec}
    return [(each.path, each.message) for each in check_rules(Document({"spec": spec}), broken or set()).problems]


def test_a_part_whose_form_is_wrong_is_left_alone() -> None:
    spec = {
        "storage": {"uri": 3},
        "resources": {"cpu": "x", "a/b": "1m"},
        "stoppers": [{"name": 1}, {"name": "nope"}],
    }
    found = _findings(
        spec, {("spec", "storage", "uri"), ("spec", "resources", "cpu"), ("spec", "stoppers", 0, "name")}
    )
    assert [path for path, _ in found] == ["spec.stoppers[1].name", "spec.resources.a/b"]


def test_a_scheduler_with_its_own_metric_needs_none_in_the_spec() -> None:
    assert _findings({"scheduler": {"name": "asha", "parameters": {"metric": "a", "mode": "max"}}}) == []


def test_a_scheduler_name_is_read_as_the_factory_reads_it() -> None:
    assert _findings({"scheduler": {"name": "FIFO"}}) == []
    assert [path for path, _ in _findings({"scheduler": {"name": "Async-HyperBand"}})] == ["spec.scheduler.name"]


def test_the_size_of_the_grid_and_the_number_of_trials_are_known() -> None:
    space = {"a": {"grid_search": [1, 2, 3]}, "b": {"grid_search": [1, 2]}, "c": {"uniform": [0, 1]}}
    spec = {"trainable": {"entrypoint": "a:b"}, "searchSpace": space, "numSamples": 4}
    findings = check_rules(Document({"spec": spec}), set())
    assert (findings.problems, findings.grid_size, findings.total) == ([], 6, 24)


def test_a_huge_number_of_trials_is_a_warning() -> None:
    spec = {"trainable": {"entrypoint": "a:b"}, "numSamples": 1_000_000}
    findings = check_rules(Document({"spec": spec}), set())
    assert [warning.path for warning in findings.warnings] == ["spec.numSamples"]


def test_config_changing_scheduler_with_learning_search_warns() -> None:
    space = {"lr": {"uniform": [0, 1]}}
    mutations = {"hyperparam_mutations": {"lr": [0.1, 0.2]}}
    pbt = {"name": "pbt", "parameters": mutations}
    nested = {"name": "resource_changing", "parameters": {"base_scheduler": pbt}}

    def warned(scheduler: dict[str, Any], search: str) -> list[str]:
        spec = {
            "trainable": {"entrypoint": "a:b"},
            "metric": "score",
            "mode": "max",
            "searchSpace": space,
            "scheduler": scheduler,
            "searchAlgorithm": {"name": search},
        }
        return [warning.path for warning in check_rules(Document({"spec": spec}), set()).warnings]

    assert warned(pbt, "optuna") == warned(nested, "optuna") == ["spec.searchAlgorithm.name"]
    assert warned(pbt, "random") == warned({"name": "asha"}, "optuna") == []


def test_resource_changing_needs_the_metric_of_its_base() -> None:
    def found(**parameters: Any) -> list[str]:
        return [path for path, _ in _findings({"scheduler": {"name": "resource_changing", "parameters": parameters}})]

    assert found() == found(base_scheduler="fifo") == []
    assert found(base_scheduler="asha") == ["spec.scheduler.name"]
    assert found(resources_allocation_function="distribute_to_top_job") == ["spec.scheduler.name"]


def test_a_budget_of_gpu_hours_without_gpus_is_a_warning() -> None:
    def warned(**more: object) -> list[str]:
        spec = {"trainable": {"entrypoint": "a:b"}, "maxGpuHours": 3, **more}
        return [warning.path for warning in check_rules(Document({"spec": spec}), set()).warnings]

    assert warned() == warned(resources={"cpu": 1}) == ["spec.maxGpuHours"]
    assert warned(resources={"nvidia.com/gpu": 1}) == []
    container = {"name": "trial", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}
    assert warned(template={"spec": {"containers": [container]}}) == []
    for spec in ({"containers": True}, [], "pod"):  # what is wrong with these is reported elsewhere
        assert warned(template={"spec": spec}) == ["spec.maxGpuHours"]


def test_unlimited_samples_with_hour_budget_do_not_warn() -> None:
    spec = {"trainable": {"entrypoint": "a:b"}, "numSamples": -1, "maxTrialHours": 3}
    assert check_rules(Document({"spec": spec}), set()).warnings == []


class TestNothingVaries:
    def warned(self, **spec: Any) -> list[str]:
        document = {"spec": {"trainable": {"entrypoint": "a:b"}, **spec}}
        return [str(warning) for warning in check_rules(Document(document), set()).warnings]

    def test_is_a_warning(self) -> None:
        (warning,) = self.warned(searchSpace={"lr": 0.1}, numSamples=20)
        assert warning.endswith("spec.searchSpace: nothing varies in it: 20 trials get the same parameters")

    def test_is_none_where_it_is_intended(self) -> None:
        assert self.warned(searchSpace={"lr": 0.1}) == []
        assert self.warned(numSamples=20) == []
        assert self.warned(searchSpace={"lr": {"uniform": [0, 1]}}, numSamples=20) == []
        pbt = {"name": "pbt", "parameters": {"hyperparam_mutations": {"lr": [1, 2]}}}
        assert self.warned(searchSpace={"lr": 1}, numSamples=4, scheduler=pbt, metric="a", mode="max") == []


class TestSchedulerOfTheSpace:
    def test_mistyped_mutation_is_found(self) -> None:
        def found(key: str) -> list[tuple[str, str]]:
            pbt = {"name": "pbt", "parameters": {"hyperparam_mutations": {key: [1, 2]}}}
            return _findings({"searchSpace": {"lr": 1}, "scheduler": pbt, "metric": "a", "mode": "max"})

        ((path, message),) = found("lrr")
        assert path == "spec.scheduler.parameters.hyperparam_mutations.lrr"
        assert "Did you mean 'lr'?" in message
        assert found("lr") == found("momentum") == []


class TestPlaceOfAMistake:
    def test_is_the_parameter_that_the_error_is_about(self) -> None:
        asha = {"name": "asha", "parameters": {"grace_period": 9, "max_t": 3}}
        ((path, _),) = _findings({"scheduler": asha, "metric": "a", "mode": "max"})
        assert path == "spec.scheduler.parameters.grace_period"

    def test_may_be_a_parameter_of_an_inner_scheduler(self) -> None:
        inner = {"name": "asha", "parameters": {"brackets": 0}}
        outer = {"name": "resource_changing", "parameters": {"base_scheduler": inner}}
        ((path, _),) = _findings({"scheduler": outer, "metric": "a", "mode": "max"})
        assert path == "spec.scheduler.parameters.base_scheduler.parameters.brackets"

    def test_is_the_name_where_no_parameter_given_is_wrong(self) -> None:
        ((path, message),) = _findings({"stoppers": [{"name": "trial_plateau", "parameters": {}}]})
        assert path == "spec.stoppers[0].name"
        assert "needs the parameter 'metric'" in message

    def test_is_a_nested_mutation(self) -> None:
        pbt = {"name": "pbt", "parameters": {"hyperparam_mutations": {"opt": {"lrr": [1, 2], "beta": [1, 2]}}}}
        space = {"opt": {"lr": 1, "beta": 2}, "opt/lrx": 1}
        ((path, _),) = _findings({"searchSpace": space, "scheduler": pbt, "metric": "a", "mode": "max"})
        assert path == "spec.scheduler.parameters.hyperparam_mutations.opt.lrr"


class TestEntryPoint:
    @pytest.mark.parametrize(
        ("written", "intended"), [("train.py:fit", "train:fit"), ("./lib/train.py:fit", "lib.train:fit")]
    )
    def test_names_a_module_not_a_file(self, written: str, intended: str) -> None:
        (found,) = _findings({"trainable": {"entrypoint": written}})
        assert found == ("spec.trainable.entrypoint", f"names a module, not a file: {intended}")


class TestStop:
    def warned(self, **stop: float) -> list[str]:
        spec = {"trainable": {"entrypoint": "a:b"}, "stop": stop, "metric": "times_total", "mode": "max"}
        return [str(warning) for warning in check_rules(Document({"spec": spec}), set()).warnings]

    def test_nearly_an_automatic_value_is_a_warning(self) -> None:
        (warning,) = self.warned(training_iterations=5)
        assert warning.endswith("did you mean 'training_iteration'?")

    def test_other_values_are_not(self) -> None:
        assert self.warned(training_iteration=5, accuracy=0.9, epoch=3, times_total=2) == []


class TestInlineSource:
    def found(self, source: str, **spec: Any) -> tuple[list[str], list[str]]:
        findings = check_rules(Document({"spec": {"trainable": {"source": source}, **spec}}), set())
        return (
            [each.message for each in findings.problems if each.path == "spec.trainable.source"],
            [each.message for each in findings.warnings if each.path == "spec.trainable.source"],
        )

    def test_syntax_error_has_its_line(self) -> None:
        problems, _ = self.found("def train(config):\n    return = 1\n")
        assert problems == ["line 2 is not valid Python: invalid syntax: return = 1"]
        assert "'return' outside function" in self.found("return 1")[0][0]

    def test_that_defines_nothing_to_run(self) -> None:
        assert self.found("x = 1")[0] == ["defines neither a function nor a class, so there is nothing to run"]
        assert self.found("train = lambda config: None") == self.found("train = partial(f)") == ([], [])

    def test_syntax_error_beside_an_image_is_a_warning(self) -> None:
        problems, warnings = self.found("def train(config:\n", image="a/b:1")
        assert (problems, len(warnings)) == ([], 1)

    def test_parameter_that_nothing_gives_is_a_warning(self) -> None:
        source = "def train(config):\n    print(config['lr'], config['steps'], config.get('other'))\n"
        _, (said,) = self.found(source, searchSpace={"lr": {"uniform": [0, 1]}})
        assert said == "train reads steps from its config, which spec.searchSpace does not have"
        assert "reads lr, steps from" in self.found(source)[1][0]

    @pytest.mark.parametrize(
        "body",
        [
            "config = {'lr': 1, **config}; config['lr']",
            "config['lr'] = 1; config['lr']",
            "config.setdefault('lr', 1); config['lr']",
            "fill(config); config['lr']",
            "config['lr'] if 'lr' in config else 1",
            "config.get('lr')",
        ],
    )
    def test_config_with_defaults_is_no_warning(self, body: str) -> None:
        assert self.found(f"def train(config):\n    {body}\n") == ([], [])


class TestMetrics:
    METRICS: ClassVar = [{"name": "loss", "mode": "min"}, {"name": "size", "mode": "min"}]

    @pytest.mark.parametrize(
        ("more", "path", "says"),
        [
            ({"metrics": [*METRICS, {"name": "loss", "mode": "max"}]}, "spec.metrics[2].name", "contradict"),
            ({"algorithm": "auto"}, "spec.algorithm", "auto compares trials by one metric"),
            ({"repeats": {"top": 1, "times": 1}}, "spec.repeats", "one metric"),
            ({"metric": "loss", "mode": "min"}, "spec.metric", "spec.metrics"),
            ({"scheduler": {"name": "median_stopping_rule"}}, "spec.scheduler.name", "compares trials by one metric"),
        ],
    )
    def test_what_contradicts_them_is_named(self, more: dict[str, Any], path: str, says: str) -> None:
        found = _findings({"searchSpace": {"x": {"uniform": [0, 1]}}, "metrics": self.METRICS, **more})
        assert any(where.startswith(path) and says in message for where, message in found), found


class TestResources:
    def test_name_without_a_domain_is_one_of_kubernetes(self) -> None:
        found = _findings({"resources": {"cpus": 1, "memory": "1Gi", "hugepages-2Mi": "2Mi"}})
        message = "cpus is not a resource; did you mean cpu? Any other has a domain, such as nvidia.com/gpu"
        assert found == [("spec.resources.cpus", message)]

    def test_known_names_are_listed_when_none_is_close(self) -> None:
        [(path, message)] = _findings({"workers": {"replicas": 1, "resources": {"widget": 1}}})
        assert path == "spec.workers.resources.widget"
        assert "known are cpu, memory, gpu, ephemeral-storage" in message


class TestDecider:
    def test_own_classes_and_named_ones_together(self) -> None:
        own = {"scheduler": {"entrypoint": "mine:Own"}, "stoppers": [{"entrypoint": "mine:ends"}]}
        stoppers = [{"name": "maximum_iteration", "parameters": {"max_iter": 3}}]
        assert _findings({"decider": own, "searchAlgorithm": {"name": "random"}, "stoppers": stoppers}) == []

    @pytest.mark.parametrize(
        ("spec", "path"),
        [
            ({"decider": {}}, "spec.decider"),
            ({"decider": {"pickle": {}, "scheduler": {"entrypoint": "a:B"}}}, "spec.decider.scheduler"),
            ({"decider": {"pickle": {}}, "scheduler": {"name": "fifo"}}, "spec.scheduler"),
            ({"decider": {"pickle": {}}, "searchAlgorithm": {"name": "random"}}, "spec.searchAlgorithm"),
            (
                {
                    "decider": {"pickle": {}},
                    "stoppers": [{"name": "maximum_iteration", "parameters": {"max_iter": 3}}],
                },
                "spec.stoppers",
            ),
            ({"decider": {"scheduler": {"entrypoint": "a:B"}}, "scheduler": {"name": "fifo"}}, "spec.scheduler"),
            (
                {
                    "decider": {"scheduler": {"entrypoint": "a:B"}},
                    "algorithm": "auto",
                    "metric": "x",
                    "mode": "max",
                    "searchSpace": {"y": {"uniform": [0, 1]}},
                },
                "spec.decider.scheduler",
            ),
        ],
    )
    def test_what_contradicts_it_is_named(self, spec: dict[str, Any], path: str) -> None:
        assert [found for found, _ in _findings(spec)] == [path]
