"""Code that is not installed travels with a Trainable that goes to another machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
import helper
from trialpod.tune.shipping.package import packed_trainable

def train(config):
    return helper.double(config["x"])

Path(sys.argv[1]).write_bytes(packed_trainable(train, own_code=sys.argv[2] == "own").partition(b"\\n")[2])
"""
LOADER = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))({'x': 21}))"


def loaded_elsewhere(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    (folder / "helper.py").write_text("import json\n\nFACTOR = 2\n\ndef double(x):\n    return FACTOR * x\n")
    (folder / "script.py").write_text(SCRIPT)
    target = folder / "trainable.pkl"
    subprocess.run([sys.executable, "script.py", str(target), how], cwd=folder, check=True)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    command = [sys.executable, "-c", LOADER, str(target)]
    return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)


def test_modules_beside_the_script_travel(tmp_path: Path) -> None:
    assert loaded_elsewhere(tmp_path, "own").stdout == "42\n"


def test_reference_on_the_same_machine(tmp_path: Path) -> None:
    assert "No module named 'helper'" in loaded_elsewhere(tmp_path, "reference").stderr
