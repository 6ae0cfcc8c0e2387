from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("typing_extensions")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("module", ["trialpod.runner.fork_server.server", "trialpod.runner.main"])
def test_a_runner_starts_without_loading_typing_extensions(module: str) -> None:
    assert run(f"import sys, {module}; print('typing_extensions' in sys.modules)") == "False"


def test_user_code_can_import_typing_extensions_afterwards() -> None:
    assert run(
        "import trialpod.runner.fork_server.server, typing_extensions; print(typing_extensions.Required)"
    ).endswith("Required")


def test_a_typing_extensions_that_is_there_already_stays() -> None:
    code = (
        "import sys, typing_extensions as before, trialpod.runner; print(sys.modules['typing_extensions'] is before)"
    )
    assert run(code) == "True"


def test_msgspec_still_knows_optional_keys_of_typed_dicts() -> None:
    code = """
import trialpod.runner, msgspec
from typing_extensions import NotRequired, TypedDict
class Point(TypedDict):
    x: int
    y: NotRequired[int]
print(msgspec.json.decode(b'{"x": 1}', type=Point))
"""
    assert run(code) == "{'x': 1}"
