"""`trialpod ui NAME` with the cluster's own page: by a port-forward, with the token of the kubeconfig."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from api_server import ApiServer
from starlette.testclient import TestClient

from trialpod_operator.cluster import names
from trialpod_operator.cluster_ui.serve import SharedOptions, SharedPage
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.kubeconfig import find_access
from trialpod_operator.kube_client.ui_relay import PageRelay, PageUnavailableError
from trialpod_operator.ui.access import Sessions, allowed_hosts

ADDRESS = "http://page-ui.system.svc:8080"
PLACE = "/api/v1/namespaces/system"


@pytest.fixture
def system(server: ApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    """A cluster whose operator names a page, which runs behind its Service; jane has the kubeconfig's token."""
    facts = {"metadata": {"name": names.CA_CONFIG_MAP, "annotations": {names.UI_ANNOTATION: ADDRESS}}}
    server.put("configmaps", facts)
    server.routes["POST", "/apis/authentication.k8s.io/v1/tokenreviews"] = lambda body: {
        "status": {"authenticated": body["spec"]["token"] == "secret-token", "user": {"username": "jane"}}
    }
    server.routes["POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"] = {"status": {"allowed": False}}
    ports = [{"port": 8080, "targetPort": "http"}]
    server.routes["GET", f"{PLACE}/services/page-ui"] = {"spec": {"selector": {"app": "ui"}, "ports": ports}}
    pod = {
        "metadata": {"name": "ui-0"},
        "spec": {"containers": [{"name": "ui", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running"},
    }
    server.routes["GET", f"{PLACE}/pods"] = {"items": [pod]}
    options = SharedOptions.from_environment({"TRIALPOD_UI_HOSTS": "page-ui.system.svc"})
    page = SharedPage(find_access(), options, tmp_path / "work")
    started = threading.Event()
    running = _Running(uvicorn.Config(page.server.app(), port=0, log_config=None, lifespan="off"), started)
    thread = threading.Thread(target=running.run)
    thread.start()
    assert started.wait(60)
    server.forwards[f"{PLACE}/pods/ui-0/portforward", "8080"] = running.servers[0].sockets[0].getsockname()[1]
    yield server
    running.should_exit = True
    thread.join()
    page.close()


class _Running(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        self._told.set()


@pytest.fixture
def api(server: ApiServer) -> Iterator[Experiments]:
    with Experiments.connect("team") as api:
        yield api


class TestRelay:
    def test_shows_the_page_as_the_kubeconfigs_user(self, system: ApiServer, api: Experiments) -> None:
        relay = PageRelay.connect(api)
        sessions = Sessions()
        app, end_streams = relay.app_of(sessions, allowed_hosts(8000))
        with TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False) as client:
            assert client.get("/api/session").status_code == 401
            assert client.get(f"/?token={sessions.token}").status_code == 303
            assert client.get("/api/session").json()["user"] == "jane"
            assert client.get("/api/experiments/team.climb").status_code == 404
            page = client.get("/")
            assert "<title>trialpod</title>" in page.text
            assert page.headers.get_list("x-frame-options") == ["DENY"]
            assert client.get("/api/session", headers={"host": "evil.example"}).status_code == 421
            assert client.get("/api/session", headers={"origin": "http://evil.example"}).status_code == 403
        end_streams()

    def test_says_when_the_token_is_not_accepted(self, system: ApiServer, api: Experiments) -> None:
        system.routes["POST", "/apis/authentication.k8s.io/v1/tokenreviews"] = {"status": {"authenticated": False}}
        with pytest.raises(PageUnavailableError, match="answers 401"):
            PageRelay.connect(api)


class TestWithoutThePage:
    def test_an_operator_that_names_none_is_no_error(self, server: ApiServer, api: Experiments) -> None:
        with pytest.raises(PageUnavailableError) as caught:
            PageRelay.connect(api)
        assert str(caught.value) == ""

    def test_a_missing_right_is_said(self, server: ApiServer, api: Experiments) -> None:
        facts = {"metadata": {"name": names.CA_CONFIG_MAP, "annotations": {names.UI_ANNOTATION: ADDRESS}}}
        server.put("configmaps", facts)
        refusal = {"code": 403, "reason": "Forbidden", "message": "no"}
        server.routes["GET", f"{PLACE}/services/page-ui"] = refusal
        with pytest.raises(PageUnavailableError, match="may not get services in the namespace system"):
            PageRelay.connect(api)
