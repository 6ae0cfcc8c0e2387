from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["trialpod.runner.main", "trialpod.runner.load", "trialpod.tune.session"])
def test_a_trial_process_imports_nothing_heavy(module: str) -> None:
    heavy = {
        "asyncio",
        "http.client",
        "email",
        "ssl",
        "numpy",
        "cloudpickle",
        "shutil",
        "tempfile",
        "pickle",
        "random",
    }
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    base = subprocess.run(
        [sys.executable, "-c", "import sys, msgspec; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert heavy & set(loaded) <= heavy & set(base.stdout.split())
