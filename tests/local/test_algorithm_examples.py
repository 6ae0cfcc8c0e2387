"""examples/algorithms runs, with fewer samples of a tiny objective, and docs/algorithms.md shows what is there."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod.cli.main import main

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "algorithms"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
TRIALPOD = str(Path(sys.executable).with_name("trialpod"))
TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```yaml title="([^"]+)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
SAMPLES = {"grid": 1, "pbt_replay": 1, "resource_changing": 4, "pb2": 4, "timeout": 8}

TINY = """
import math
from trialpod import tune

class Digits(tune.Trainable):
    def setup(self, config):
        self.height = 100.0

    def step(self):
        distance = abs(math.log10(self.config["lr"])) + abs(math.log10(self.config["gamma"]))
        self.height *= 0.7 + 0.25 * min(distance / 4, 1)
        return {"error": self.height}

    def save_checkpoint(self, checkpoint_dir):
        return {"height": self.height}

    def load_checkpoint(self, checkpoint):
        self.height = checkpoint["height"]
"""


def run_example(name: str, folder: Path) -> Path:
    """Run an example with a tiny objective in place of the digits; return the experiment's directory."""
    (folder / "digits.py").write_text(TINY)
    shutil.copy(EXAMPLES / f"{name}.yaml", folder)
    samples = SAMPLES.get(name, 6)
    command = [TRIALPOD, "run", "-q", f"{name}.yaml", "--storage", "out", "--set", f"spec.numSamples={samples}"]
    if name == "resource_changing":
        command += ["--cpus", "8"]
    if yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))["spec"].get("stop"):
        command += ["--set", "spec.stop.training_iteration=9"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = samples * (30 if name == "grid" else 1)
    assert re.search(rf"^{trials} trials? in .*: {trials} terminated", done.stdout, re.MULTILINE), done.stdout
    return folder / "out" / name.replace("_", "-")


@pytest.fixture(scope="module")
def plot() -> Iterator[Any]:
    """The script that draws, imported once; its folder and its modules are forgotten afterwards."""
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        yield importlib.import_module("plot")
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("name", [path.stem for path in MANIFESTS])
def test_the_example_runs_and_its_picture_can_be_drawn(name: str, tmp_path: Path, plot: Any) -> None:
    place = run_example(name, tmp_path)
    plot.main(["--place", str(place), "--out", str(tmp_path)])
    assert (tmp_path / f"{place.name}.png").stat().st_size < 60_000


MINE = """
from trialpod import tune

def train(config):
    for step in range(3):
        tune.report({"loss": config["x"] - step * 0.1} if step else {"other": "a"})

tune.Tuner(
    train,
    param_space={"x": tune.uniform(0, 1), "kind": tune.grid_search(["a", "b"])},
    tune_config=tune.TuneConfig(metric=METRIC, mode="min", num_samples=2),
).fit()
"""


class TestYourOwn:
    """Experiments that are none of the examples are drawn, too."""

    def run(self, folder: Path, source: str) -> Path:
        (folder / "mine.py").write_text(source)
        command = [TRIALPOD, "run", "-q", "mine.py", "--storage", "out"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder / "out" / "mine"

    def test_are_drawn_in_every_kind(self, tmp_path: Path, plot: Any) -> None:
        place = self.run(tmp_path, MINE.replace("METRIC", "'loss'"))
        for kind in ("auto", "curves", "lineage", "samples"):
            (tmp_path / kind).mkdir()
            plot.main(["--place", str(place), "--out", str(tmp_path / kind), "--kind", kind])
            assert (tmp_path / kind / "mine.png").is_file()

    def test_without_a_metric_are_refused(self, tmp_path: Path, plot: Any) -> None:
        place = self.run(tmp_path, MINE.replace('metric=METRIC, mode="min", ', ""))
        with pytest.raises(SystemExit, match="names no metric"):
            plot.main(["--place", str(place), "--out", str(tmp_path)])


def test_script_makes_every_scheduler_and_searcher_by_name(tmp_path: Path) -> None:
    for file in ("run.py", "fifo.yaml"):
        shutil.copy(EXAMPLES / file, tmp_path)
    (tmp_path / "digits.py").write_text(TINY)
    by_name = ["--scheduler", "asha", "--search", "optuna", "--parameters", '{"max_t": 9}', "--samples", "4"]
    command = [sys.executable, "run.py", "pbt_explore", "function_stopper", *by_name, "--storage", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 trials, best error" in done.stdout
    for name in ("pbt-explore", "function-stopper", "asha-optuna"):
        assert (tmp_path / "out" / name / ".trialpod").is_dir()


@pytest.mark.parametrize(("title", "block"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_documented_snippets_are_in_the_example_and_valid(
    title: str, block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: dict[str, Any] = yaml.safe_load(block)
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / title).read_text(encoding="utf-8"))
    if "spec" in shown:
        assert shown == manifest
    else:
        assert {key: manifest["spec"].get(key) for key in shown} == shown
    status = main(["validate", str(EXAMPLES / title)])
    captured = capsys.readouterr()
    assert status == 0, captured.out + captured.err


def test_docs_show_every_example_with_a_small_picture() -> None:
    assert {title for title, _ in BLOCKS} == {path.name for path in MANIFESTS}
    assert TEXT.count("```yaml") == len(BLOCKS)
    pictures = re.findall(r"\]\(images/([^)]+)\)", TEXT)
    assert {Path(picture).stem for picture in pictures} >= {path.stem for path in MANIFESTS}
    for picture in pictures:
        assert (ROOT / "docs" / "images" / picture).stat().st_size < 60_000, picture
