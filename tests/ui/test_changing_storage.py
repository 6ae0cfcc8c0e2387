"""An open page whose storage does not answer, or has another experiment than before."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from opened_tab import Opened, new_context
from sample_experiment import SampleExperiment

from trialpod.storage.base import StorageUnavailableError
from trialpod.tune.search.sample import uniform
from trialpod_operator.ui.access import AllowedHosts, Json, Sessions, User
from trialpod_operator.ui.app import Server
from trialpod_operator.ui.serve import PageServer
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]

NOT_LIVE = "() => document.getElementById('live').textContent === 'not up to date'"
TIMEOUT_MS = 60_000


class Store(Location):
    """A storage that can be away."""

    is_away = False

    def refresh(self) -> None:
        if self.is_away:
            raise StorageUnavailableError("the store does not answer")
        super().refresh()


class One:
    """One experiment, in a store."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self._model = ExperimentModel(self.store)

    def summaries(self, user: User, namespace: str = "") -> list[Json]:
        return [self._model.summary()]

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        return self._model

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        return True

    def close(self) -> None:
        self._model.close()


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    sample = SampleExperiment(tmp_path / "e", [1, 2, 3])
    sample.start(sample.trials[0])
    sample.report(sample.trials[0], 5.0, 6.0)
    return sample


@pytest.fixture
def experiments(sample: SampleExperiment) -> One:
    return One(sample.folder)


@pytest.fixture
def tab(browser: Any, experiments: One) -> Iterator[Opened]:
    sessions = Sessions()
    server = Server(experiments, sessions, AllowedHosts([]))
    context = new_context(browser)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = PageServer(uvicorn.Config(server.app(), log_level="warning", access_log=False), server.stop)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        opened = Opened(context.new_page(), f"http://127.0.0.1:{listener.getsockname()[1]}/")
        opened.page.goto(f"{opened.base}?token={sessions.token}")
        yield opened
        context.close()
        running.should_exit = True
        thread.join(60)


class TestOutage:
    def test_banner_stays_until_the_storage_answers(self, tab: Opened, experiments: One) -> None:
        page = tab.show("#/e/e/trials")
        assert page.locator(".stale").count() == 0
        experiments.store.is_away = True
        page.wait_for_function(NOT_LIVE, timeout=TIMEOUT_MS)
        assert page.locator(".stale").is_visible()
        experiments.store.is_away = False
        page.wait_for_selector(".stale", state="detached", timeout=TIMEOUT_MS)

    def test_a_page_opened_meanwhile_has_the_banner(self, tab: Opened, experiments: One) -> None:
        page = tab.show("#/e/e/trials")
        experiments.store.is_away = True
        page.wait_for_function(NOT_LIVE, timeout=TIMEOUT_MS)
        page = tab.show("#/e/e/trials")
        page.wait_for_function(NOT_LIVE, timeout=TIMEOUT_MS)
        assert page.locator(".stale").is_visible()


class TestAnotherExperiment:
    def test_rerun_replaces_trials_and_selection(self, tab: Opened, sample: SampleExperiment) -> None:
        page = tab.show("#/e/e")
        page.wait_for_function("() => document.querySelector('.uplot, .views canvas')")
        last = page.locator(f'.grid-row[data-id="{sample.trials[2]}"]')
        page.locator('.grid-row[tabindex="0"]').focus()
        for key in ("ArrowDown", "ArrowDown", "Space"):
            page.keyboard.press(key)
        assert page.locator(".grid-row.selected").get_attribute("data-id") == sample.trials[2]
        sample.close()
        os.rename(sample.folder, sample.folder.with_name("aside"))
        again = SampleExperiment(sample.folder, [], space={"y": uniform(0.0, 1.0)}, num_samples=2)
        again.report(again.trials[1], 7.0)
        last.wait_for(state="detached", timeout=TIMEOUT_MS)
        assert page.locator(".grid-row[data-id]").count() == 2
        assert page.locator(".grid-row.selected").count() == 0
        assert "Trial 1" in page.get_by_label("Best trial").inner_text()
        assert tab.problems == []
