"""The line protocol between the quality benchmark and a peer in a process of its own."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

from tuners.remote import PeerError, RemoteTuner
from tuners.tuner import Problem, Start

QUALITY = Path(__file__).parents[3] / "benchmarks" / "quality"

pytestmark = [pytest.mark.local, pytest.mark.once]

PROBLEM = Problem([], steps=4, first_rung=1, start_points=[{"x": 1}], seed=0, workers=2, budget_s=9.0)


@pytest.fixture
def peer(tmp_path):
    def make(body: str) -> RemoteTuner:
        program = tmp_path / "peer.py"
        program.write_text(
            f"import sys\nsys.path.append({str(QUALITY / 'peers')!r})\nfrom serve import serve\n"
            + textwrap.dedent(body)
        )
        return RemoteTuner([sys.executable, program])

    return make


class TestRemoteTuner:
    def test_passes_trials_and_decisions(self, peer):
        tuner = peer("""
            class Peer:
                def begin(self, problem):
                    print("libraries print")
                    self.starts = [("a", problem["start_points"][0]), ("a", None), None]
                def next(self):
                    return self.starts.pop(0)
                def report(self, trial, step, value):
                    return "pause" if value != value else "continue"
                def ended(self, trial, decision):
                    pass
            serve(Peer())
        """)
        tuner.begin(PROBLEM)
        assert [tuner.next_start(0.0) for _ in range(3)] == [Start("a", {"x": 1}), Start("a"), None]
        assert tuner.report("a", 1, 0.5, 1.0, 1.0) == "continue"
        assert tuner.report("a", 2, float("nan"), 2.0, 2.0) == "pause"
        tuner.ended("a", "pause", 2.0)

    def test_an_error_of_the_peer_is_shown(self, peer):
        tuner = peer("raise SystemExit('no such sampler')")
        with pytest.raises(PeerError, match="no such sampler"):
            tuner.begin(PROBLEM)
