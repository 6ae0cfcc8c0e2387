"""An algorithm is one file: its names, needs, documentation and explanations come from there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from trialpod.cli.main import main
from trialpod.errors import InvalidInputError
from trialpod.tune import schedulers
from trialpod.tune.plugins import catalogue
from trialpod.tune.plugins.catalogue import SCHEDULERS, SEARCHERS, STOPPERS, Catalogue
from trialpod_operator.engine.reasons import explain

DOCS = Path(__file__).parents[4] / "docs"
ONE_FILE = """
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers import TrialScheduler


@algorithm("coin_toss", "coin")
class CoinToss(TrialScheduler):
    ABOUT = ("stopped by chance", "nothing else helps")
    needs_metric = False

    def __init__(self, odds=0.5):
        self.odds = odds

    @classmethod
    def describe_reason(cls, reason):
        return f"the coin fell on {reason['side']}"
"""


@pytest.fixture(params=["built in", "installed"])
def coin_toss(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A scheduler in one file: in the package of ours, or in an installed package with an entry point."""
    (tmp_path / "coin_toss.py").write_text(ONE_FILE)
    if request.param == "built in":
        monkeypatch.setattr(schedulers, "__path__", [*schedulers.__path__, str(tmp_path)])
    else:
        monkeypatch.syspath_prepend(tmp_path)
        folder = tmp_path / "coin_toss-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: coin-toss\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("[trialpod.schedulers]\ncoin_toss = coin_toss:CoinToss\n")
    catalogue._declared.cache_clear()
    yield request.param
    catalogue._declared.cache_clear()
    for name in ("coin_toss", "trialpod.tune.schedulers.coin_toss"):
        sys.modules.pop(name, None)


class TestOneFile:
    def test_its_names_are_known(self, coin_toss: str) -> None:
        assert "coin_toss" in SCHEDULERS.names()
        made = schedulers.create_scheduler("Coin-Toss", odds=0.1)
        assert type(made).__name__ == "CoinToss"
        assert schedulers.scheduler_name(made) == "coin_toss"
        with pytest.raises(InvalidInputError, match=r"unknown scheduler 'coin_tos'\. Did you mean 'coin_toss'"):
            SCHEDULERS.find("coin_tos")

    def test_a_manifest_is_validated_by_what_it_needs(
        self, coin_toss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        manifest = dedent("""
            apiVersion: trialpod.dev/v1alpha1
            kind: TuneExperiment
            metadata: {name: tossed}
            spec:
              trainable: {entrypoint: "json:loads"}
              searchSpace: {lr: {uniform: [0, 1]}}
              scheduler: {name: coin_toss, parameters: {odds: 0.3}}
        """)
        (tmp_path / "experiment.yaml").write_text(manifest)
        assert main(["validate", str(tmp_path / "experiment.yaml")]) == 0, capsys.readouterr()
        (tmp_path / "experiment.yaml").write_text(manifest.replace("odds", "ods"))
        assert main(["validate", str(tmp_path / "experiment.yaml")]) != 0
        assert "Did you mean 'odds'" in capsys.readouterr().err

    def test_its_decisions_are_explained_in_its_words(self, coin_toss: str) -> None:
        reason = {"source": "scheduler", "scheduler": "coin_toss", "side": "tails"}
        assert explain(reason) == "the coin fell on tails"
        assert explain({"source": "scheduler", "scheduler": "coin_toss", "toss": 2}) == "coin_toss: toss=2"

    @pytest.mark.parametrize("coin_toss", ["built in"], indirect=True)
    def test_the_docs_list_it(self, coin_toss: str) -> None:
        assert "| `coin_toss`, `coin` | `CoinToss` | stopped by chance | nothing else helps |" in SCHEDULERS.table()


class TestOurs:
    @pytest.mark.parametrize("known", [SCHEDULERS, SEARCHERS, STOPPERS], ids=lambda known: known.kind)
    def test_the_docs_have_the_rows(self, known: Catalogue) -> None:
        """`tools/make_algorithm_tables` writes them."""
        page = {SCHEDULERS: "schedulers.md", SEARCHERS: "search.md", STOPPERS: "stoppers.md"}[known]
        text = (DOCS / page).read_text(encoding="utf-8")
        table = text.split(f"<!-- {known.kind}s -->")[1].split("\n\n")[1].splitlines()
        assert table[2:] == known.table()

    @pytest.mark.parametrize("known", [SCHEDULERS, SEARCHERS, STOPPERS], ids=lambda known: known.kind)
    def test_what_the_text_says_is_what_the_class_has(self, known: Catalogue) -> None:
        for name in known.builtin():
            cls = known.find(name)
            assert name in cls.REGISTERED[0]
            assert cls.REGISTERED[1]
            assert len(cls.ABOUT) == 2

    def test_a_lookup_imports_one_algorithm_only(self) -> None:
        code = (
            "import sys; from trialpod.tune.plugins.catalogue import SCHEDULERS; "
            "SCHEDULERS.find('hyperband'); print('trialpod.tune.schedulers.pbt' in sys.modules)"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "False"
