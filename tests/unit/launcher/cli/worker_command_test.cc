#include "launcher/cli/worker_command.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(WorkerCommandTest, ReplacesOnlyTheLocalRank) {
  EXPECT_EQ(SubstituteLocalRank("${local_rank}", 3), "3");
  EXPECT_EQ(SubstituteLocalRank("gpu$local_rank.log", 3), "gpu3.log");
  EXPECT_EQ(SubstituteLocalRank("$$", 3), "$");
  EXPECT_EQ(SubstituteLocalRank("$$local_rank", 3), "$local_rank");
  EXPECT_EQ(SubstituteLocalRank("$HOME ${other} $", 3), "$HOME ${other} $");
  EXPECT_EQ(SubstituteLocalRank("$local_ranks ${local_rank", 3), "$local_ranks ${local_rank");
  EXPECT_EQ(SubstituteLocalRank("", 3), "");
}

TEST(WorkerCommandTest, ScriptModuleAndExecutable) {
  LaunchPlan plan;
  plan.program = {"train.py", "--rank=${local_rank}"};
  EXPECT_EQ(WorkerCommand(plan, "/usr/bin/python3", 1),
            (std::vector<std::string>{"/usr/bin/python3", "-u", "train.py", "--rank=1"}));
  plan.program_kind = ProgramKind::kPythonModule;
  EXPECT_EQ(WorkerCommand(plan, "py", 0),
            (std::vector<std::string>{"py", "-u", "-m", "train.py", "--rank=0"}));
  plan.program_kind = ProgramKind::kExecutable;
  EXPECT_EQ(WorkerCommand(plan, "py", 0), (std::vector<std::string>{"train.py", "--rank=0"}));
}

// As torchrun, which replaces in what Python gets, and not in the name of an executable.
TEST(WorkerCommandTest, TheScriptIsATemplateAndTheExecutableIsNone) {
  LaunchPlan plan;
  plan.program = {"train_$local_rank.py"};
  EXPECT_EQ(WorkerCommand(plan, "py", 1), (std::vector<std::string>{"py", "-u", "train_1.py"}));
  plan.program_kind = ProgramKind::kPythonModule;
  EXPECT_EQ(WorkerCommand(plan, "py", 1),
            (std::vector<std::string>{"py", "-u", "-m", "train_1.py"}));
  plan.program_kind = ProgramKind::kExecutable;
  EXPECT_EQ(WorkerCommand(plan, "py", 1), (std::vector<std::string>{"train_$local_rank.py"}));
}

// As the file that it was given as, never as a command on PATH.
TEST(WorkerCommandTest, AScriptThatIsAProgramRunsItself) {
  LaunchPlan plan;
  plan.program = {"train", "--rank=$local_rank"};
  EXPECT_EQ(WorkerCommand(plan, "", 1), (std::vector<std::string>{"./train", "--rank=1"}));
  plan.program = {"bin/train_$local_rank"};
  EXPECT_EQ(WorkerCommand(plan, "", 1), (std::vector<std::string>{"bin/train_1"}));
  plan.program_kind = ProgramKind::kExecutable;
  plan.program = {"train"};
  EXPECT_EQ(WorkerCommand(plan, "", 1), (std::vector<std::string>{"train"}));
}

TEST(WorkerCommandTest, TheOldLaunchersFirstArgument) {
  LaunchPlan plan;
  plan.program = {"train.py", "--lr", "1"};
  plan.passes_local_rank = true;
  EXPECT_EQ(WorkerCommand(plan, "py", 3),
            (std::vector<std::string>{"py", "-u", "train.py", "--local-rank=3", "--lr", "1"}));
}

}  // namespace
}  // namespace fsdprun
