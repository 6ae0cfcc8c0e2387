"""What the chart makes for Prometheus and Grafana, rendered by Helm where there is one.

Helm is $TRIALPOD_HELM, that of the test cluster (`make cluster` builds it), or the one on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod_operator.cluster.options import OperatorOptions

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "trialpod"
DASHBOARD = json.loads((CHART / "dashboards" / "trialpod.json").read_text())
RUNBOOK = (ROOT / "docs" / "monitoring.md").read_text()
EVERYTHING = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.prometheusRule.runbookUrl": "https://docs.example/monitoring.md",
    "metrics.dashboard.enabled": True,
}

Document = dict[str, Any]


def find_helm() -> str | None:
    built = sorted((ROOT / ".cache" / "bin").glob("helm-*"))
    return os.environ.get("TRIALPOD_HELM") or (str(built[-1]) if built else shutil.which("helm"))


def template(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    helm = find_helm()
    if helm is None:
        pytest.skip("there is no Helm here: set TRIALPOD_HELM, or run `make cluster` once")
    sets = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    words = [helm, "template", "tp", str(CHART), "--namespace", "tuning", "--kube-version", "1.34.4", *sets]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def render(values: dict[str, Any]) -> dict[tuple[str, str], Document]:
    result = template(values)
    assert result.returncode == 0, result.stderr
    documents = [each for each in yaml.safe_load_all(result.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    kinds = {kind for kind, _ in render({})}
    assert not kinds & {"ServiceMonitor", "PrometheusRule", "ConfigMap"}
    assert ("Service", "tp-trialpod-metrics") not in render({})


def test_the_service_monitor_finds_the_service_and_that_the_operators_metrics() -> None:
    documents = render(EVERYTHING | {"metrics.serviceMonitor.labels": {"release": "prometheus"}})
    monitor, service = documents["ServiceMonitor", "tp-trialpod"], documents["Service", "tp-trialpod-metrics"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert not wanted.items() <= documents["Service", "tp-trialpod-reports"]["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = service["spec"]["ports"]
    assert (endpoint["port"], endpoint["path"], endpoint["honorLabels"]) == (port["name"], "/metrics", True)
    pod = documents["Deployment", "tp-trialpod"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    options = OperatorOptions.from_environment({"TRIALPOD_OPERATOR_NAMESPACE": "tuning", "TRIALPOD_SERVICE": "x"})
    assert ports[port["targetPort"]] == port["port"] == options.probe_port


def test_the_service_can_be_had_alone() -> None:
    documents = render({"metrics.enabled": True, "metrics.annotations": {"prometheus.io/scrape": "true"}})
    assert documents["Service", "tp-trialpod-metrics"]["metadata"]["annotations"] == {"prometheus.io/scrape": "true"}
    assert not {kind for kind, _ in documents} & {"ServiceMonitor", "PrometheusRule", "ConfigMap"}


def rules(values: dict[str, Any]) -> list[Document]:
    (group,) = render(values)["PrometheusRule", "tp-trialpod"]["spec"]["groups"]
    found: list[Document] = group["rules"]
    return found


def test_every_alert_is_explained_where_its_link_goes() -> None:
    alerts = rules(EVERYTHING)
    assert {alert["alert"] for alert in alerts} == set(re.findall(r"^### (Trialpod\w+)$", RUNBOOK, re.MULTILINE))
    for alert in alerts:
        link = f"https://docs.example/monitoring.md#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == link
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
    without = rules({"metrics.prometheusRule.enabled": True})
    assert not any("runbook_url" in alert["annotations"] for alert in without)


def test_alerts_look_at_this_release_alone_and_their_brackets_close() -> None:
    for alert in rules(EVERYTHING):
        expression = alert["expr"]
        assert 'job="tp-trialpod-metrics"' in expression
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing)
        for text in alert["annotations"].values():
            assert text.count("{{") == text.count("}}")


def test_the_rules_label_what_grafana_and_prometheus_look_for() -> None:
    documents = render(EVERYTHING | {"metrics.prometheusRule.labels": {"role": "alert-rules"}})
    assert documents["PrometheusRule", "tp-trialpod"]["metadata"]["labels"]["role"] == "alert-rules"
    board = documents["ConfigMap", "tp-trialpod-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["trialpod.json"]) == DASHBOARD


def test_network_policies_let_prometheus_in_when_there_are_metrics() -> None:
    def ports(values: dict[str, Any]) -> list[tuple[str, Any]]:
        policy = render({"networkPolicy.enabled": True} | values)["NetworkPolicy", "tp-trialpod"]
        return [(rule["ports"][0]["port"], rule.get("from")) for rule in policy["spec"]["ingress"]]

    assert [port for port, _ in ports({})] == ["reports"]
    assert ports({"metrics.enabled": True})[1] == ("probes", None)
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert ports(EVERYTHING | {"metrics.from": peers})[1] == ("probes", peers)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"metrics.serviceMonitor.interval": "often"}, "interval"),
        ({"metrics.prometheusRule.runbookUrl": "docs#x"}, "runbookUrl"),
        ({"metrics.port": 1}, "port"),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], fault: str) -> None:
    result = template(values)
    assert result.returncode != 0
    assert fault in result.stderr


def test_the_panels_of_the_dashboard_have_places_of_their_own_and_known_variables() -> None:
    taken: set[tuple[int, int]] = set()
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            assert 'job=~"$job"' in target["expr"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
