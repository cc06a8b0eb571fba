#!/usr/bin/env python3
"""ctest adds to the tests that are chosen those that set up their fixtures. scripts/test --since builds what the chosen ones need:
each must name what its fixtures' tests need, too.

usage: fixtures_test.py CTEST BUILD
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts/lib"), str(ROOT / "tests/support")]
from select_tests import read_build  # noqa: E402
from unittest_main import main  # noqa: E402


def fixtures_of(shown: dict, kind: str) -> dict[str, list[str]]:
    """What `ctest --show-only=json-v1` says: of each test the fixtures that it sets up, or requires."""
    return {test["name"]: [name for entry in test.get("properties", []) if entry["name"] == kind for name in entry["value"]]
            for test in shown["tests"]}


def unbuilt(shown: dict, targets: dict[str, set[str]]) -> list[str]:
    """Targets of tests that are added with a test which does not name them. `targets`: by test."""
    setup, required = fixtures_of(shown, "FIXTURES_SETUP"), fixtures_of(shown, "FIXTURES_REQUIRED")
    return [f"{test} requires {fixture}, for which {adder} needs {sorted(missing)}: name them among its PROGRAMS, too"
            for test, fixtures in required.items() for fixture in fixtures
            for adder, made in setup.items() if fixture in made and (missing := targets[adder] - targets[test])]


class FixturesTest(unittest.TestCase):
    ctest: str
    build: Path

    def test_what_fixtures_need_is_built(self):
        shown = subprocess.run([self.ctest, "--test-dir", self.build, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
        targets = {node.name: set(node.targets) for node in read_build(self.build)}
        shown = {"tests": [test for test in json.loads(shown)["tests"] if test["name"] in targets]}
        self.assertTrue(any(fixtures_of(shown, "FIXTURES_REQUIRED").values()) or "parity_examples" not in targets, "no fixture is seen")
        self.assertEqual(unbuilt(shown, targets), [])

    def test_what_is_missing_is_named(self):
        shown = {"tests": [{"name": "built", "properties": [{"name": "FIXTURES_SETUP", "value": ["files"]}]},
                           {"name": "user", "properties": [{"name": "FIXTURES_REQUIRED", "value": ["other", "files"]}]},
                           {"name": "bystander"}]}
        targets = {"built": {"library", "tool"}, "user": {"tool", "own"}, "bystander": set()}
        self.assertEqual(len(unbuilt(shown, targets)), 1)
        self.assertIn("user requires files, for which built needs ['library']", unbuilt(shown, targets)[0])
        targets["user"].add("library")
        self.assertEqual(unbuilt(shown, targets), [])


if __name__ == "__main__":
    FixturesTest.ctest, FixturesTest.build = sys.argv.pop(1), Path(sys.argv.pop(1)).resolve()
    main()
