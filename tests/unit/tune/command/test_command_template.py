"""The templates of a command: rendering, quoting, and what is refused before a trial runs."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import TrainableError
from trialpod.protocol.command import CheckpointFolderSpec, CommandSpec, MetricsSpec
from trialpod.tune.command.check import parameter_names, problems
from trialpod.tune.command.parameter_file import encode_for
from trialpod.tune.command.template import TemplateError, parse, render, render_arguments, shared_files

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
CHARACTERS = "ab {}=:\"'\\$`*?;|&\n\té\u20ac\U0001f600"
TEXTS = st.text(CHARACTERS, max_size=12)
CONFIGS = st.dictionaries(
    st.text("abc_19", min_size=1, max_size=8),
    st.recursive(
        NUMBERS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_size=5,
)


def arguments(*command: str, params: dict, resumed: bool = False, **others) -> list[str]:
    return render_arguments(CommandSpec(command=list(command), **others), params, {"trial_id": "3f"}, resumed=resumed)


def refused(*command: str, parameters: list[str] | None, **others) -> list[str]:
    return [str(problem) for problem in problems(CommandSpec(command=list(command), **others), parameters)]


class TestRender:
    def test_plain_values(self):
        params = {"lr": 1e-05, "n": 3, "flag": True, "name": "sgd", "none": None}
        assert arguments("{lr}", "{n}", "{flag}", "{name}", "{none}", params=params) == [
            "1e-05", "3", "true", "sgd", "null",
        ]  # fmt: skip

    def test_nested_names_both_ways(self):
        params = {"opt": {"lr": 0.1}, "a.b": 2, "a": {"b": 3}}
        assert arguments("{opt.lr}", "{opt/lr}", "{a.b}", params=params) == ["0.1", "0.1", "2"]

    def test_a_mapping_is_json(self):
        found = arguments("--opt={opt}", params={"opt": {"lr": 0.1, "k": [1, "é"]}})
        assert found == ['--opt={"lr":0.1,"k":[1,"é"]}']

    def test_default_stands_for_a_missing_parameter(self):
        assert arguments("{dropout=0.1}{x=}", "{lr=9}", params={"lr": 1}) == ["0.1", "1"]

    def test_doubled_braces(self):
        assert arguments("{{lr}} {{}} {lr}", params={"lr": 1}) == ["{lr} {} 1"]

    def test_a_parameter_goes_before_a_built_in_name(self):
        assert arguments("{trial_id}", params={}) == ["3f"]
        assert arguments("{trial_id}", params={"trial_id": 5}) == ["5"]

    def test_all_other_parameters(self):
        params = {"lr": 0.1, "opt": {"name": "sgd", "m": 0.9}, "n": 2}
        assert arguments("{lr}", "{args}", params=params) == ["0.1", "--opt.name=sgd", "--opt.m=0.9", "--n=2"]

    def test_resume_arguments_only_with_a_checkpoint(self):
        given = {"resume_args": ["--resume", "{lr}"]}
        assert arguments("x", params={"lr": 1}, **given) == ["x"]
        assert arguments("x", params={"lr": 1}, resumed=True, **given) == ["x", "--resume", "1"]

    def test_scalars_of_array_libraries(self):
        class Scalar:
            shape = ()

            def item(self) -> float:
                return 0.25

        assert arguments("{a}", params={"a": Scalar()}) == ["0.25"]

    def test_missing_parameter(self):
        with pytest.raises(TemplateError, match=r"no parameter 'lr'; it has n; write \{lr=default\}"):
            arguments("{lr}", params={"n": 1})

    @pytest.mark.parametrize("value", ["a\0b", object(), {1, 2}])
    def test_a_value_without_a_form(self, value):
        with pytest.raises(TrainableError, match="the parameter x"):
            arguments("{x}", params={"x": value})

    @given(TEXTS)
    def test_no_value_breaks_out_of_its_argument(self, value):
        assert render("--x={x}", {"x": value}, {}) == f"--x={value}"

    @given(TEXTS)
    def test_doubling_braces_escapes_any_text(self, text):
        assert render(text.replace("{", "{{").replace("}", "}}"), {"a": 1}, {}) == text

    @given(st.text("{}a=:.x ", max_size=12))
    def test_every_template_is_read_or_refused(self, template):
        with contextlib.suppress(TemplateError):
            parse(template)


class TestParameterFile:
    @given(CONFIGS)
    def test_json_and_yaml_read_back_the_same(self, config):
        assert json.loads(encode_for("p.json", config)) == config
        assert yaml.safe_load(encode_for("p.yaml", config)) == config

    def test_floats_stay_numbers_for_yaml(self):
        values = yaml.safe_load(encode_for("p.yml", {"a": 1e-05, "b": 1e30, "c": math.inf, "d": [2.5e-7]}))
        assert values == {"a": 1e-05, "b": 1e30, "c": math.inf, "d": [2.5e-7]}


class TestProblems:
    def test_a_right_command_has_none(self):
        assert refused("python", "t.py", "--lr={lr}", "{opt.m}", parameters=["lr", "opt.m"]) == []
        assert refused("python", "{config}", parameters=["config"]) == []
        assert refused("python", "{opt}", parameters=["opt.a", "opt.b"]) == []

    def test_unknown_placeholder(self):
        (found,) = refused("python", "--lr={l}", "{lr}", parameters=["lr"])
        assert found.startswith(
            "command[1]: {l} is not a parameter of the search space, which has lr; did you mean {lr}?"
        )

    def test_unused_parameter(self):
        (found,) = refused("python", "{lr}", parameters=["lr", "units"])
        assert "nothing gives units to the program; add --units={units} to the command, {args}" in found

    @pytest.mark.parametrize(
        ("command", "others"),
        [
            (["{args}"], {}),
            (["{params.json}"], {}),
            (["--config={params.yaml}"], {}),
            ([], {"parameters_file": "c.yaml"}),
            ([], {"parameter_env_prefix": "HP_"}),
            ([], {"env": {"A": "{lr}", "B": "{n}"}}),
        ],
    )
    def test_every_way_to_pass_parameters_counts(self, command, others):
        assert refused("python", *command, parameters=["lr", "n"], **others) == []

    @pytest.mark.parametrize(
        ("fields", "shared"),
        [
            ({"parameters_file": "c.yaml"}, ["parametersFile"]),
            ({"parameters_file": "{trial_dir}/c.yaml"}, []),
            ({"parameters_file": "c-{lr}.yaml"}, []),
            ({"parameters_file": "{{lr}}.yaml"}, ["parametersFile"]),
            ({"parameters_file": "c.yaml", "working_dir": "runs/{trial_id}"}, []),
            ({"parameters_file": "/tmp/c.yaml", "working_dir": "runs/{trial_id}"}, ["parametersFile"]),
            ({"metrics": MetricsSpec(file="m.csv", tensorboard="logs")}, ["metrics.file", "metrics.tensorboard"]),
            ({"metrics": MetricsSpec(mlflow="mlruns")}, ["metrics.mlflow"]),
            ({"metrics": MetricsSpec(prometheus="http://127.0.0.1:8000/metrics")}, []),
            ({"env": {"OUT": "a"}}, []),
        ],
    )
    def test_files_that_all_trials_share(self, fields, shared):
        spec = CommandSpec(command=["x", "{lr}"], **fields)
        assert [field for field, _ in shared_files(spec)] == shared

    def test_names_are_unknown_where_only_the_trials_know_them(self):
        assert refused("python", "{lr}", parameters=None) == []

    def test_two_parameters_in_one_variable(self):
        (found,) = refused("x", parameters=["a-b", "a.b"], parameter_env_prefix="HP_")
        assert "would both be the variable HP_A_B" in found

    @pytest.mark.parametrize("template", ["{", "a}", "{lr", "${ }", "{}", "{lr:uniform}", "{ lr }"])
    def test_single_braces(self, template):
        assert len(refused("x", template, parameters=["lr"])) == 1

    @pytest.mark.parametrize(
        "template",
        [
            "awk '{printf \"loss=%f\", 1}'",
            "{n+=1; m=2}",
            '{"lr"=1}',
            "{a b=1}",
            "{x=$1; y=2}",
            "{x=$1}",
            "{x=`date`}",
            "{x=1\ny=2}",
        ],
    )
    def test_code_in_braces_is_no_default(self, template):
        with pytest.raises(TemplateError, match="for the braces themselves"):
            parse(template)

    def test_code_in_doubled_braces_is_text(self):
        assert render("{{x=$1; y=2}}", {}, {}) == "{x=$1; y=2}"

    @pytest.mark.parametrize("default", ["", "0.1", "adam w", "[64,64]", "a=b", "s3://b/c", "it's"])
    def test_defaults(self, default):
        assert render(f"{{x={default}}}", {}, {}) == default

    def test_patterns(self):
        def metrics(**given) -> list[str]:
            return refused("x", parameters=[], metrics=MetricsSpec(**given))

        assert metrics(pattern=r"loss (?P<loss>\S+)") == []
        assert "no named group" in metrics(pattern="loss (.*)")[0]
        assert "not a regular expression" in metrics(pattern="(?P<a>")[0]
        assert "group name but not value" in metrics(pattern="(?P<name>a)")[0]
        assert "without format" in metrics(pattern="(?P<a>b)", format="json")[0]
        assert "at most 1024" in metrics(pattern=f"(?P<a>{'b' * 1024})")[0]

    def test_other_fields(self):
        assert "is empty" in refused(parameters=[])[0]
        assert "must be a URL" in refused("x", parameters=[], metrics=MetricsSpec(prometheus="localhost"))[0]
        folder = CheckpointFolderSpec(ready_file="a/b")
        assert "directly in the checkpoint folder" in refused("x", parameters=[], checkpoints=folder)[0]
        assert "not a name of an environment variable" in refused("x", parameters=[], env={"A=B": ""})[0]


def test_names_of_a_search_space():
    space = {"lr": 1, "opt": {"name": 2, "deep": {"x": 3}}, "g": {"grid_search": [1]}, "empty": {}}
    assert parameter_names(space) == ["lr", "opt.name", "opt.deep.x", "g", "empty"]
