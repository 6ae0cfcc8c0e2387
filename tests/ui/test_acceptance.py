"""What a user does with the page, and what nobody else may do: the real command, real runs, a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from grown_folder import Grown
from opened_tab import FOREIGN_NAME, Opened, new_context
from real_experiments import GrownExperiment
from served_page import TRIALPOD, ServedPage

from trialpod.storage.registry import open_storage
from trialpod_operator.experiment.fsck.examine import examine
from trialpod_operator.experiment.stored import write_stored
from trialpod_operator.ui.app import ACTIONS

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 240
ENDLESS = """
import time
from trialpod import tune

def train(config):
    step = 0
    while True:
        step += 1
        tune.report({"score": config["x"] * step})
        time.sleep(0.05)
"""
MANIFEST = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: endless}
spec:
  trainable: {entrypoint: "endless:train"}
  searchSpace: {x: {uniform: [0, 1]}}
  metric: score
  mode: max
  numSamples: 2
"""


class Answers(ThreadingHTTPServer):
    """Another program of this machine with a port; `answer` is (status, type, body) for every request."""

    def __init__(self, answer: tuple[int, str, str]) -> None:
        self.answer = answer
        super().__init__(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        status, kind, body = self.server.answer
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """The run of `make demo`, in a folder of its own, beside the other tests of this module."""
    folder = tmp_path_factory.mktemp("demo")
    manifest = ROOT / "examples" / "digits" / "experiment.yaml"
    process = subprocess.Popen([*TRIALPOD, "run", str(manifest), "--storage", str(folder), "--quiet"], cwd=folder)
    yield process
    process.kill()
    process.wait()


class TestActions:
    def test_suspend_ends_the_run_and_keeps_its_results(self, browser: Any, tmp_path: Path) -> None:
        (tmp_path / "endless.py").write_text(ENDLESS)
        (tmp_path / "experiment.yaml").write_text(MANIFEST)
        command = [*TRIALPOD, "run", "experiment.yaml", "--storage", "results", "--quiet"]
        (tmp_path / "results").mkdir()
        run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
        server = ServedPage(tmp_path / "results", "--actions")
        context = new_context(browser)
        try:
            page = context.new_page()
            page.goto(server.take_link())
            page.wait_for_function(
                """async () => {
                  const answer = await fetch("/api/experiments").then((response) => response.json());
                  return answer.experiments.some((each) => each.best);
                }""",
            )
            page.goto(f"{server.url}#/e/endless/trials")
            page.get_by_role("button", name="Suspend").click()
            assert page.locator("dialog .command").inner_text() == f"trialpod suspend {tmp_path / 'results/endless'}"
            assert run.poll() is None
            page.locator("dialog button.primary").click()
            assert run.wait(60) == 130
            page.wait_for_function("() => document.querySelector('h1').innerText.includes('Suspended')")
        finally:
            run.kill()
            run.wait()
            context.close()
            server.kill()

    def test_are_not_there_when_off(self, grown: Grown) -> None:
        for action in ACTIONS:
            path = f"/api/experiments/digits/actions/{action}"
            assert grown.page.request("POST", path, grown.cookie)[0] == 404


class TestStrangers:
    def test_another_origin_reads_and_writes_nothing(self, context: Any, grown: Grown) -> None:
        other = Answers((200, "text/html", "<!doctype html><title>other</title>"))
        try:
            page = context.new_page()
            answers: dict[str, int] = {}
            page.on("response", lambda answer: answers.update({answer.url: answer.status}))
            page.goto(other.url)
            tried = page.evaluate(
                """async (base) => {
                  const attempts = {
                    read: () => fetch(`${base}api/experiments`, { credentials: "include" }),
                    session: () => fetch(`${base}api/session`, { credentials: "include" }),
                    write: () => fetch(`${base}api/experiments/digits/actions/suspend`, {
                      method: "POST", credentials: "include", headers: { "x-trialpod-token": "x" }, body: "{}" }),
                  };
                  const found = {};
                  for (const [name, attempt] of Object.entries(attempts)) {
                    found[name] = await attempt().then((answer) => answer.text(), () => "refused");
                  }
                  found.blind = await fetch(`${base}api/experiments`, { mode: "no-cors", credentials: "include" })
                    .then((answer) => answer.text(), () => "refused");
                  return found;
                }""",
                grown.page.url,
            )
            assert tried["read"] == tried["session"] == tried["write"] == "refused"
            assert tried["blind"] in ("", "refused")
            assert answers.get(f"{grown.page.url}api/experiments", 403) == 403
            form = f'<form method="post" action="{grown.page.url}api/experiments/digits/actions/suspend"></form>'
            page.set_content(form)
            with page.expect_navigation() as posted:
                page.evaluate("document.forms[0].submit()")
            assert posted.value.status == 403
        finally:
            other.stop()

    def test_a_name_that_resolves_to_here_is_refused(self, browser: Any, grown: Grown) -> None:
        context = new_context(browser)
        address = f"http://{FOREIGN_NAME}:{grown.page.port}/"
        context.add_cookies([grown.cookie | {"url": address}])
        page = context.new_page()
        try:
            for path in ("", "api/experiments", "static/js/main.js"):
                answer = page.goto(address + path)
                assert answer.status == 421
                assert "digits" not in answer.text()
        finally:
            context.close()

    def test_no_path_leads_out_of_the_folder(self, grown: Grown) -> None:
        secret = grown.folder.parent / "secret"
        GrownExperiment(secret, 1)
        for path in (
            "/api/experiments/..%2Fsecret",
            "/api/experiments/%2e%2e%2fsecret/trials",
            "/api/experiments/../secret",
            f"/api/experiments/{str(secret).replace('/', '%2f')}",
            "/static/..%2f..%2fapp.py",
            "/static/../../app.py",
            "/static/%2fetc%2fpasswd",
        ):
            status, body = grown.page.request("GET", path, grown.cookie)
            assert (path, status) == (path, 404)
            assert "trials" not in str(body or "")
        shutil.rmtree(secret)


class TestDamage:
    def test_a_damaged_journal_is_reported_as_fsck_does(self, browser: Any, tmp_path: Path) -> None:
        folder = tmp_path / "broken"
        GrownExperiment(folder, 6).close()
        space = {"lr": {"loguniform": [1e-5, 0.1]}}  # known although no trial can be read
        write_stored(folder, {"name": "broken", "total": 6, "manifest": {"spec": {"searchSpace": space}}})
        (segment,) = (folder / ".trialpod/journal").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(bytes(data))
        said = [each.what for each in examine(open_storage(str(folder))).findings if each.severity == "error"]
        words = self.shown(browser, ServedPage(folder), ".reason.bad")
        assert said[0] in words
        assert f"trialpod fsck {folder}" in words

    def test_a_folder_that_is_no_experiment_is_reported(self, browser: Any, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "half" / ".trialpod").mkdir(parents=True)
        (tmp_path / "half" / ".trialpod" / "experiment.json").write_text("{")
        words = self.shown(browser, ServedPage(tmp_path / "half"), ".reason.bad")
        assert "cannot be read" in words
        assert "trialpod fsck" in words
        assert "trialpod run" in self.shown(browser, ServedPage(tmp_path / "empty"), "main .empty")

    def test_a_bucket_that_refuses_is_reported(self, browser: Any) -> None:
        refusal = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        bucket = Answers((403, "application/xml", refusal))
        environment = {
            "AWS_ENDPOINT_URL_S3": bucket.url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_REGION": "us-east-1",
        }
        try:
            page = ServedPage("s3://tune/digits", environment=environment)
            words = self.shown(browser, page, ".reason.bad")
            assert re.search(r"denies|denied|refuse|403", words, re.IGNORECASE)
            assert "trialpod fsck s3://tune/digits" in words
        finally:
            bucket.stop()

    @staticmethod
    def shown(browser: Any, server: ServedPage, selector: str) -> str:
        """Return what the page says in a place, and stop its server."""
        context = new_context(browser)
        opened = Opened(context.new_page(), server.url)
        try:
            opened.page.goto(server.take_link())
            opened.page.wait_for_selector(selector)
            assert opened.problems == []
            return str(opened.page.locator("main").inner_text())
        finally:
            context.close()
            server.kill()


class TestDemo:
    def test_link_leads_to_best_trial_reason_and_parameter(
        self, browser: Any, demo: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        assert demo.wait(RUN_TIMEOUT_S) == 0
        folder = Path(os.fsdecode(demo.args[demo.args.index("--storage") + 1])) / "digits"  # type: ignore[index,union-attr]
        best = subprocess.run([*TRIALPOD, "best", str(folder)], capture_output=True, text=True, check=True).stdout
        page_server = ServedPage(folder)
        context = new_context(browser)
        try:
            page = context.new_page()
            page.goto(page_server.take_link())
            page.wait_for_selector(".bars li")
            assert "token" not in page.url
            # The best trial is the one of `trialpod best`.
            page.locator('section[aria-label="Best trial"] a').click()
            page.wait_for_selector(".trial-head")
            trial = page.url.rpartition("/")[2].partition("?")[0]
            assert trial in best
            # Why another one was stopped.
            page.go_back()
            page.locator('.chip[data-state="STOPPED"]').click()
            page.wait_for_selector(".grid-row[data-id]")
            row = page.locator(".grid-row[data-id]").first
            row.focus()
            page.keyboard.press("Enter")
            page.wait_for_selector(".decisions")
            assert re.search(r"asha|rung", page.locator(".decisions").inner_text(), re.IGNORECASE)
            # Which parameter mattered, and how sure that is.
            page.go_back()
            page.wait_for_selector(".bars li")
            words = page.locator(".bars").locator("xpath=ancestor::figure").inner_text()
            assert re.search(r"explains \d+ % of what differs between 24 trials", words)
            assert re.search(r"24 trials: .*comes first in \d+% of 20 resamples", words)
        finally:
            context.close()
            page_server.kill()
