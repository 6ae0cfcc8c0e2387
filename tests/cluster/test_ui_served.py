"""The page of a cluster, made by the chart: two users in a namespace each, with real tokens and real permissions."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_access import IMAGE, ROOT, Cluster
from experiments import Experiment, manifest
from operator_release import Operator
from testcluster import layout

RELEASE = "page"
PORT = 8080


@dataclass
class Page:
    """The page, as seen from a node of the cluster."""

    cluster: Cluster

    def answer(
        self, path: str, token: str = "", body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, body and headers of an answer."""
        host = f"{RELEASE}-trialpod-ui"
        address = self.cluster.kubectl_json("get", "service", host)["spec"]["clusterIP"]
        given = {"Host": f"{host}.{self.cluster.namespace}.svc:{PORT}", **(headers or {})}
        if token:
            given["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"http://{address}:{PORT}{path}", data=body, headers=given)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=20) as found:
                status, data, back = found.status, found.read(), dict(found.headers)
        except urllib.error.HTTPError as refused:
            status, data, back = refused.code, refused.read(), dict(refused.headers)
        try:
            return status, json.loads(data), back
        except ValueError:
            return status, data, back

    def start(self) -> None:
        """Wait until it runs, and its Service leads to it."""
        deployment = f"deployment/{RELEASE}-trialpod-ui"
        self.cluster.kubectl("rollout", "status", deployment, "--timeout=100s", timeout=110)
        self.cluster.wait_for(self._is_there, "the Service leads to the page")

    def _is_there(self) -> bool:
        try:
            return self.answer("/healthz")[0] == 200
        except OSError:
            return False

    def listed(self, token: str) -> list[str]:
        """Return the ids of the experiments that a user sees."""
        status, found, _ = self.answer("/api/experiments", token)
        assert status == 200, found
        return [each["id"] for each in found["experiments"]]

    def act(self, token: str, experiment: str, action: str) -> tuple[int, Any]:
        """Do an action as the page in a browser does it."""
        _, session, _ = self.answer("/api/session", token)
        headers = {"X-Trialpod-Token": session["token"], "Content-Type": "application/json"}
        path = f"/api/experiments/{experiment}/actions/{action}"
        return self.answer(path, token, body=b"{}", headers=headers)[:2]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def user_of(namespace: Cluster, name: str, role: str) -> str:
    """Make a ServiceAccount with a role in its namespace; return a token of it."""
    namespace.kubectl("create", "serviceaccount", name)
    account = f"--serviceaccount={namespace.namespace}:{name}"
    namespace.kubectl("create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}", account)
    return namespace.kubectl("create", "token", name).strip()


@pytest.fixture
def other(cluster: Cluster) -> Iterator[Cluster]:
    made = cluster.make_namespace()
    yield made
    cluster.delete_namespace(made.namespace)


@pytest.fixture
def page(operator: Operator, namespace: Cluster) -> Iterator[Page]:
    """The page with actions, in the namespace of the test; of the chart nothing else."""
    repository, _, tag = IMAGE.rpartition(":")
    rendered = namespace.helm(
        "template", RELEASE, str(ROOT / "charts/trialpod"), "-s", "templates/ui.yaml",
        *("--set", f"ui.enabled=true,ui.actions=true,image.repository={repository},image.tag={tag}"),
        *("--kube-version", layout.KUBERNETES_VERSION),
    )  # fmt: skip
    namespace.apply(rendered)
    made = Page(namespace)
    try:
        made.start()
        yield made
    finally:
        wide = f"{namespace.namespace}-{RELEASE}-trialpod-ui"
        namespace.kubectl("delete", "clusterrole,clusterrolebinding", wide, "--ignore-not-found")


def test_each_user_sees_and_does_what_permissions_allow(page: Page, namespace: Cluster, other: Cluster) -> None:
    mine = Experiment.apply(namespace, manifest(namespace, "mine", steps=3))
    theirs = Experiment.apply(other, manifest(other, "theirs", steps=4000))
    ann, ben = user_of(namespace, "ann", "view"), user_of(other, "ben", "view")
    carl = user_of(other, "carl", "edit")
    own, foreign = f"{namespace.namespace}.mine", f"{other.namespace}.theirs"
    mine.wait_until_over()

    # Without a token, and with one that is for something else.
    for_operator = namespace.kubectl("create", "token", "ann", "--audience=trialpod").strip()
    for token in ("", "nonsense", for_operator):
        assert page.answer("/api/experiments", token)[0] == 401
        assert page.answer(f"/api/experiments/{own}", token)[0] == 401
    status, _, headers = page.answer("/")
    assert (status, headers["location"]) == (303, "/login")

    # Each sees the own namespace, with data from the bucket, and not that there is another.
    assert page.listed(ann) == [own]
    assert page.listed(ben) == [foreign]
    status, header, _ = page.answer(f"/api/experiments/{own}", ann)
    assert (status, header["state"], header["trials"], header["best"]["iteration"]) == (200, "Succeeded", 1, 3)
    status, rows, _ = page.answer(f"/api/experiments/{own}/trials", ann)
    (row,) = rows["trials"]
    assert (row["state"], row["iteration"]) == ("TERMINATED", 3)
    for path in (foreign, f"{other.namespace}.nothing"):
        assert page.answer(f"/api/experiments/{path}", ann)[0] == 404
        assert page.answer(f"/api/experiments/{path}/trials", ann)[0] == 404

    # A session of a browser, and requests of other sites.
    form = urllib.parse.urlencode({"token": ann}).encode()
    status, _, headers = page.answer("/signin", body=form)
    assert status == 204
    cookie = headers["set-cookie"].partition(";")[0]
    assert page.answer(f"/api/experiments/{own}", headers={"Cookie": cookie})[0] == 200
    evil = {"Origin": "http://evil.example"}
    assert page.answer("/api/experiments", headers={"Cookie": cookie, **evil})[0] == 403
    assert page.answer("/api/experiments", ann, headers={"Host": "evil.example"})[0] == 421

    # Actions: view is not enough; edit is, and the API server sees who it was.
    status, refused = page.act(ben, foreign, "suspend")
    assert (status, refused["error"]["reason"]) == (403, "Forbidden")
    assert page.act(ann, foreign, "suspend")[0] == 404
    status, done = page.act(carl, foreign, "suspend")
    assert status == 200, done
    other.wait_for(lambda: theirs.object["spec"].get("suspend"), "the experiment is suspended")

    # The page may end at any moment, and keeps nothing.
    namespace.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=ui", "--wait=true", timeout=60)
    page.start()
    assert page.answer(f"/api/experiments/{own}", headers={"Cookie": cookie})[0] == 401
    assert page.listed(ann) == [own]
    log = namespace.kubectl("logs", f"deployment/{RELEASE}-trialpod-ui")
    assert ann not in log
