"""What real Ray 2.60 answered is what the alias answers, but for the differences that are listed with a reason."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.local

TOOLS = Path(__file__).parents[2] / "tools" / "compare_with_ray"
QUICK = ("reporter", "sampling", "variants")
"""Subjects that take less than five seconds."""


def _agreement() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agreement", TOOLS / "agreement.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AGREEMENT = _agreement()
SUBJECTS: list[str] = AGREEMENT.subjects()


class TestSubjects:
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize(
        "subject",
        [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in SUBJECTS],
    )
    def test_agree_with_ray_but_for_the_listed(self, subject: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "trialpod.compat.ray", "--replace", str(TOOLS / "ask.py")]
        done = subprocess.run(
            [*command, "--into", str(tmp_path), subject, "--only", *AGREEMENT.answers(subject)],
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        here = {
            probe: found["found"] for probe, found in json.loads((tmp_path / f"{subject}.json").read_text()).items()
        }
        differ = [
            f"{subject}.{probe}.{key}"
            for probe, found in AGREEMENT.answers(subject).items()
            for key, value in found.items()
            if not AGREEMENT.agree(value, here.get(probe, {}).get(key))
        ]
        listed = [key for key in (*AGREEMENT.differences(), *AGREEMENT.given_up()) if key.startswith(f"{subject}.")]
        assert sorted(differ) == sorted(listed)


class TestPage:
    def test_is_up_to_date(self) -> None:
        assert AGREEMENT.PAGE.read_text() == AGREEMENT.page()

    def test_each_difference_has_its_reason(self) -> None:
        assert all(len(reason) > 10 for reason in AGREEMENT.differences().values())

    def test_what_was_given_up_is_no_difference_as_well(self) -> None:
        assert not AGREEMENT.differences().keys() & AGREEMENT.given_up().keys()
