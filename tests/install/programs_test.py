#!/usr/bin/env python3
"""What `cmake --install` installs of the programs, and that they run from there.

usage: programs_test.py BUILD
"""

import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import ROOT, Build, dynamic_entries, files_of

sys.path.insert(0, str(ROOT / "tests/support"))
from unittest_main import main  # noqa: E402

PROGRAMS = ("fsdprun", "fsdpctl", "fsdp-agent", "fsdp-keeper", "fsdp-stacks", "fsdp-train")


def small_model() -> bytes:
    """A model of SentencePiece's BPE, in Protobuf's wire format: <unk>, <s>, </s>, and the pieces below from id 3 on."""
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    normal, unknown, control = 1, 2, 3
    pieces = [("<unk>", unknown), ("<s>", control), ("</s>", control), *((text, normal) for text in ("▁", "a", "b", "▁a", "ab"))]
    listed = b"".join(field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -rank) + bytes([3 << 3, kind]))
                      for rank, (text, kind) in enumerate(pieces))
    return listed + field(2, bytes([3 << 3, 2])) + field(3, field(1, b"identity") + bytes([3 << 3, 1]))


class ProgramsTest(unittest.TestCase):
    build: Build

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name).resolve()
        cls.build.install(cls.scratch / "first", "fsdprun")
        cls.prefix = cls.scratch / "moved"
        shutil.move(cls.scratch / "first", cls.prefix)

    def run_program(self, name, *words):
        done = subprocess.run([self.prefix / "bin" / name, *words], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_programs_texts_and_what_fsdp_train_loads(self):
        names = files_of(self.prefix)
        version, lib = self.build.version, self.build.lib
        minor = ".".join(version.split(".")[:2])
        self.assertEqual({name for name in names if name.startswith("bin/")}, {f"bin/{name}" for name in PROGRAMS})
        self.assertEqual({name for name in names if name.startswith(f"{lib}/")} - {f"{lib}/libfsdp_nccl.so"},
                         {f"{lib}/libfsdp.so.{minor}", f"{lib}/libfsdp.so.{version}", f"{lib}/libfsdprun_sentencepiece.so"})
        self.assertEqual([name for name in names if not name.startswith(("bin/", f"{lib}/", "share/"))], [])
        self.assertIn("share/doc/fsdprun/LICENSE", names)
        self.assertEqual([name for name in names if name.startswith("share/doc/fsdp/")], [], "the reference of libfsdp is not theirs")

    def test_every_command_of_fsdpctl_has_a_man_page(self):
        commands = re.findall(r"^  fsdpctl ((?:[a-z]+ ?)+)", self.run_program("fsdpctl", "--help"), re.M)
        # What a batch file calls has none.
        wanted = {"fsdpctl-" + command.strip().replace(" ", "-") for command in commands} - {"fsdpctl-slurm-join"}
        wanted |= {"fsdprun", "fsdprun-chaos", "fsdp-agent"}
        self.assertGreater(len(wanted), 10)
        pages = {path.name: path.read_text() for path in (self.prefix / "share/man/man1").iterdir()}
        self.assertEqual(set(pages), {f"{name}.1" for name in wanted})
        self.assertEqual([name for name, text in pages.items() if not text.startswith(".TH ")], [])

    def test_completions_are_those_of_the_programs(self):
        for program in ("fsdprun", "fsdpctl", "fsdp-agent"):
            for shell, name in (("bash", f"bash-completion/completions/{program}"), ("zsh", f"zsh/site-functions/_{program}"),
                                ("fish", f"fish/vendor_completions.d/{program}.fish")):
                text = (self.prefix / "share" / name).read_text()
                self.assertIn(program, text)
                self.assertEqual(text, self.run_program(program, "--completion", shell))

    def test_a_job_runs_from_there(self):
        """fsdprun finds its keeper beside it, and the workers are started."""
        output = self.run_program("fsdprun", "--standalone", "--nproc-per-node", "2", "--no-python", "bash", "-c", "echo rank $RANK")
        self.assertEqual(sorted(re.findall(r"rank \d", output)), ["rank 0", "rank 1"])

    def test_fsdp_train_looks_beside_itself_and_where_libtorch_was(self):
        self.assertEqual(dynamic_entries(self.prefix / "bin/fsdp-train", "RUNPATH", "RPATH"), [f"$ORIGIN/../{self.build.lib}:{self.build.libtorch}/lib"])

    def test_nothing_else_names_a_folder_of_the_build(self):
        libtorch = f"$ORIGIN/../{self.build.lib}:{self.build.libtorch}/lib".encode()
        for name in files_of(self.prefix):
            data = (self.prefix / name).read_bytes().replace(libtorch, b"")
            for folder in (ROOT, self.build.folder, self.build.libtorch):
                self.assertNotIn(str(folder).encode(), data, name)

    def test_fsdp_train_loads_the_library_that_was_installed_with_it(self):
        self.assertIn(self.build.version, self.run_program("fsdp-train", "--version"))
        loaded = subprocess.run(["ldd", self.prefix / "bin/fsdp-train"], check=True, text=True, capture_output=True).stdout
        self.assertIn(f"=> {self.prefix}/bin/../{self.build.lib}/libfsdp.so.", loaded)
        self.assertNotIn("not found", loaded)

    def test_fsdp_train_finds_the_library_of_sentencepiece(self):
        """It is loaded by name, when a model is opened."""
        (self.scratch / "small.model").write_bytes(small_model())
        (self.scratch / "text.txt").write_text("a ab")
        out = self.run_program("fsdp-train", "tokenize", "--tokenizer", self.scratch / "small.model", "--format", "raw",
                               "--no-append-document-end", "--output", self.scratch / "ids", self.scratch / "text.txt")
        self.assertIn("wrote 3 tokens of 1 documents", out)
        self.assertEqual((self.scratch / "ids.bin").read_bytes(), struct.pack("<3H", 6, 6, 5))

    def test_without_a_component_all_is_installed(self):
        everything, runtime = self.scratch / "all", self.scratch / "runtime"
        self.build.install(everything)
        self.build.install(runtime, "fsdp_runtime")
        self.assertEqual(files_of(everything), files_of(self.prefix) | files_of(runtime))

    def test_without_the_runtime_there_is_no_package_to_find(self):
        (self.scratch / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES NONE)\nfind_package(fsdp REQUIRED)\n")
        done = subprocess.run(["cmake", "-S", self.scratch, "-B", self.scratch / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}"],
                              text=True, capture_output=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("fsdpConfig.cmake", done.stderr)


if __name__ == "__main__":
    ProgramsTest.build = Build(Path(sys.argv.pop(1)).resolve())
    main()
