#!/usr/bin/env python3
"""What `cmake --install` installs of libfsdp, and what find_package(fsdp) says of it and of the LibTorch that it finds.

usage: package_test.py BUILD
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import PUBLIC_HEADERS, ROOT, Build, dynamic_entries, files_of, public_headers

sys.path.insert(0, str(ROOT / "tests/support"))
from unittest_main import main  # noqa: E402

# Without a language nothing is compiled to find out about a compiler.
PROJECT = "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES NONE)\n"
# What is in libfsdp, and nobody's business.
INTERNAL = re.compile(r"_ZNK?4fsdp(4plan|3shm)")
OWN = re.compile(r"_Z(T[VIST]|Th\w+_|Tv\w+_|GVZ?|Z)?NK?4fsdp|fsdp_")
FIRST_PLACE = "/opt/first-place"


class Prefix(unittest.TestCase):
    """Tests of one installed component, which was staged as for a package, and has been moved since: none of it may depend on
    the place for which it was installed."""

    build: Build
    component = ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name).resolve()
        stage = cls.scratch / "stage"
        cls.build.install(Path(FIRST_PLACE), cls.component, stage)
        cls.prefix = cls.scratch / "moved"
        shutil.move(f"{stage}{FIRST_PLACE}", cls.prefix)

    def configure(self, text, *options, folder=None, prefix=None):
        """(whether it worked, all that CMake said) of a project with this text, which finds libfsdp here. In `folder` what an
        earlier one has found is remembered."""
        source = Path(folder or tempfile.mkdtemp(dir=self.scratch))
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(PROJECT + text)
        # What this machine's shells name is no part of the test.
        env = {name: value for name, value in os.environ.items() if not re.match(r"(CMAKE|Torch|TORCH|fsdp)_", name)}
        command = ["cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix or self.where()}", *options]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        # CMake breaks lines where it likes.
        return done.returncode == 0, re.sub(r"\s+", " ", done.stdout)

    def where(self, libtorch=None):
        return f"{self.prefix};{libtorch or self.build.libtorch}"


class RuntimeTest(Prefix):
    component = "fsdp_runtime"

    def library(self):
        return (self.prefix / self.build.lib / "libfsdp.so").resolve()

    def libraries(self):
        """With the backend for GPUs, where it was built."""
        return [path for path in (self.library(), self.nccl_library()) if path.is_file()]

    def nccl_library(self):
        return self.prefix / self.build.lib / "libfsdp_nccl.so"

    def fake_libtorch(self, version, old_strings=False):
        """What looks like a LibTorch, and must not be asked to configure itself: a CUDA build ends the configuration where
        there is no CUDA toolkit."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        package = folder / "share/cmake/Torch"
        package.mkdir(parents=True)
        (package / "TorchConfig.cmake").write_text('message(FATAL_ERROR "LibTorch was asked to configure itself")\n')
        (package / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n')
        (folder / "lib").mkdir()
        (folder / "lib/libtorch_cpu.so").touch()
        string = "Ss" if old_strings else "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
        (folder / "lib/libc10.so").write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocationE" + string.encode() + b"\0")
        return folder

    def libtorch_version(self):
        text = (self.build.libtorch / "share/cmake/Torch/TorchConfigVersion.cmake").read_text()
        return re.search(r'PACKAGE_VERSION "([\d.]+)', text)[1]

    # --- what is installed ---

    def test_nothing_but_library_headers_and_package(self):
        full, minor, lib = self.build.version, ".".join(self.build.version.split(".")[:2]), self.build.lib
        wanted = {f"include/{name}" for name in public_headers()}
        wanted |= {f"{lib}/libfsdp.so", f"{lib}/libfsdp.so.{minor}", f"{lib}/libfsdp.so.{full}"}
        wanted |= {f"{lib}/cmake/fsdp/fsdp{name}.cmake" for name in ("Config", "ConfigVersion", "Targets", f"Targets-{self.build.configuration}")}
        wanted |= {"share/doc/fsdp/LICENSE"}
        found = {name for name in files_of(self.prefix) if not name.startswith("share/doc/fsdp/api/")}
        self.assertEqual(found - {f"{lib}/libfsdp_nccl.so"}, wanted)
        self.assertEqual(list((self.scratch / "stage").rglob("*")), [self.scratch / "stage/opt"], "more than the prefix was staged")

    def test_name_and_search_path_of_the_library(self):
        self.assertEqual(dynamic_entries(self.library(), "SONAME"), ["libfsdp.so." + ".".join(self.build.version.split(".")[:2])])
        for library in self.libraries():
            self.assertEqual(dynamic_entries(library, "RUNPATH", "RPATH"), ["$ORIGIN"], library)

    def test_every_symbol_of_the_libraries_is_found(self):
        """With the LibTorch that whoever loads them has loaded before."""
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.build.libtorch / "lib")}
        for library in self.libraries():
            done = subprocess.run(["ldd", "-r", library], capture_output=True, text=True, env=env)
            missing = [line for line in (done.stdout + done.stderr).splitlines() if re.search("not found|undefined symbol", line)]
            self.assertEqual(missing, [], library)
            self.assertIn("libtorch_cpu.so => ", done.stdout)

    def test_exports_are_its_own(self):
        text = subprocess.run(["nm", "-D", "--defined-only", self.library()], check=True, capture_output=True, text=True).stdout
        names = re.findall(r"^\w+ \w (\w+)", text, re.M)
        self.assertTrue([name for name in names if "init_process_group" in name], "it exports nothing that can be called")
        self.assertEqual([name for name in names if not OWN.match(name) or INTERNAL.match(name)], [])

    def test_no_folder_of_the_build_is_written_down(self):
        folders = [str(path) for path in (ROOT, self.build.folder, self.build.libtorch, self.build.cache["LibTorch_INCLUDE_DIR"], FIRST_PLACE)]
        for name in files_of(self.prefix):
            data = (self.prefix / name).read_bytes()
            self.assertEqual([folder for folder in folders if folder.encode() in data], [], name)

    # --- what a user gets ---

    def test_target_brings_headers_libtorch_and_the_standard_and_nothing_else(self):
        properties = ("INCLUDE_DIRECTORIES", "COMPILE_DEFINITIONS", "COMPILE_OPTIONS", "COMPILE_FEATURES", "LINK_LIBRARIES",
                      "LINK_OPTIONS", "LINK_DIRECTORIES", "PRECOMPILE_HEADERS", "SOURCES")
        text = "find_package(fsdp REQUIRED)\n"
        for name in properties:
            text += f"get_target_property(value fsdp::fsdp INTERFACE_{name})\nmessage(STATUS \"<{name}=${{value}}>\")\n"
        worked, said = self.configure(text)
        self.assertTrue(worked, said)
        found = {name: value for name, value in re.findall(r"<(\w+)=([^>]*)>", said) if value != "value-NOTFOUND"}
        self.assertEqual(found, {"INCLUDE_DIRECTORIES": f"{self.prefix}/include", "COMPILE_FEATURES": "cxx_std_20",
                                 "LINK_LIBRARIES": "fsdp::LibTorch"})

    def test_as_a_part_of_a_build_it_brings_no_more(self):
        """What add_subdirectory() gives: the program of the documentation links nothing else."""
        if self.build.cache["FSDPRUN_BUILD_CONTROL"] != "ON":
            self.skipTest("without the control plane the program of the documentation is not built")
        commands = [entry["command"].split() for entry in json.loads((self.build.folder / "compile_commands.json").read_text())
                    if "documented_program" in entry["file"]]
        self.assertEqual(len(commands), 1)
        words = commands[0]
        folders = [str(Path(word.removeprefix("-I")).resolve()) for before, word in zip(words, words[1:])
                   if word.startswith("-I") or before == "-isystem"]
        torch = f"{self.build.libtorch}/include"
        self.assertEqual(folders, [str(PUBLIC_HEADERS), torch, f"{torch}/torch/csrc/api/include"])
        self.assertEqual([word for word in words if word.startswith(("-W", "-include", "-fmacro", "-ffile", "-fdebug", "-fvisibility"))], [])
        self.assertEqual([word for word in words if word.startswith("-D")], ["-DUSE_C10D_GLOO", "-DUSE_DISTRIBUTED"])

    def test_versions_of_one_minor_are_compatible(self):
        major, minor, patch = map(int, self.build.version.split("."))
        for wanted, fits in ((f"{major}.{minor}", True), (f"{major}.{minor}.{patch}", True), (f"{major}.{minor}.{patch + 1}", False),
                             (f"{major}.{minor + 1}", False), (f"{major + 1}.0", False), ("99", False)):
            worked, said = self.configure(f"find_package(fsdp {wanted} REQUIRED)\n")
            self.assertEqual(worked, fits, said)

    # --- LibTorch ---

    def assert_refused(self, libtorch, *words):
        """With REQUIRED the reason is in the error, with QUIET in a variable and nothing is said."""
        worked, said = self.configure("find_package(fsdp REQUIRED)\n", prefix=self.where(libtorch))
        self.assertFalse(worked, said)
        for word in (f"LibTorch {self.libtorch_version()} (_GLIBCXX_USE_CXX11_ABI=1)", "CMAKE_PREFIX_PATH", *words):
            self.assertIn(word, said)
        text = 'find_package(fsdp QUIET)\nmessage(STATUS "<${fsdp_FOUND}|${fsdp_NOT_FOUND_MESSAGE}>")\n'
        worked, said = self.configure(text, prefix=self.where(libtorch))
        self.assertTrue(worked, said)
        self.assertRegex(said, r"^-- <0\|libfsdp [^>]*> -- Configuring done -- Generating done")

    def test_another_version_of_libtorch(self):
        fake = self.fake_libtorch("2.4.1")
        self.assert_refused(fake, f"{fake}, which was found, is LibTorch 2.4.1 (_GLIBCXX_USE_CXX11_ABI=1)", f"TORCH_DIR={fake}")

    def test_another_abi(self):
        fake = self.fake_libtorch(self.libtorch_version(), old_strings=True)
        self.assert_refused(fake, f"{fake}, which was found, is LibTorch {self.libtorch_version()} (_GLIBCXX_USE_CXX11_ABI=0)")

    def test_no_libtorch(self):
        self.assert_refused(self.scratch / "nothing", "none was found", "import torch; print(torch.__path__[0])")

    def test_a_libtorch_without_its_libraries(self):
        fake = self.fake_libtorch(self.libtorch_version())
        shutil.rmtree(fake / "lib")
        self.assert_refused(fake, f"{fake}, which was found, has no lib/libtorch_cpu.so")

    def test_after_a_refusal_another_one_is_looked_at(self):
        project = self.scratch / "again"
        text = "find_package(fsdp REQUIRED)\n"
        self.assertFalse(self.configure(text, folder=project, prefix=self.where(self.fake_libtorch("2.4.1")))[0])
        worked, said = self.configure(text, folder=project)
        self.assertTrue(worked, said)

    def test_ways_to_name_libtorch(self):
        """One that fits is not asked to configure itself either."""
        fake = self.fake_libtorch(self.libtorch_version())
        text = 'find_package(fsdp REQUIRED)\nget_target_property(value fsdp::LibTorch INTERFACE_LINK_LIBRARIES)\nmessage("<${value}>")\n'
        for option in (f"-DCMAKE_PREFIX_PATH={self.prefix};{fake}", f"-DTorch_ROOT={fake}", f"-DTorch_DIR={fake}/share/cmake/Torch",
                       f"-DCMAKE_PREFIX_PATH={self.prefix};{fake}/share/cmake"):
            worked, said = self.configure(text, option, prefix=self.prefix)
            self.assertTrue(worked, said)
            self.assertIn(f";{fake}/lib/libtorch_cpu.so;{fake}/lib/libc10.so>", said)

    def test_beside_the_package_of_libtorch(self):
        """A project that has found LibTorch itself gets the same one, and none of its variables is touched."""
        fake, text = self.fake_libtorch(self.libtorch_version()), ""
        (fake / "share/cmake/Torch/TorchConfig.cmake").write_text("add_library(torch INTERFACE IMPORTED)\n")
        for name in ("problem", "component", "root", "library", "wanted", "found", "abi"):
            text += f"set({name} mine)\n"
        text += f"set(Torch_DIR {fake}/share/cmake/Torch)\nfind_package(Torch REQUIRED)\nfind_package(fsdp REQUIRED OPTIONAL_COMPONENTS nccl other)\n"
        text += "get_target_property(value fsdp::LibTorch INTERFACE_LINK_LIBRARIES)\nlist(GET value -1 value)\n"
        text += "get_filename_component(value ${value} DIRECTORY)\n"
        text += 'message(STATUS "<${problem}|${component}|${root}|${library}|${wanted}|${found}|${abi}|${value}>")\n'
        worked, said = self.configure(text)
        self.assertTrue(worked, said)
        self.assertIn(f"<{'mine|' * 7}{fake}/lib>", said)

    # --- components ---

    def test_a_component_that_is_not_there(self):
        worked, said = self.configure("find_package(fsdp REQUIRED COMPONENTS checkpoint)\n")
        self.assertFalse(worked, said)
        self.assertIn("has no component checkpoint", said)
        text = 'find_package(fsdp QUIET OPTIONAL_COMPONENTS checkpoint)\nmessage(STATUS "<${fsdp_FOUND}|${fsdp_checkpoint_FOUND}>")\n'
        self.assertIn("<1|>", self.configure(text)[1])

    def stand_in_for_nccl(self, is_there):
        """Until the end of the test."""
        library, away = self.nccl_library(), self.scratch / "libfsdp_nccl.so"
        if library.exists() and not is_there:
            library.rename(away)
            self.addCleanup(away.rename, library)
        elif not library.exists() and is_there:
            library.touch()
            self.addCleanup(library.unlink)

    def test_nccl_is_a_component_with_a_target_that_is_not_linked(self):
        self.stand_in_for_nccl(is_there=True)
        fake = self.fake_libtorch(self.libtorch_version())
        (fake / "lib/libtorch_cuda.so").touch()
        text = ('find_package(fsdp REQUIRED COMPONENTS nccl)\nfind_package(fsdp REQUIRED COMPONENTS nccl)\n'
                'get_target_property(value fsdp::nccl TYPE)\nget_target_property(file fsdp::nccl LOCATION)\n'
                'message(STATUS "<${fsdp_nccl_FOUND}|${value}|${file}>")\n')
        worked, said = self.configure(text, prefix=self.where(fake))
        self.assertTrue(worked, said)
        self.assertIn(f"<TRUE|MODULE_LIBRARY|{self.nccl_library()}>", said)

    def test_nccl_needs_a_cuda_build_of_libtorch(self):
        self.stand_in_for_nccl(is_there=True)
        fake = self.fake_libtorch(self.libtorch_version())
        worked, said = self.configure("find_package(fsdp REQUIRED COMPONENTS nccl)\n", prefix=self.where(fake))
        self.assertFalse(worked, said)
        self.assertIn(f"{fake}/lib, which was found, has no libtorch_cuda.so", said)
        text = 'find_package(fsdp REQUIRED OPTIONAL_COMPONENTS nccl)\nmessage(STATUS "<${fsdp_nccl_FOUND}>")\n'
        self.assertIn("<>", self.configure(text, prefix=self.where(fake))[1])

    def test_nccl_that_was_not_built(self):
        self.stand_in_for_nccl(is_there=False)
        worked, said = self.configure("find_package(fsdp REQUIRED COMPONENTS nccl)\n")
        self.assertFalse(worked, said)
        self.assertIn("was built without its component nccl", said)


if __name__ == "__main__":
    Prefix.build = Build(Path(sys.argv.pop(1)).resolve())
    main()
