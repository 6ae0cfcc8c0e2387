"""The examples of docs/coming-from-optuna.md and docs/coming-from-katib.md run as they are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_shell import Shell

pytestmark = [pytest.mark.local, pytest.mark.once]

DOCS = Path(__file__).parents[2] / "docs"


def files(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text()
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE))


class TestFromOptuna:
    def test_the_script_runs(self, shell: Shell) -> None:
        shell.write("script.py", files("coming-from-optuna.md")["script.py"])
        done = shell.python("script.py")
        assert done.returncode == 0, done.stderr
        assert re.search(r"\{'lr': 0\.\d+, 'layers': [123]\}", done.stdout)


class TestFromKatib:
    def test_the_manifest_runs(self, shell: Shell) -> None:
        for name, text in files("coming-from-katib.md").items():
            shell.write(name, text)
        done = shell.run("run", "experiment.yaml", "--storage", "results", "--set", "spec.numSamples=4")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(shell.run("results", "results/digits", "--json").stdout)
        assert len(found["trials"]) == 4
        assert all(set(trial["params"]) == {"lr", "layers", "optimizer"} for trial in found["trials"])
