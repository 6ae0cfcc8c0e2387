"""What the chart makes for Prometheus and Grafana, rendered by Helm where there is one.

Helm is $TRIALPOD_HELM, that of the test cluster (`make cluster` builds it), or the one on PATH. Prometheus' own
promtool is $TRIALPOD_PROMTOOL, that of `tools/build_go promtool` (five minutes, once), or the one on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod_operator.cluster.options import OperatorOptions

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "trialpod"
DASHBOARDS = {
    f"trialpod-{name}.json": json.loads((CHART / "dashboards" / f"{name}.json").read_text())
    for name in ("operator", "fleet")
}
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


def test_service_monitor_selects_service_and_metrics() -> None:
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


def test_alerts_select_this_release_and_parse() -> None:
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
    boards = documents["ConfigMap", "tp-trialpod-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == DASHBOARDS


def test_how_long_trials_may_wait_is_a_value() -> None:
    alerts = {
        alert["alert"]: alert["expr"] for alert in rules(EVERYTHING | {"metrics.prometheusRule.pendingMinutes": 5})
    }
    assert alerts["TrialpodTrialsPending"].endswith(" > 300")


def test_network_policies_admit_prometheus_with_metrics() -> None:
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
        ({"metrics.prometheusRule.pendingMinutes": 0}, "pendingMinutes"),
        ({"metrics.port": 1}, "port"),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], fault: str) -> None:
    result = template(values)
    assert result.returncode != 0
    assert fault in result.stderr


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_dashboard_panels_do_not_overlap_and_use_variables(board: Document) -> None:
    taken: set[tuple[int, int]] = set()
    variables = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval", "__range"}
    for panel in board["panels"]:
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
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def find_promtool() -> str | None:
    where = [sys.executable, str(ROOT / "tools/build_go"), "--where", "promtool"]
    built = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    return os.environ.get("TRIALPOD_PROMTOOL") or (str(built) if built.exists() else shutil.which("promtool"))


def check_rules(groups: list[Document], folder: Path) -> None:
    """Have Prometheus' own tool read rules."""
    promtool = find_promtool()
    if promtool is None:
        pytest.skip("there is no promtool here: set TRIALPOD_PROMTOOL, or run tools/build_go promtool once")
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    words = [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout


def test_prometheus_takes_the_alerts(tmp_path: Path) -> None:
    check_rules(render(EVERYTHING)["PrometheusRule", "tp-trialpod"]["spec"]["groups"], tmp_path)


def test_alerts_fire_for_what_they_are_made_for_and_not_before(tmp_path: Path) -> None:
    check_rules(groups := render(EVERYTHING)["PrometheusRule", "tp-trialpod"]["spec"]["groups"], tmp_path)
    job = 'job="tp-trialpod-metrics"'
    ours = f'{job}, namespace="tuning"'
    series = {
        f"trialpod_active{{{ours}}}": "1x120",
        f'trialpod_experiments{{{ours}, condition="Stalled"}}': "0x30 1x90",
        f'trialpod_experiments{{{ours}, condition="StorageUnavailable"}}': "0x30 2x90",
        f'trialpod_pending_seconds{{{job}, namespace="team", experiment="digits"}}': "0+60x120",
        f'trialpod_shard_unserved_seconds{{{ours}, shard="3"}}': "0x30 60x90",
        f"trialpod_queue_depth{{{ours}}}": "3x30 60x90",
        f"trialpod_storage_errors_total{{{ours}}}": "0x30 0+2x90",
        f"trialpod_reconcile_errors_total{{{ours}}}": "0x30 0+2x90",
        f"trialpod_connections_refused_total{{{ours}}}": "0x30 0+2x90",
        f'trialpod_result_durable_seconds_bucket{{{ours}, le="5.0"}}': "0+10x30 310x90",
        f'trialpod_result_durable_seconds_bucket{{{ours}, le="30.0"}}': "0+10x120",
        f'trialpod_result_durable_seconds_bucket{{{ours}, le="+Inf"}}': "0+10x120",
    }
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    quiet = [{"eval_time": "25m", "alertname": name, "exp_alerts": []} for name in sorted(names)]
    fires = sorted(names - {"TrialpodOperatorDown"})
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": quiet,
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                        "eval_time": "100m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for name in fires
                ],
            },
            {
                "interval": "1m",
                "input_series": [{"series": f"trialpod_active{{{ours}}}", "values": "1x10 0x20"}],
                "promql_expr_test": [
                    {
                        "expr": 'count(ALERTS{alertname="TrialpodOperatorDown", alertstate="firing"})',
                        "eval_time": "20m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            },
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    words = [str(find_promtool()), "test", "rules", "test.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout


def test_prometheus_accepts_dashboard_and_doc_expressions(tmp_path: Path) -> None:
    concrete = {"__rate_interval": "5m", "__range": "6h", "job": "x", "namespace": ".*", "experiment": ".*"}
    expressions = [
        re.sub(r"\$(\w+)", lambda match: concrete.get(match[1], "namespace"), target["expr"])
        for board in DASHBOARDS.values()
        for panel in board["panels"]
        for target in panel["targets"]
    ]
    for block in re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL):
        expressions += [part for part in re.split(r"^#.*\n", block, flags=re.MULTILINE) if part.strip()]
    assert len(expressions) > 30
    rules = [{"record": f"check:number_{index}", "expr": each} for index, each in enumerate(expressions)]
    check_rules([{"name": "expressions", "rules": rules}], tmp_path)
