#!/usr/bin/env python3
"""Tests of scripts/lib/select_tests.py, fuzz_targets.py and tidy_database.py on a small made-up project."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
from fuzz_targets import reached, sources_by_target  # noqa: E402
from select_tests import ALWAYS, SETTINGS, lists_that_name, opened, parse_graph, product_sources, readers, select, with_includers  # noqa: E402
from tidy_database import chosen_entries, not_compiled  # noqa: E402

GRAPH = """contract|proto|shared|0|
plan|fsdp_runtime/plan|shared|0|
base|base|control|1|
cli|launcher/cli|control|2|base
launch|launcher/run|control|5|cli,base
fsdprun|launcher|control|99|launch
shm|fsdp_runtime/shm|runtime|2|plan
fsdp|fsdp_runtime/src|runtime|3|shm
train|worker|runtime|99|fsdp,contract
"""
TESTS = """base_test|change|tests/unit/base|base|base_test
cli_test|change|tests/unit/launcher/cli|cli|cli_test
launcher_kills|change|tests/integration/launcher|fsdprun|launcher_kills
plan_test|change|tests/unit/fsdp_runtime/plan|plan|plan_test
shm_test|change|tests/unit/fsdp_runtime/shm|shm|shm_test
parity_2_ranks|change|tests/parity|fsdprun,train|parity_2_ranks
bench_worker|change|tests/bench|fsdprun,bench_worker|bench_worker
arch_words|change|tests/arch||arch_words
"""
# Tests of scripts, and what is in these.
SCRIPT_TESTS = """launcher_vitals|change|tests/integration/launcher|fsdprun|fsdprun
slurm_step|change|tests/slurm|fsdprun|fsdprun
slurm_templates|change|tests/slurm|fsdprun|fsdprun
slurm_templates_long|soak|tests/slurm|fsdprun|fsdprun
deploy_prometheus|change|tests/deploy||
"""
SCRIPTS = {"tests/integration/launcher/test_vitals.py": 'PAGE = parents[3] / "docs/VITALS.md"\nIN_IT = "docs/CONTROL.md"\n',
           "tests/slurm/template_case.py": 'TEMPLATES = ROOT / "deploy/slurm"\n', "tests/slurm/test_templates.py": "import template_case\n",
           "tests/slurm/test_step.py": '"""deploy/slurm"""\n', "tests/deploy/alerts_test.py": '(ROOT / "deploy/prometheus/alerts.yml").read_text()\n',
           "tests/docs/page_test.py": 'PAGE = ROOT / "docs/VITALS.md"\n'}


class SelectTest(unittest.TestCase):
    def selected(self, *paths: str, tests: str = TESTS) -> set[str] | str:
        return select(list(paths), parse_graph(GRAPH, tests), SCRIPTS)

    def test_a_library_reaches_what_depends_on_it(self):
        self.assertEqual(self.selected("launcher/cli/flags.cc"),
                         {"cli_test", "launcher_kills", "parity_2_ranks", "bench_worker", "arch_words"})

    def test_the_lowest_library_reaches_its_side(self):
        self.assertEqual(self.selected("base/log.h"),
                         {"base_test", "cli_test", "launcher_kills", "parity_2_ranks", "bench_worker", "arch_words"})

    def test_one_side_does_not_reach_the_unit_tests_of_the_other(self):
        self.assertEqual(self.selected("fsdp_runtime/shm/group.cc"), {"shm_test", "parity_2_ranks", "arch_words"})

    def test_public_headers_belong_to_the_library(self):
        self.assertEqual(self.selected("fsdp_runtime/include/fsdp/unit.h"), {"parity_2_ranks", "arch_words"})

    def test_the_plans_public_header_belongs_to_the_plan(self):
        self.assertEqual(self.selected("fsdp_runtime/include/fsdp/shard.h"), {"plan_test", "shm_test", "parity_2_ranks", "arch_words"})

    def test_two_of_one_name_are_refused(self):
        with self.assertRaisesRegex(ValueError, "called launch:"):
            parse_graph(GRAPH, TESTS + "launch|soak|tests/sim|launch|launch\n")

    def test_a_test_reaches_its_folder(self):
        self.assertEqual(self.selected("tests/unit/base/log_test.cc"), {"base_test", "arch_words"})

    def test_a_benchmarks_worker_is_compiled(self):
        self.assertEqual(self.selected("tests/bench/worker.cc"), {"bench_worker", "arch_words"})

    def test_texts_reach_only_what_looks_at_the_tree(self):
        self.assertEqual(self.selected("docs/STYLE.md", "README.md"), {"arch_words"})

    def test_texts_reach_the_tests_whose_scripts_open_them(self):
        for path, tests in (("docs/VITALS.md", {"launcher_vitals"}), ("docs/CONTROL.md", set()), ("deploy/prometheus/scrape.yml", set()),
                            ("deploy/slurm/requeue.sbatch", {"slurm_templates", "slurm_templates_long"}),
                            ("deploy/prometheus/alerts.yml", {"deploy_prometheus"})):
            self.assertEqual(self.selected(path, tests=TESTS + SCRIPT_TESTS), {"arch_words", *tests}, path)

    def test_the_scripts_that_open_texts_are_found(self):
        texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
        for path, script in (("docs/EVENTS.md", "tests/integration/launcher/test_event_log.py"), ("docs/SLURM.md", "tests/slurm/test_templates.py"),
                             ("docs/METRICS.md", "tests/deploy/prometheus_test.py"), ("deploy/slurm/one_node.sbatch", "tests/slurm/template_case.py"),
                             ("deploy/grafana/fsdprun.json", "tests/integration/launcher/test_metrics.py")):
            self.assertIn(script, readers(path, texts))
        gone = [f"{name}: {place}" for name, text in texts.items() if name != "tests/arch/select_tests_test.py"
                for place in opened(text) if not (ROOT / place).exists()]
        self.assertEqual(gone, [])
        # Spelled so, nobody would find them.
        apart = [name for name, text in texts.items() if re.search(r'/ "(docs|deploy)"', text) and not name.startswith(ALWAYS)]
        self.assertEqual(apart, [])

    def test_the_linters_look_at_what_a_change_reaches(self):
        texts = {"proto/low.proto": "", "proto/high.proto": 'import "low.proto";\n',
                 "agent/codec.cc": '#include "high.pb.h"\n', "agent/link.cc": '#include "low.grpc.pb.h"\n',
                 "base/loop.h": "", "base/loop.cc": '#include "base/loop.h"\n', "tests/loop_test.cc": '#include "base/loop.h"\n'}
        self.assertEqual(product_sources(["base/loop.h", "docs/STYLE.md"], texts), ["base/loop.h", "base/loop.cc"])
        self.assertEqual(sorted(product_sources(["proto/low.proto"], texts)), ["agent/codec.cc", "agent/link.cc"])
        self.assertEqual(product_sources(["proto/high.proto"], texts), ["agent/codec.cc"])
        self.assertEqual(product_sources(["docs/STYLE.md"], texts), [])

    def test_the_linters_look_at_everything_if_the_compilers_options_changed(self):
        texts = {"base/loop.cc": ""}
        for path in (".clang-tidy", "CMakeLists.txt", "CMakePresets.json", "cmake/FsdprunTargets.cmake", "cmake/FsdprunToolchain.cmake"):
            self.assertIsNone(product_sources(["base/loop.cc", path], texts), path)
        for path in ("cmake/FindYamlCpp.cmake", "cmake/FsdprunTests.cmake", "cmake/FsdprunInstall.cmake", "base/CMakeLists.txt"):
            self.assertEqual(product_sources(["base/loop.cc", path], texts), ["base/loop.cc"], path)

    def test_the_linters_settings_are_files(self):
        self.assertEqual([path for path in SETTINGS if not (ROOT / path).is_file()], [])

    def test_includers_are_followed_across_folders(self):
        texts = {"tests/unit/agent/a_test.cc": '#include "tests/unit/base/waiter.h"\n',
                 "tests/unit/base/waiter.h": '#include "base/loop.h"\n',
                 "tests/integration/train/train_case.py": "from job_case import JobCase\n",
                 "tests/integration/train/test_stop.py": "import train_case\n",
                 "worker/main.cc": "#include <fsdp/unit.h>\n", "worker/other.cc": "// base/loop.h\n"}
        self.assertEqual(set(with_includers(["base/loop.h"], texts)),
                         {"base/loop.h", "tests/unit/base/waiter.h", "tests/unit/agent/a_test.cc"})
        self.assertEqual(set(with_includers(["tests/integration/launcher/job_case.py"], texts)),
                         {"tests/integration/launcher/job_case.py", "tests/integration/train/train_case.py",
                          "tests/integration/train/test_stop.py"})
        self.assertIn("worker/main.cc", with_includers(["fsdp_runtime/include/fsdp/unit.h"], texts))

    def test_a_list_of_sources_reaches_what_is_declared_in_its_folder_and_below(self):
        self.assertEqual(self.selected("launcher/cli/CMakeLists.txt"), self.selected("launcher/cli/flags.cc"))
        self.assertEqual(self.selected("fsdp_runtime/CMakeLists.txt"), self.selected("fsdp_runtime/plan/box.h"))
        self.assertEqual(self.selected("tests/unit/CMakeLists.txt"), {"base_test", "cli_test", "plan_test", "shm_test", "arch_words"})

    def test_what_lists_of_other_folders_name_is_followed(self):
        lists = {"tests/unit/a/CMakeLists.txt": "fsdprun_test(NAME a SRCS a_test.cc fault.cc)",
                 "tests/unit/b/CMakeLists.txt": "fsdprun_test(NAME b SRCS b_test.cc\n  ${PROJECT_SOURCE_DIR}/tests/unit/a/fault.cc DEPS x)",
                 "tests/unit/c/CMakeLists.txt": 'ENVIRONMENT "SCRIPT=${CMAKE_CURRENT_SOURCE_DIR}/../a/oracle.py")',
                 "tests/unit/d/CMakeLists.txt": "fsdprun_test(NAME d SRCS default.cc my_fault.cc)"}
        self.assertEqual(lists_that_name("tests/unit/a/fault.cc", lists), ["tests/unit/b/CMakeLists.txt"])
        self.assertEqual(lists_that_name("tests/unit/a/oracle.py", lists), ["tests/unit/c/CMakeLists.txt"])

    def test_examples_reach_the_tests_that_take_them(self):
        self.assertEqual(self.selected("examples/training/pretrain.json"), {"parity_2_ranks", "arch_words"})

    def test_what_is_not_known_reaches_everything(self):
        for path in ("CMakeLists.txt", "scripts/test", "cmake/FsdprunTests.cmake", "deploy.cmake",
                     "proto/fsdprun/v1/types.proto", "tests/support/free_port.py", "unheard/of.cc"):
            self.assertEqual(self.selected("docs/STYLE.md", path), path)


FUZZ_TARGETS = """
add_library(support STATIC fuzz_support.cc ${ROOT}/base/check.cc)
add_library(strict_json STATIC ${ROOT}/formats/json/strict_json.cc)
set(archive ${ROOT}/fsdp_runtime/archive)
add_library(pickles STATIC ${archive}/pickle.cc)
fsdprun_fuzz_target(zip
  SRCS formats/zip.cc
  LINK pickles libdeflate::libdeflate)
file(GLOB sections RELATIVE ${ROOT} CONFIGURE_DEPENDS ${ROOT}/worker/sections/*.cc)
fsdprun_fuzz_target(config
  SRCS worker/config.cc
       ${sections}
  LINK strict_json)
if(x86)
  target_sources(config PRIVATE ${ROOT}/formats/fast.cc)
endif()
fsdprun_fuzz_target(codec SRCS agent/codec.cc LINK messages)
"""


class FuzzTargetsTest(unittest.TestCase):
    TEXTS = {"worker/sections/data.cc": '#include "worker/sections/data.h"\n', "worker/sections/data.h": "", "base/check.cc": '#include "base/check.h"\n',
             "base/check.h": "", "proto/fsdprun/v1/types.proto": ""}

    def targets(self, *paths: str) -> list[str] | None:
        return reached(list(paths), self.TEXTS, sources_by_target(FUZZ_TARGETS))

    def test_a_target_has_its_own_files_and_sources_and_those_of_what_it_links(self):
        for path in ("formats/zip.cc", "fsdp_runtime/archive/pickle.cc", "tests/fuzz/zip_fuzz.cc", "tests/fuzz/corpus/zip/found_one"):
            self.assertEqual(self.targets(path), ["zip"], path)
        for path in ("worker/config.cc", "worker/sections/data.h", "formats/json/strict_json.cc", "formats/fast.cc"):
            self.assertEqual(self.targets(path), ["config"], path)
        self.assertEqual(self.targets("proto/fsdprun/v1/types.proto"), ["codec"])

    def test_what_all_have_reaches_all_and_the_rest_none(self):
        for path in ("base/check.h", "tests/fuzz/CMakeLists.txt", "scripts/fuzz", "cmake/FindZstd.cmake"):
            self.assertIsNone(self.targets(path), path)
        self.assertEqual(self.targets("docs/STYLE.md", "worker/other.cc"), [])

    def test_all_sources_that_it_finds_are_there(self):
        targets = sources_by_target((ROOT / "tests/fuzz/CMakeLists.txt").read_text())
        self.assertEqual({f"{name}_fuzz.cc" for name in targets}, {path.name for path in (ROOT / "tests/fuzz").glob("*_fuzz.cc")})
        self.assertEqual([path for sources in targets.values() for path in sources if not (ROOT / path).exists()], [])


class TidyDatabaseTest(unittest.TestCase):
    """Batches of a unity build: of LibTorch-free sources, of others too, and of others alone."""

    BATCHES = {"free": ("base/a.cc", "base/b.cc"), "mixed": ("worker/free.cc", "worker/torch.cc"), "torch": ("worker/torch_too.cc",)}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.entries = []
        for batch, names in self.BATCHES.items():
            for name in names:
                (self.root / name).parent.mkdir(exist_ok=True)
                (self.root / name).write_text("#include <torch/types.h>\n" if "torch" in name else "")
            file = self.root / f"{batch}.cxx"
            file.write_text("".join(f'#include "{self.root / name}"\n' for name in names))
            self.entries.append({"directory": "/", "file": str(file), "command": f"/usr/bin/c++ -o x -c {file}"})

    def chosen(self, *names: str, alone: bool = False) -> list[str]:
        only = {self.root / name for name in names} or None
        found = chosen_entries(self.entries, self.root, only, alone)
        self.assertTrue(all(entry["command"].endswith(f"-c {entry['file']}") for entry in found), found)
        return [str(Path(entry["file"]).relative_to(self.root)) for entry in found]

    def test_of_a_batch_with_libtorch_the_rest_is_looked_at_alone(self):
        self.assertEqual(self.chosen(), ["free.cxx", "worker/free.cc"])

    def test_batches_of_files(self):
        self.assertEqual(self.chosen("base/b.cc"), ["free.cxx"])
        self.assertEqual(self.chosen("worker/free.cc", "worker/torch.cc"), ["worker/free.cc"])
        self.assertEqual(self.chosen("worker/torch.cc", "base/none.cc"), [])
        self.assertEqual(chosen_entries(self.entries, self.root, set(), False), [])

    def test_files_alone(self):
        self.assertEqual(self.chosen("base/b.cc", "worker/free.cc", "worker/torch.cc", alone=True), ["base/b.cc", "worker/free.cc"])

    def test_what_is_not_compiled_is_named(self):
        new = {"base/new.cc": "", "worker/new.cc": "#include <torch/types.h>\n", "tests/new.cc": ""}
        (self.root / "tests").mkdir()
        for name, text in new.items():
            (self.root / name).write_text(text)
        self.assertEqual(not_compiled(self.entries, self.root, {self.root / name for name in ("base/a.cc", *new)}), ["base/new.cc"])


class RecordTest(unittest.TestCase):
    """What scripts write down of a run with --record, scripts/lib/common.bash."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.run_bash("git init -q . && git config user.name x && git config user.email x@x && git config status.showUntrackedFiles no && " + self.COMMIT)

    COMMIT = "git commit -q --allow-empty -m x"

    def run_bash(self, text: str) -> tuple[int, str]:
        done = subprocess.run(["bash", "-c", f'source "{ROOT}/scripts/lib/common.bash"; cd "{self.root}"; {text}'], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def record_after(self, what: str) -> tuple[int, str, str]:
        """Exit code, what was said, and the record, if `what` is done during the run."""
        code, said = self.run_bash(f"commit=$(commit_to_record); {what}; write_record record $commit")
        return code, said, (self.root / "record").read_text() if (self.root / "record").exists() else ""

    def test_the_commit_is_that_of_the_beginning(self):
        head = self.run_bash("git rev-parse HEAD")[1]
        self.assertEqual(self.record_after("true")[::2], (0, head))

    def test_nothing_is_recorded_of_sources_that_changed(self):
        for what, why in ((self.COMMIT, "HEAD is"), ("touch new.cc", "new.cc")):
            code, said, record = self.record_after(what)
            self.assertEqual((code, record), (1, ""), what)
            self.assertIn("nothing is recorded", said)
            self.assertIn(why, said)

    def test_what_is_in_no_commit_is_refused_and_named(self):
        (self.root / "new.cc").touch()
        code, said, record = self.record_after("rm new.cc")
        self.assertEqual((code, record), (1, ""))
        self.assertIn("commit them first\n?? new.cc", said)

    def test_fuzzing_too_little_is_no_record(self):
        for words, complaint in ((["--record", "--seconds", "0"], "5 seconds or more"), (["--record", "--minutes", "1"], "5 seconds or more"),
                                 (["--record", "--changed"], "exclude each other"), (["--changed", "--record"], "exclude each other")):
            done = subprocess.run([ROOT / "scripts/fuzz", *words], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(complaint, done.stderr)


if __name__ == "__main__":
    unittest.main()
