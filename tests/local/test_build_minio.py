"""tools/build_minio with a Go compiler that only acts as one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.local, pytest.mark.once]

TOOL = Path(__file__).parents[2] / "tools" / "build_minio"
GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.99 linux/amd64"; exit; fi
echo "go: downloading example.org/a v1" >&2
echo "example.org/a" >&2
echo "example.org/b" >&2
sleep 2.2
RESULT
"""


def build(folder: Path, result: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "tools").mkdir()
    shutil.copy(TOOL, folder / "tools")
    (folder / "bin").mkdir()
    (folder / "bin/go").write_text(GO.replace("RESULT", result))
    (folder / "bin/go").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "BUILD_PROGRESS_S": "1"}
    return subprocess.run(
        [folder / "tools/build_minio", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestBuild:
    def test_says_how_long_it_takes_and_how_far_it_is(self, tmp_path: Path) -> None:
        done = build(tmp_path, 'echo "#!/bin/sh" > "$GOBIN/minio"; chmod +x "$GOBIN/minio"')
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        assert "is not built yet; that is done once, from source: 2 to 6 minutes" in lines[0]
        assert lines[1] == "build_minio: building with go1.99 ..."
        assert any(line.endswith(" s: 1 modules downloaded, 2 packages compiled") for line in lines[2:])
        assert Path(done.stdout.strip()).is_file()
        assert [path.name for path in (tmp_path / ".cache/bin").iterdir() if path.is_dir()] == []

    def test_shows_the_last_lines_of_a_failure(self, tmp_path: Path) -> None:
        done = build(tmp_path, "echo 'no space left' >&2; exit 1")
        assert done.returncode == 1
        assert "no space left\nbuild_minio: the build failed" in done.stderr

    def test_is_announced_without_being_done(self, tmp_path: Path) -> None:
        done = build(tmp_path, "exit 1", "--announce")
        assert (done.returncode, done.stdout) == (0, "")
        assert "2 to 6 minutes" in done.stderr
