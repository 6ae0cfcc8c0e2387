"""For all tests: property tests are judged by what they find, not by how long one example takes on a busy machine.

They take the same examples each time, so that a run of the tests says something about the change that it judges;
``HYPOTHESIS_PROFILE=search`` takes new ones.

Tests in tests/cluster need a real cluster, so they run only when they are asked for; a run without them says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

_before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
from hypothesis import settings  # noqa: E402 - pytest rewrites all of a plug-in; kept, this is done once

sys.dont_write_bytecode = _before

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("trialpod", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "trialpod"))


@pytest.fixture(autouse=True)
def _closed_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as an operator does: a `Tuner` allows its process to open pickled states."""
    monkeypatch.setattr("trialpod.tune.plugins.state._allowed", False)


CLUSTER_TESTS = Path(__file__).parent / "cluster"


def cluster_tests_asked_for(config: pytest.Config) -> bool:
    """Whether this run names tests/cluster, or anything in it."""
    named = (Path(config.invocation_params.dir, str(each).partition("::")[0]).resolve() for each in config.args)
    return any(path == CLUSTER_TESTS or CLUSTER_TESTS in path.parents for path in named)


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder() -> Iterator[None]:
    """What tests, and processes that they start, leave in the folder for temporary files goes with the run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tempfile.mkdtemp(prefix="trialpod-tests-")  # short: Unix sockets are below it
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the rewritten modules of tests, also where the environment says that Python keeps no bytecode.

    Only these: a module that a test writes twice within a second must not be taken from its bytecode. In a fresh tree
    one process rewrites them, and its siblings wait for it, rather than each all of them.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        with rewritten_once() if hasattr(session.config, "workerinput") else contextlib.nullcontext():
            return (yield)
    finally:
        sys.dont_write_bytecode = before


@contextlib.contextmanager
def rewritten_once() -> Iterator[None]:
    """While most tests have not been rewritten, let one process import them before its siblings do."""
    kept = f".{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    files = list(Path(__file__).parent.rglob("test_*.py"))
    missing = [each for each in files if not (each.parent / "__pycache__" / (each.stem + kept)).exists()]
    with open(__file__) as lock:
        if len(missing) > len(files) // 2:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == CLUSTER_TESTS and not cluster_tests_asked_for(config):
        return True
    # For `-m slow`, most files need not be imported, which each of several processes would do.
    only_slow = config.getoption("markexpr") == "slow" and collection_path.suffix == ".py"
    return True if only_slow and not says_slow(collection_path) else None


@functools.cache
def says_slow(path: Path) -> bool:
    """Return whether a file of tests has the word that its slow tests are marked by."""
    return "slow" in path.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test that `-m slow` would not find."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    if hidden := sorted(str(path) for path in slow if not says_slow(path)):
        raise pytest.UsageError(f"these files have slow tests, and must name the marker: {', '.join(hidden)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if CLUSTER_TESTS.parent in [Path(config.invocation_params.dir, each).resolve() for each in config.args]:
        terminalreporter.write_line("tests/cluster was left out: it needs a real cluster (`make test-cluster`)")
