"""The files in deployments/monitoring and docs/metrics.md name metrics, labels and values that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_cachewatch.metrics.catalogue import CATALOGUE, RUN_OUTCOMES, SUCCESSES, VERDICT_KINDS, label_values
from support import unavailable

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deployments" / "monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PAGE = (ROOT / "docs" / "metrics.md").read_text()
LABEL_VALUES = {label: label_values(label) or () for label in ("cause", "kind", "outcome", "reason")}
# Names of series to the labels that they have.
SERIES = {
    name: {"cache", "instance", "job", *spec.labels}
    for spec in CATALOGUE
    for name in (
        [f"{spec.name}_bucket", f"{spec.name}_sum", f"{spec.name}_count"] if spec.type == "histogram" else [spec.name]
    )
}


def expressions() -> dict[str, str]:
    """Every expression of the rules and the dashboard, by where it stands."""
    found = {f"rule {rule['alert']}": rule["expr"] for rule in RULES}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"variable {variable['name']}"] = variable["query"]["query"]
    return found


@pytest.mark.parametrize("where", expressions())
def test_every_expression_names_metrics_and_labels_that_there_are(where):
    expression = expressions()[where]
    used = set(re.findall(r"\bcachewatch_\w+", expression))
    assert used
    assert used <= set(SERIES), used - set(SERIES)
    for name, matchers in re.findall(r"\b(cachewatch_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in SERIES[name], f"{name} has no label {label}"
            if label in LABEL_VALUES:
                assert set(value.split("|")) <= set(LABEL_VALUES[label])
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        known = set.union(*(SERIES[name] for name in used)) | {"le"}
        assert {label.strip() for label in grouped.split(",")} <= known


def test_every_metric_is_on_the_dashboard_or_in_a_rule_or_about_a_run_alone():
    used = {name for text in expressions().values() for name in re.findall(r"\bcachewatch_\w+", text)}
    unused = {spec.name for spec in CATALOGUE if not used & {spec.name, f"{spec.name}_bucket"}}
    assert unused == {"cachewatch_attempt", "cachewatch_build_info", "cachewatch_present_allocated_bytes"}


def test_every_rule_says_what_happened_and_what_to_do():
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert re.fullmatch(r"Cachewatch[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert any(label in SERIES[name] for name in re.findall(r"\bcachewatch_\w+", rule["expr"]))


def test_every_kind_of_verdict_alarms_once_and_every_failed_run_counts():
    alarmed = [
        kind
        for rule in RULES
        for kinds in re.findall(r'cachewatch_last_verdict\{kind=~?"([^"]+)"', rule["expr"])
        for kind in kinds.split("|")
    ]
    assert sorted(alarmed) == sorted(VERDICT_KINDS)
    (rate,) = (rule["expr"] for rule in RULES if rule["alert"] == "CachewatchFailureRate")
    assert f'outcome!~"{"|".join(SUCCESSES)}|cancelled"' in rate
    assert {"completed", "cached"} == set(SUCCESSES) < set(RUN_OUTCOMES)


def test_the_dashboard_is_one_that_grafana_imports():
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("cachewatch", "Cachewatch")
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) >= 15
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} overlaps"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_the_page_describes_each_metric_with_its_type_and_labels_in_order():
    rows = re.findall(r"^\| `(cachewatch_\w+)` \| (\w+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert rows == [(spec.name, spec.type, ", ".join(f"`{label}`" for label in spec.labels)) for spec in CATALOGUE]


def test_the_page_names_every_rule_and_every_value_of_a_label():
    assert [rule["alert"] for rule in RULES] == re.findall(r"^\| `(Cachewatch\w+)` \|", PAGE, re.MULTILINE)
    for label in ("kind", "outcome", "reason"):
        for value in LABEL_VALUES[label]:
            assert f"`{value}`" in PAGE, value


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        unavailable("promtool is not installed: apt install --no-install-recommends prometheus")
    return subprocess.run([program, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml", "alerts_days_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments):
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_unit_test():
    tested = "".join(path.read_text() for path in FOLDER.glob("*_test.yml"))
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tested] == []
