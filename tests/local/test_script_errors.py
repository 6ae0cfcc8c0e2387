"""What a script shows when trialpod refuses something or is interrupted, and what those see who catch it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAIN = "from trialpod import tune\n\n\ndef train(config):\n    tune.report({'a': 1})\n\n\n"
REFUSED = "tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=0)).fit()\n"


def script(folder: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(TRAIN + text)
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, "TRIALPOD_WORK_DIR": str(folder / "work"), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestRefusal:
    def test_is_one_sentence_with_the_users_line(self, tmp_path: Path) -> None:
        ran = script(tmp_path, REFUSED)
        assert ran.returncode == 1
        (line,) = ran.stderr.splitlines()
        assert line.startswith("script.py:8: InvalidInputError: ")
        assert "num_samples" in line

    def test_of_a_package_that_is_not_installed_too(self, tmp_path: Path) -> None:
        missing = "import sys\nsys.modules['optuna'] = None\n"
        ran = script(
            tmp_path, f"{missing}tune.Tuner(train, tune_config=tune.TuneConfig(search_alg='optuna')).fit()\n"
        )
        assert "Traceback" not in ran.stderr
        assert "pip install 'optuna" in ran.stderr

    def test_has_its_traceback_on_request(self, tmp_path: Path) -> None:
        assert "Traceback" in script(tmp_path, REFUSED, TRIALPOD_DEBUG="1").stderr

    def test_can_be_caught_and_other_errors_keep_their_traceback(self, tmp_path: Path) -> None:
        ran = script(
            tmp_path,
            f"try:\n    {REFUSED}except ValueError as error:\n    print('caught', error)\n"
            "raise tune.TuneError('mine')\n",
        )
        assert ran.stdout.startswith("caught ")
        assert "Traceback" in ran.stderr
        assert "mine" in ran.stderr

    def test_leaves_other_hooks_alone(self, tmp_path: Path) -> None:
        hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__)\n"
        assert "hook InvalidInputError" in script(tmp_path, hook + REFUSED).stdout


@pytest.mark.slow
class TestInterrupt:
    def test_has_no_traceback(self, tmp_path: Path) -> None:
        path = tmp_path / "script.py"
        body = "import time\nfrom trialpod import tune\n\n\ndef train(config):\n"
        body += "    for i in range(200):\n        tune.report({'a': i})\n        time.sleep(0.1)\n\n\n"
        path.write_text(body + "tune.Tuner(train, run_config=tune.RunConfig(storage_path='.')).fit()\n")
        process = subprocess.Popen(
            [sys.executable, str(path)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 90
        while not any(each.stat().st_size for each in tmp_path.glob("*/*/result.json")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        assert process.returncode in (130, -signal.SIGINT)
