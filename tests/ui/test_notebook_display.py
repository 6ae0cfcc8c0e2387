"""`tuner.fit()` in a real kernel: one output of a cell that is replaced while trials run, and stays in the file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: make test-ui")
nbformat = pytest.importorskip("nbformat")

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(240)]

DEFINE = """
import time
from trialpod import tune

def train(config):
    for step in range(STEPS):
        time.sleep(0.1)
        tune.report({"score<b>": config["x"] * (step + 1)})
"""
FIT = """
tuner = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1, 3])},
    tune_config=tune.TuneConfig(metric="score<b>", mode="max"),
    run_config=tune.RunConfig(name="cell", storage_path="results"),
)
try:
    tuner.fit()
except KeyboardInterrupt:
    print("interrupted")
"""
AFTER = "print(len(tuner.get_results()))"


class Kernel:
    """A kernel of its own in a folder; counts how often an output of a cell was replaced."""

    def __init__(self, folder: Path, steps: int, *more: str) -> None:
        cells = [DEFINE.replace("STEPS", str(steps)), *(more or (FIT, AFTER))]
        self.notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        self.replaced = 0
        self.interrupting: asyncio.Future[None] | None = None
        kernel = self

        class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
            def process_message(self, message: Any, *arguments: Any) -> Any:
                if message["header"]["msg_type"] == "update_display_data":
                    kernel.replaced += 1
                    kernel.on_update(self)
                return super().process_message(message, *arguments)

        self.on_update: Callable[[Any], None] = lambda client: None
        resources = {"metadata": {"path": str(folder)}}
        self.client = Client(self.notebook, timeout=90, kernel_name="", resources=resources, allow_errors=True)
        self.client.km = self.client.create_kernel_manager()
        self.client.km.kernel_spec.argv[0] = sys.executable

    def execute(self) -> None:
        # The browser of other tests keeps an event loop running in this thread.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, self.client.async_execute(reset_kc=True)).result()

    def outputs(self, cell: int) -> tuple[list[str], str]:
        """Return the HTML outputs of a cell, and what it printed."""
        found = self.notebook.cells[cell].outputs
        html = [each.data["text/html"] for each in found if "data" in each and "text/html" in each.data]
        return html, "".join(each.text for each in found if each.output_type == "stream")


class TestNotebook:
    def test_one_output_is_replaced_and_stays(self, tmp_path: Path) -> None:
        kernel = Kernel(tmp_path, steps=25)
        kernel.execute()
        (html,), printed = kernel.outputs(1)
        assert kernel.replaced >= 2
        assert "succeeded: 2/2 trials" in html
        assert "best score&lt;b&gt;=75" in html
        assert "<svg" in html
        assert "<script" not in html
        assert "started" not in printed
        assert kernel.outputs(2)[1] == "2\n"

    def test_interrupt_leaves_the_last_state(self, tmp_path: Path) -> None:
        kernel = Kernel(tmp_path, steps=100_000)

        def interrupt(client: Any) -> None:
            if kernel.replaced == 2:
                kernel.interrupting = asyncio.ensure_future(client.km.interrupt_kernel())

        kernel.on_update = interrupt
        kernel.execute()
        (html,), printed = kernel.outputs(1)
        assert "suspended: 0/2 trials" in html
        assert "interrupted\n" in printed
        assert kernel.outputs(2)[1] == "2\n"

    def test_refusal_is_its_line_and_a_sentence(self, tmp_path: Path) -> None:
        wrong = "tuning = tune.TuneConfig(num_samples=0)\ntune.Tuner(train, tune_config=tuning).fit()"
        kernel = Kernel(tmp_path, 1, wrong, "tune.Tuner(1 / 0)", f"%env TRIALPOD_DEBUG=1\n{wrong}")
        kernel.execute()
        cells = kernel.notebook.cells[1:]
        refused, own, debug = (
            each.traceback for cell in cells for each in cell.outputs if each.output_type == "error"
        )
        assert (refused[0], len(refused)) == ("line 1: tuning = tune.TuneConfig(num_samples=0)", 3)
        assert refused[-1].startswith("InvalidInputError: ")
        assert "ZeroDivisionError" in "".join(own)
        assert "Traceback" in "".join(debug)
