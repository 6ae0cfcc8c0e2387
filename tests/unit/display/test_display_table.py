from __future__ import annotations

import dataclasses
import errno
import io
import subprocess
import sys

from display_views import any_view, experiment, trial
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from trialpod_operator.display import events
from trialpod_operator.display.base import TrialOutput
from trialpod_operator.display.table import MAX_LINES, TableDisplay
from trialpod_operator.display.view import ExperimentView


def console(width: int, height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, markup=False
    )


def rendered(view: ExperimentView, width: int, height: int = 30) -> list[str]:
    target = console(width, height)
    display = TableDisplay(io.StringIO(), now=lambda: 0.0, console=target)
    with target.capture() as captured:
        target.print(display.render(view))
    return captured.get().split("\n")[:-1]


def nine_trials() -> ExperimentView:
    rows = [
        trial(9, "RUNNING", iteration=4, attempts=2),
        trial(2, "ERROR", error="ValueError: no"),
        trial(1),
        trial(0),
    ]
    return experiment(rows, counts={"RUNNING": 2, "TERMINATED": 5, "ERROR": 1, "PENDING": 12})


def test_a_wide_terminal_shows_everything() -> None:
    assert rendered(nine_trials(), 100) == [
        "digits · Running · 6/20 trials (1 failed) · 2 running",
        "0:14 · ETA 0:31 · 42 trials/min · 8.5 results/s",
        "best accuracy=1.4 · ab12c_00009 · iteration 4 · lr=0.01",
        "",
        "trial        status      iter  accuracy  time  attempt       lr",
        "ab12c_00009  RUNNING        4       1.4  0:03        2     0.01",
        "ab12c_00002  ERROR          9       0.7  0:03           0.03333",
        "ab12c_00001  TERMINATED     9       0.6  0:03              0.05",
        "ab12c_00000  TERMINATED     9       0.5  0:03               0.1",
        "… and 12 waiting, 1 running, 3 ended",
    ]


def test_a_narrow_terminal_shows_what_matters_most() -> None:
    assert rendered(nine_trials(), 42) == [
        "digits · Running · 6/20 trials (1 failed)",
        "0:14 · ETA 0:31 · 42 trials/min",
        "best accuracy=1.4 · ab12c_00009",
        "",
        "trial        status      iter  accuracy",
        "ab12c_00009  RUNNING        4       1.4",
        "ab12c_00002  ERROR          9       0.7",
        "ab12c_00001  TERMINATED     9       0.6",
        "ab12c_00000  TERMINATED     9       0.5",
        "… and 12 waiting, 1 running, 3 ended",
    ]


def test_a_table_has_at_most_twenty_lines_and_fits_the_terminal() -> None:
    view = experiment([trial(number) for number in range(60)], total=60)
    assert len(rendered(view, 100, height=60)) == MAX_LINES
    assert len(rendered(view, 100, height=12)) == 11
    assert rendered(view, 100, height=60)[-1] == "… and 46 ended"


def test_table_is_redrawn_on_change_and_at_most_so_often() -> None:
    time = 0.0
    target = console(100)
    display = TableDisplay(io.StringIO(), now=lambda: time, console=target)
    stream = target.file
    assert isinstance(stream, io.StringIO)
    view = nine_trials()
    display.start(view)

    def drew(shown: ExperimentView) -> bool:
        before = len(stream.getvalue())
        display.update(shown)
        return len(stream.getvalue()) > before

    time = 10.0
    assert not drew(view)
    changed = dataclasses.replace(view, results=121)
    assert drew(changed)
    time += 0.05
    again = dataclasses.replace(view, results=122)
    assert not drew(again)
    time += 0.1
    assert drew(again)
    display.close()
    display.close()
    assert not drew(view)


def test_an_error_is_written_once_above_the_table() -> None:
    target = console(100)
    display = TableDisplay(io.StringIO(), now=lambda: 0.0, console=target)
    display.start(nine_trials())
    display.event(events.trial_started(trial(5)))
    for number in (2, 3, 4):
        display.event(events.trial_failed(trial(number, "ERROR", error="ValueError: no")))
    display.finish(nine_trials())
    assert isinstance(target.file, io.StringIO)
    text = target.file.getvalue()
    assert text.count("failed: ValueError: no") == 1
    assert "started" not in text


def test_columns_do_not_come_and_go() -> None:
    target = console(100)
    display = TableDisplay(io.StringIO(), now=lambda: 0.0, console=target)
    with target.capture() as captured:
        target.print(display.render(experiment([trial(1), trial(2)])))
        target.print(display.render(experiment([trial(1)])))
    titles = [line for line in captured.get().split("\n") if line.startswith("trial ")]
    assert len(titles) == 2
    assert titles[0] == titles[1]


@settings(max_examples=40)
@given(view=any_view, width=st.integers(40, 200), height=st.integers(2, 60))
def test_any_view_fits_any_terminal(view: ExperimentView, width: int, height: int) -> None:
    lines = rendered(view, width, height)
    assert len(lines) <= MAX_LINES
    assert all(cell_len(line) <= width for line in lines)
    assert all(c.isprintable() or c == "\u3000" for line in lines for c in line)


class Terminal(io.StringIO):
    """A terminal that is closed after some writes."""

    encoding = "utf-8"
    writes_left = 1

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.writes_left <= 0:
            raise OSError(errno.EIO, "Input/output error")
        self.writes_left -= 1
        return super().write(text)


class TestLostTerminal:
    def show(self, terminal: Terminal) -> None:
        display = TableDisplay(terminal, now=lambda: 0.0, verbose=1)
        display.start(experiment([]))
        display.event(events.interrupted("stopping", "press Ctrl-C again"))
        display.output(TrialOutput("t", "train_t", 1, ["a line"]))
        display.update(nine_trials())
        display.finish(nine_trials())
        display.close()

    def test_ends_nothing(self) -> None:
        for writes in range(5):
            terminal = Terminal()
            terminal.writes_left = writes
            self.show(terminal)
            assert bool(terminal.getvalue()) == bool(writes)

    def test_closed_stream_ends_nothing(self) -> None:
        terminal = Terminal()
        display = TableDisplay(terminal, now=lambda: 0.0)
        display.start(experiment([]))
        terminal.close()
        display.finish(nine_trials())

    def test_characters_that_it_cannot_encode_are_escaped(self) -> None:
        raw = io.BytesIO()
        display = TableDisplay(io.TextIOWrapper(raw, encoding="ascii"), now=lambda: 0.0)
        display.event(events.warning("größer"))
        assert raw.getvalue() == b"warning: gr\\xf6\\xdfer\n"


def test_rich_is_imported_only_for_the_table() -> None:
    code = (
        "import io, sys; from trialpod_operator.display.choose import choose_display\n"
        "choose_display(io.StringIO(), json=False, verbose=0); choose_display(io.StringIO(), json=True, verbose=0)\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
