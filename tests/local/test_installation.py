"""What is installed by which `pip install`, in real environments that have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trialpod.cli.main import built_in_names

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.once]

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
HEAVY = ("ax", "bohb", "hyperopt", "nevergrad")
"""Extras whose libraries take long to install or must be compiled; their commands are those of the others."""
EXTRAS = sorted(
    set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - set(HEAVY)
)
SCRIPT = """
from trialpod import tune

def train(config):
    tune.report({"loss": config["x"]})

tune.Tuner(train, param_space={"x": tune.uniform(0, 1)}).fit()
"""
MANIFEST = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: searched}
spec:
  trainable: {entrypoint: "train:train"}
  searchSpace: {x: {uniform: [0, 1]}}
  metric: accuracy
  mode: max
  numSamples: 2
  searchAlgorithm: {name: SEARCH}
"""
ARGUMENTS = {
    "run": ["experiment.yaml"],
    "validate": ["experiment.yaml"],
    "submit": ["experiment.yaml"],
    "init": ["."],
    "download": ["nothing", "here"],
    "explain": ["0", "nothing"],
    "logs": ["nothing", "0"],
    "check": [],
    "list": [],
    "operator": [],
}


def run(*command: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"KUBECONFIG": "/nowhere/config", **variables}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def done(*command: str, cwd: Path | None = None) -> str:
    finished = run(*command, cwd=cwd)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built from a copy: setuptools leaves its traces beside what it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = ("pyproject.toml", "README.md", "LICENSE", "runtime", "operator")
    done("cp", "-r", *(str(ROOT / name) for name in names), str(source))
    done(UV, "build", "--quiet", "--wheel", "--out-dir", str(out), str(source))
    return next(out.glob("*.whl"))


class Environment:
    """An empty virtual environment with one `pip install` of the wheel."""

    def __init__(self, folder: Path, *requirements: str) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.bin = folder / "venv/bin"
        done(UV, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
        done(UV, "pip", "install", "--quiet", "--python", str(self.bin / "python"), *requirements)

    def trialpod(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(str(self.bin / "trialpod"), *arguments, cwd=self.work, HOME=str(self.work))

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        (self.work / "script.py").write_text(code)
        return run(str(self.bin / "python"), "script.py", cwd=self.work, HOME=str(self.work))


def every_command(environment: Environment) -> None:
    """Run each command with arguments that lead it into its work; none may end with a traceback."""
    for name in built_in_names():
        ended = environment.trialpod(name, *ARGUMENTS.get(name, ["nothing"]))
        assert "Traceback" not in ended.stderr, f"{name}: {ended.stderr}"
        assert "No module named" not in ended.stderr, f"{name}: {ended.stderr}"
        if "not installed" in ended.stderr:
            assert re.search(r"pip install '?trialpod", ended.stderr), f"{name}: {ended.stderr}"


class TestPlain:
    """`pip install trialpod`, without an extra."""

    def test_runs_manifests_and_scripts(self, wheel: Path, tmp_path: Path) -> None:
        environment = Environment(tmp_path, str(wheel))
        assert environment.trialpod("init").returncode == 0
        assert environment.trialpod("validate", "experiment.yaml").returncode == 0
        ended = environment.trialpod("run", "experiment.yaml", "--set", "spec.numSamples=2")
        assert ended.returncode == 0, ended.stderr
        assert "best trial: " in ended.stdout
        ended = environment.python(SCRIPT)
        assert ended.returncode == 0, ended.stderr
        every_command(environment)

    def test_runs_the_manifest_of_the_demo(self, wheel: Path, tmp_path: Path) -> None:
        environment = Environment(tmp_path, str(wheel))
        less = ("--set", "spec.numSamples=1", "--set", "spec.searchSpace.epochs=3")
        ended = environment.trialpod(
            "run", str(ROOT / "examples/digits/experiment.yaml"), *less, "--storage", "results"
        )
        assert ended.returncode == 0, ended.stderr
        assert "2 trials in" in ended.stdout

    def test_names_the_extra_of_a_search_algorithm(self, wheel: Path, tmp_path: Path) -> None:
        environment = Environment(tmp_path, str(wheel))
        environment.trialpod("init")
        (environment.work / "searched.yaml").write_text(MANIFEST.replace("SEARCH", "optuna"))
        ended = environment.trialpod("run", "searched.yaml")
        assert ended.returncode == 2
        assert "pip install 'optuna>=5'" in ended.stderr
        assert "Traceback" not in ended.stderr
        ended = environment.trialpod("operator")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "pip install 'trialpod[operator]'" in ended.stderr


class TestSlim:
    """`pip install --no-deps trialpod` and the two packages of a trial's process."""

    def test_runs_trials_and_says_what_the_rest_needs(self, wheel: Path, tmp_path: Path) -> None:
        environment = Environment(tmp_path, "--no-deps", str(wheel), "msgspec", "cloudpickle")
        assert environment.python("import trialpod.tune, trialpod.runner.main").returncode == 0
        every_command(environment)
        ended = environment.trialpod("run", "experiment.yaml")
        assert ended.returncode == 2
        assert ended.stderr.endswith("which is not installed; install it with: pip install trialpod\n")
        ended = environment.python(SCRIPT)
        assert ended.stderr.endswith("which is not installed; install it with: pip install trialpod\n")


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_alone_leaves_no_traceback(wheel: Path, tmp_path: Path, extra: str) -> None:
    environment = Environment(tmp_path, f"trialpod[{extra}] @ {wheel.as_uri()}")
    ended = environment.python(
        "from trialpod.cli.main import built_in_names, load_command\nfor each in built_in_names(): load_command(each)"
    )
    assert ended.returncode == 0, ended.stderr
    environment.trialpod("init")
    ended = environment.trialpod("run", "experiment.yaml", "--set", "spec.numSamples=2")
    assert ended.returncode == 0, ended.stderr
