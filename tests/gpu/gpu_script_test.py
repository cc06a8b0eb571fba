#!/usr/bin/env python3
"""scripts/gpu as far as it goes without a GPU: what it packs is whole, what it runs is reported, and what fails costs nothing else."""

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/support", "scripts/lib", "tests/bench")]
import bench_gpu  # noqa: E402
import gpu_pack  # noqa: E402
import gpu_report  # noqa: E402
import gpu_results  # noqa: E402
import gpu_run  # noqa: E402
from unittest_main import main  # noqa: E402

BUILD = Path()
SCRIPT = ROOT / "scripts/gpu"


def gpu(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)


class CommandLine(unittest.TestCase):
    def test_help_says_what_there_is(self):
        done = gpu("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("run", "pack", "--dry-run", "--minutes", "--report", "Exit code"):
            self.assertIn(word, done.stdout)

    def test_wrong_command_lines(self):
        for arguments, said in (((), "run or pack expected"), (("nonsense",), "unknown argument 'nonsense'"), (("pack",), "a file to write"),
                                (("pack", "a.zip"), ".tar.xz"), (("run", "--minutes", "0"), "--minutes 0")):
            with self.subTest(arguments):
                done = gpu(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)

    def test_a_machine_without_a_gpu_is_told_so(self):
        said = io.StringIO()
        with (mock.patch.object(gpu_run, "DRIVER_FILES", ("/nowhere/nvidiactl",)), mock.patch.object(sys, "argv", ["run"]),
              contextlib.redirect_stderr(said)):
            self.assertEqual(gpu_run.main(), 3)
        self.assertIn("no NVIDIA GPU that can be used (/nowhere/nvidiactl is not there): nothing was built or run", said.getvalue())

    def test_what_would_be_run_is_all_that_there_is(self):
        declared = set(re.findall(r"gpu_test\((\w+)", (ROOT / "tests/gpu/CMakeLists.txt").read_text()))
        self.assertEqual(len(declared), 4)
        for arguments in (("--dry-run",), ("run", "--dry-run")):
            done = gpu(*arguments)
            self.assertEqual(done.returncode, 0)
            for name in (*declared, "parity", "benchmark", "configure, build"):
                self.assertIn(f"  {name} ", done.stdout)


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        file = Path(cls.folder.name) / "pack.tar.xz"
        cls.done = gpu("pack", str(file))
        cls.size = file.stat().st_size
        with tarfile.open(file) as archive:
            archive.extractall(cls.folder.name, filter="data")
        cls.tree = Path(cls.folder.name) / gpu_pack.NAME

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_it_is_small(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        self.assertLess(self.size, 10 << 20)

    def test_a_dry_run_names_what_is_packed(self):
        listed = set(gpu("pack", "--dry-run").stdout.splitlines()[:-1])
        packed = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*") if path.is_file()} - {"COMMIT"}
        self.assertEqual(listed, packed)

    def test_what_is_included_is_in_it(self):
        missing = set()
        for folder in ("fsdp_runtime", "formats", "proto", "worker", "tests"):
            for source in [*(self.tree / folder).rglob("*.cc"), *(self.tree / folder).rglob("*.h")]:
                for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
                    if not (self.tree / name).exists() and not (source.parent / name).exists():
                        missing.add(f"{source.relative_to(self.tree)}: {name}")
        used = {name for name in missing if not name.startswith("tests/unit/")}  # of which some headers are packed for nothing
        self.assertEqual(used, set())

    def test_it_is_configured_with_the_torch_of_python(self):
        done = subprocess.run(["cmake", "-S", self.tree, "-B", self.tree / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                               f"-DTORCH_DIR={gpu_run.torch_folder()}"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        listed = subprocess.run(["ninja", "-C", self.tree / "build", "-n", "gpu_tests"], capture_output=True, text=True, check=False)
        self.assertEqual(listed.returncode, 0, listed.stdout[-2000:])

    def test_it_does_not_pack_itself(self):
        done = subprocess.run([self.tree / "scripts/gpu", "pack", "--dry-run"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("this is a pack already", done.stderr)


class Run(unittest.TestCase):
    def record(self, *command: str, limit_s: float = 60, left_s: float = 60, **fields) -> dict:
        return gpu_run.run(gpu_run.Part("part", list(command), limit_s, "what", **fields), {}, left_s)

    def test_each_end_of_a_part_has_a_name(self):
        self.assertEqual(self.record("true")["status"], "passed")
        self.assertEqual(self.record("sh", "-c", "exit 77")["status"], "skipped")
        failed = self.record("sh", "-c", "echo why; exit 5")
        self.assertEqual((failed["status"], failed["output"]), ("failed (5)", "why\n"))
        late = self.record("sh", "-c", "echo begun; sleep 100 & wait", limit_s=3)
        self.assertEqual((late["status"], late["output"]), ("timed out (3 s)", "begun\n"))
        self.assertEqual(self.record("true", left_s=1)["status"], "not reached")
        self.assertEqual(self.record("true", needs=Path("/nowhere"))["status"], "not built")

    def test_the_report_has_the_first_errors_and_the_log_all_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "build.log"
            script = "echo 'a.cc:1: error: no such file'; i=0; while [ $i -lt 400 ]; do echo 'in file included from'; i=$((i + 1)); done; exit 1"
            failed = self.record("sh", "-c", script, log=log)
            self.assertIn("first errors:\na.cc:1: error: no such file\n", failed["output"])
            self.assertLess(len(failed["output"]), gpu_run.TAIL + 200)
            self.record("echo", "the end", log=log)
            self.assertIn("a.cc:1: error: no such file\nin file", log.read_text())
            self.assertTrue(log.read_text().endswith("the end\n"))
            with mock.patch.object(gpu_run, "LOG_LIMIT", 1000):
                self.record("echo", "really the end", log=log)
            self.assertLess(log.stat().st_size, 1100)
            self.assertTrue(log.read_text().startswith("--- part: sh -c") and log.read_text().endswith("really the end\n"))

    def test_versions_cost_no_more_than_what_is_left(self):
        self.assertEqual(gpu_report.Versions("print('{\"torch\": \"2\"}')").found(30), {"torch": "2"})
        begin = time.monotonic()
        self.assertIn("has not told its version", gpu_report.Versions("import signal\nsignal.pause()").found(1)["torch"])
        self.assertLess(time.monotonic() - begin, 20)

    def test_what_was_done_before_the_end_is_in_the_report(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            report = gpu_report.Report(Path(folder), "cpu", ROOT, time.monotonic())
            report.add(self.record("true"), "")
            report.add(self.record("sh", "-c", "echo why; exit 5"), "")
            self.assertFalse(report.has_passed())
            data = json.loads((Path(folder) / "report.json").read_text())
            self.assertEqual(([part["status"] for part in data["parts"]], data["is_complete"]), (["passed", "failed (5)"], False))
            self.assertIn("why", (Path(folder) / "report.md").read_text())

    def reported(self, folder: Path, command: str) -> tuple[dict, str, bool]:
        """The record, the report in words, and whether all has passed, of the part that the command is."""
        output = folder / "benchmark.json"
        with contextlib.redirect_stdout(io.StringIO()):
            report = gpu_report.Report(folder, "cpu", ROOT, time.monotonic())
            part = self.record("sh", "-c", command.replace("OUTPUT", str(output)), output=str(output)) | {"name": "benchmark"}
            report.add(part, str(output))
        return json.loads((folder / "report.json").read_text())["parts"][0], (folder / "report.md").read_text(), report.has_passed()

    def test_a_result_that_is_not_json_is_a_row_that_says_who_wrote_what(self):
        with tempfile.TemporaryDirectory() as folder:
            part, words, has_passed = self.reported(Path(folder), "echo '| side |'; printf '[{\"side\": \"fs' >OUTPUT")
            said = f"benchmark has written what is not JSON to {folder}/benchmark.json: Unterminated string"
            self.assertEqual((part["status"], has_passed, "results" in part), ("failed (result)", False, False))
            for text in (part["output"], words):
                self.assertIn(said, text)
                self.assertIn("""13 characters, that end with '[{"side": "fs'""", text)
            self.assertIn("\n| side |\n\nbenchmark has written", words)
            self.assertIn("\n| benchmark | failed (result) |", words)
            part, words, _ = self.reported(Path(folder), ": >OUTPUT; exit 9")
            self.assertEqual(part["status"], "failed (9)")
            self.assertIn("0 characters, none at all", words)
            part, _, has_passed = self.reported(Path(folder), "echo '[1]' >OUTPUT")
            self.assertEqual((part["status"], part["results"], has_passed), ("passed", [1], True))

    def test_a_training_whose_result_is_not_json_fails_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            program, output = Path(folder) / "trains", Path(folder) / "fsdp.json"
            for script, error, said in (("printf '{\"losses\": [' >$2", gpu_results.UnreadableResult, f"trains has written what is not JSON to {output}"),
                                        ("printf '{\"lo' >$2; echo why; exit 3", RuntimeError, 'exit code 3: {"lo why')):
                program.write_text(f"#!/bin/sh\n{script}\n")
                program.chmod(0o755)
                with self.assertRaisesRegex(error, re.escape(said)):
                    bench_gpu.run(bench_gpu.SIDES[0], {}, program, Path(folder), 60)

    def test_all_of_it_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            done = gpu("run", "--device", "cpu", "--programs", str(BUILD), "--minutes", "8", "--report", folder)
            report = json.loads((Path(folder) / "report.json").read_text())
            words = (Path(folder) / "report.md").read_text()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + words)
        self.assertTrue(report["is_complete"])
        parts = {part["name"]: part for part in report["parts"]}
        self.assertTrue(all(row["bits_equal"] for row in parts["parity"]["results"] if "clipping" not in row["row"]))
        self.assertEqual([side["side"] for side in parts["benchmark"]["results"]], [side.name for side in bench_gpu.SIDES])
        for side in parts["benchmark"]["results"]:
            self.assertGreater(side["tokens_per_second"]["median"], 0, side)
        self.assertEqual(sum("fsdp_mirrored_collectives_test" in name for name in parts), len(parts) - 2)
        self.assertIn("| libfsdp as at two ranks |", words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build
    sys.argv[1:] = rest
    main()
