#!/usr/bin/env python3
"""The files in deploy/prometheus and deploy/grafana are what Prometheus and Grafana take, and the alerts fire when they should.
That their metrics exist is checked where there are some: launcher_metrics."""

import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from promtool import REASON_TO_SKIP, promtool  # noqa: E402
from unittest_main import main  # noqa: E402

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/fsdprun.json"


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class PrometheusTest(unittest.TestCase):
    def assert_taken(self, *words):
        code, said = promtool(*words)
        self.assertEqual(code, 0, said)

    def test_rules_are_taken(self):
        self.assert_taken("check", "rules", ALERTS)

    def test_the_example_is_taken(self):
        self.assert_taken("check", "config", ROOT / "deploy/prometheus/scrape.yml")

    def test_alerts_fire_when_they_should(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as cases:
            cases.write((ROOT / "tests/deploy/alerts_test.yml").read_text().replace("[ALERTS]", f"[{ALERTS}]"))
            cases.flush()
            self.assert_taken("test", "rules", cases.name)

    def test_each_alert_is_tried_and_says_what_to_do(self):
        text, cases = ALERTS.read_text(), (ROOT / "tests/deploy/alerts_test.yml").read_text()
        alerts = re.split(r"- alert: ", text)[1:]
        self.assertGreaterEqual(len(alerts), 10)
        for alert in alerts:
            name = alert.splitlines()[0]
            self.assertIn(name, cases)
            for word in ("summary: ", "action: ", "severity: "):
                self.assertIn(word, alert, name)
            self.assertIn(f"`{name}`", (ROOT / "docs/METRICS.md").read_text())


class DashboardTest(unittest.TestCase):
    def test_panels_do_not_overlap_and_ask_the_chosen_source(self):
        dashboard = json.loads(DASHBOARD.read_text())
        self.assertEqual([variable["name"] for variable in dashboard["templating"]["list"]], ["datasource", "job"])
        taken, ids = {}, set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
                self.assertNotIn(cell, taken, f"{panel['title']} and {taken.get(cell)}")
                self.assertLess(cell[0], 24, panel["title"])
                taken[cell] = panel["title"]
            self.assertNotIn(panel["id"], ids)
            ids.add(panel["id"])
            for target in panel.get("targets", []):
                self.assertEqual(target["datasource"]["uid"], "${datasource}", panel["title"])
                self.assertIn('run_id="$job"', target["expr"], panel["title"])


if __name__ == "__main__":
    main()
