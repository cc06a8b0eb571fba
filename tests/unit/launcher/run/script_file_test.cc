#include "launcher/run/script_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/run/machine.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

constexpr char kElf[] =
    "\x7f"
    "ELF\x02\x01\x01";

TEST(ScriptFileTest, AnElfFileIsKnownByItsFirstFourBytes) {
  EXPECT_TRUE(ReadBeginning(kElf).is_elf);
  EXPECT_TRUE(ReadBeginning("\x7f"
                            "ELF")
                  .is_elf);
  EXPECT_FALSE(ReadBeginning("\x7f"
                             "EL")
                   .is_elf);
  EXPECT_FALSE(ReadBeginning("ELF").is_elf);
  EXPECT_FALSE(ReadBeginning("").is_elf);
  EXPECT_FALSE(ReadBeginning("PK\x03\x04").is_elf);  // an archive that Python runs
}

TEST(ScriptFileTest, AShellScriptIsKnownByItsFirstLine) {
  EXPECT_EQ(ReadBeginning("#!/bin/bash\nset -e\n").shell_line, "#!/bin/bash");
  EXPECT_EQ(ReadBeginning("#! /bin/sh -eu\r\nset\n").shell_line, "#! /bin/sh -eu");
  EXPECT_EQ(ReadBeginning("#!/usr/bin/env zsh\n").shell_line, "#!/usr/bin/env zsh");
  EXPECT_EQ(ReadBeginning("#!/bin/dash").shell_line, "#!/bin/dash");
}

TEST(ScriptFileTest, WhatPythonMayBeAbleToReadIsNoShellScript) {
  for (const char* text : {"#!/usr/bin/python3\n", "#!/usr/bin/env python3\n",
                           "#!/usr/bin/env -S uv run --script\n", "#!/opt/bash/bin/python\n",
                           "#!/bin/sh\n'''exec' /a/long/path/python \"$0\" \"$@\"\n' '''\n",
                           "#!/bin/bash\n\"\"\":\"\nexec python3 \"$0\"\n\"\"\"\n", "#!\n",
                           "#!/usr/bin/env\n", "#!", "import torch\n", " #!/bin/sh\n", ""}) {
    EXPECT_EQ(ReadBeginning(text).shell_line, "") << text;
  }
}

class GivenScriptTest : public ::testing::Test {
 protected:
  GivenScriptTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~GivenScriptTest() override { RemoveFolder(folder_); }

  std::string File(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  absl::StatusOr<std::string> PythonOf(const std::string& script, int workers = 1) {
    LaunchPlan plan;
    plan.program = {script};
    plan.nproc_per_node = workers;
    return CheckProgram(plan, {{"PYTHON_EXEC", python_}});
  }

  std::string folder_ = ::testing::TempDir() + "given_script_XXXXXX";
  std::string python_ = "/proc/self/exe";  // a program that is there on any machine
};

TEST_F(GivenScriptTest, ThatIsAProgramNeedsNoPython) {
  python_ = "/no/python";
  EXPECT_EQ(PythonOf(File("train", kElf, 0700)).value(), "");
  EXPECT_FALSE(PythonOf(File("train.py", "import torch\n", 0600)).ok());
}

TEST_F(GivenScriptTest, ThatIsNoProgramIsPythons) {
  EXPECT_EQ(PythonOf(File("train.py", "import torch\n", 0600)).value(), python_);
  EXPECT_EQ(PythonOf(File("train.sh", "#!/bin/sh\n", 0700)).value(), python_);
}

TEST_F(GivenScriptTest, ThatIsAProgramWhichMayNotBeRunIsToldSo) {
  const absl::Status status = PythonOf(File("train", kElf, 0600)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("chmod +x"), std::string::npos) << status;
}

TEST_F(GivenScriptTest, OfAllWorkersAreProgramsOrNone) {
  File("train_0", kElf, 0700);
  File("train_1", kElf, 0700);
  EXPECT_EQ(PythonOf(folder_ + "/train_$local_rank", 2).value(), "");
  File("train_1", "import torch\n", 0700);
  const absl::Status status = PythonOf(folder_ + "/train_$local_rank", 2).status();
  EXPECT_NE(status.message().find("--no-python"), std::string::npos) << status;
}

TEST_F(GivenScriptTest, IsStartedAsWhatItIs) {
  LaunchPlan plan;
  plan.nproc_per_node = 2;
  File("train_0", kElf, 0700);
  plan.program = {folder_ + "/train_0"};
  EXPECT_EQ(KindStarted(plan), ProgramKind::kExecutable);
  plan.program_kind = ProgramKind::kPythonModule;
  EXPECT_EQ(KindStarted(plan), ProgramKind::kPythonModule);
  plan.program_kind = ProgramKind::kPythonScript;
  plan.program = {folder_ + "/train_$local_rank"};
  EXPECT_EQ(KindStarted(plan), ProgramKind::kPythonScript);  // one is not there
  File("train_1", kElf, 0700);
  EXPECT_EQ(KindStarted(plan), ProgramKind::kExecutable);
}

// Of a pipe, such as bash's <(...), what is read here would be missing to Python.
TEST_F(GivenScriptTest, ThatIsAPipeIsNotRead) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(PythonOf(pipe).value(), python_);  // opening it would wait for a writer
}

}  // namespace
}  // namespace fsdprun
