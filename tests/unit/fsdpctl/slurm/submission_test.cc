#include "fsdpctl/slurm/submission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/man_page.h"
#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(std::vector<std::string> args, const Environment& environment = {}) {
  const auto submission = PlanSubmission(args, environment, "/opt/bin/fsdprun");
  return submission.ok() ? BatchText(submission->file) : std::string(submission.status().message());
}

absl::Status Error(std::vector<std::string> args, const Environment& environment = {}) {
  return PlanSubmission(args, environment, "fsdprun").status();
}

TEST(SubmissionTest, FileHasSbatchsOptionsAndTheLaunchersCommand) {
  EXPECT_EQ(Text({"--nnodes", "2", "--partition=gpu", "--time", "8:00:00", "--nproc_per_node=8",
                  "--max-restarts=3", "src/train.py", "--lr", "1e-4"}),
            absl::StrCat("#!/bin/bash\n"
                         "#SBATCH --job-name=train.py\n"
                         "#SBATCH --nodes=2\n"
                         "#SBATCH --ntasks-per-node=1\n"
                         "#SBATCH --output=%x-%j.out\n"
                         "#SBATCH --partition=gpu\n"
                         "#SBATCH --time=8:00:00\n"
                         "# Written by fsdpctl 0.1.0.\n"
                         "exec /opt/bin/fsdprun --nnodes=2 --nproc-per-node=8 --max-restarts=3 "
                         "src/train.py --lr 1e-4\n"));
}

TEST(SubmissionTest, NodesFollowFromTheLaunchers) {
  EXPECT_THAT(Text({"p"}), HasSubstr("--nodes=1\n"));
  EXPECT_THAT(Text({"--nodes=3", "p"}),
              AllOf(HasSubstr("--nodes=3\n"), HasSubstr("exec /opt/bin/fsdprun p\n")));
  EXPECT_THAT(Text({"--nnodes=3", "p"}), Not(HasSubstr("no-kill")));
  EXPECT_THAT(Text({"--nnodes=2:4", "p"}),
              AllOf(HasSubstr("--nodes=2-4\n"), HasSubstr("#SBATCH --no-kill\n")));
  EXPECT_THAT(Text({"--nnodes=2:4", "-N2", "p"}),
              AllOf(HasSubstr("--nodes=2\n"), HasSubstr("#SBATCH --no-kill\n")));
  EXPECT_THAT(Text({"--nodes=5", "--nnodes=4", "p"}), HasSubstr("--nodes=5\n"));  // A spare one.
  EXPECT_THAT(Text({"p"}, {{"PET_NNODES", "2"}}), HasSubstr("--nodes=2\n"));
}

TEST(SubmissionTest, EachGpuHasAWorkerUnlessTheyAreCounted) {
  EXPECT_THAT(Text({"--gpus-per-node=8", "p"}), HasSubstr("fsdprun --nproc-per-node=gpu p\n"));
  EXPECT_THAT(Text({"--gpus-per-node=8", "--nproc-per-node=2", "p"}),
              HasSubstr("fsdprun --nproc-per-node=2 p\n"));
}

TEST(SubmissionTest, RequeueBringsWhatItNeeds) {
  EXPECT_THAT(Text({"--requeue=auto", "p"}),
              AllOf(HasSubstr("#SBATCH --requeue\n"), HasSubstr("#SBATCH --open-mode=append\n"),
                    HasSubstr("#SBATCH --signal=B:USR1@120\n")));
  EXPECT_THAT(Text({"--requeue=always", "--signal=B:USR2@60", "--open-mode=truncate", "p"}),
              AllOf(HasSubstr("--signal=B:USR2@60\n"), HasSubstr("--open-mode=truncate\n"),
                    Not(HasSubstr("USR1"))));
  EXPECT_THAT(Text({"--requeue=never", "p"}),
              AllOf(HasSubstr("#SBATCH --no-requeue\n"), Not(HasSubstr("signal"))));
  EXPECT_THAT(Text({"p"}), Not(HasSubstr("requeue")));
}

TEST(SubmissionTest, NoticeLeavesAShortJobMostOfItsTime) {
  EXPECT_THAT(Text({"--requeue=auto", "--time=8:00:00", "p"}), HasSubstr("B:USR1@120\n"));
  EXPECT_THAT(Text({"--requeue=auto", "--time=UNLIMITED", "p"}), HasSubstr("B:USR1@120\n"));
  EXPECT_THAT(Text({"--requeue=auto", "--time=4", "p"}), HasSubstr("B:USR1@60\n"));
  EXPECT_THAT(Text({"--requeue=auto", "p"}, {{"SBATCH_TIMELIMIT", "2"}}), HasSubstr("B:USR1@30\n"));
}

TEST(SubmissionTest, JobThatWouldBeToldToEndWhenItBeginsIsRefused) {
  EXPECT_THAT(
      Text({"--requeue=auto", "--time=1", "p"}),
      HasSubstr("--time: '1' is too short for --signal=B:USR1@15, which Slurm may send 75 s "
                "before the limit"));
  EXPECT_EQ(Error({"--requeue=always", "--time=3", "--signal=B:USR2@120", "p"}).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Error({"--time=2", "--signal=USR1", "p"}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(Error({"--requeue=never", "--time=2", "--signal=USR1", "p"}).ok());
  EXPECT_TRUE(Error({"--time=3", "--signal=USR1", "p"}).ok());
}

TEST(SubmissionTest, SignalThatAsksForNoOtherRunIsNotCalledANotice) {
  for (const char* signal : {"B:TERM@120", "sigint@120", "15@120"}) {
    const std::string text(Error({"--time=3", absl::StrCat("--signal=", signal), "p"}).message());
    EXPECT_THAT(text, HasSubstr("which ends it; give a longer limit or a later signal"));
    EXPECT_THAT(text, Not(HasSubstr("requeue")));
  }
  for (const char* signal : {"B:USR1@120", "sigusr2@120", "10@120"}) {
    EXPECT_THAT(std::string(Error({"--time=3", absl::StrCat("--signal=", signal), "p"}).message()),
                HasSubstr("which has it requeued"));
  }
}

TEST(SubmissionTest, EndByASignalRequeuesAJobThatIsAlwaysRequeued) {
  const auto text = [](const char* signal) {
    return std::string(
        Error({"--requeue=always", "--time=3", absl::StrCat("--signal=", signal), "p"}).message());
  };
  EXPECT_THAT(text("B:TERM@120"), HasSubstr("which has it requeued"));
  EXPECT_THAT(text("B:INT@120"), HasSubstr("which ends it"));
}

TEST(SubmissionTest, VariablesThatTheJobWillNotHaveDecideNothing) {
  const Environment environment{{"PET_NNODES", "2"}};
  EXPECT_THAT(Text({"p"}, environment), HasSubstr("--nodes=2\n"));
  EXPECT_THAT(Text({"--export=NONE", "p"}, environment), HasSubstr("--nodes=1\n"));
  EXPECT_THAT(Text({"--export=ALL,PET_NNODES=3", "p"}, environment), HasSubstr("--nodes=3\n"));
  EXPECT_THAT(Text({"p"}, {{"PET_NNODES", "2"}, {"SBATCH_EXPORT", "NIL"}}),
              HasSubstr("--nodes=1\n"));
}

TEST(SubmissionTest, ArgumentsOfTheProgramArriveAsTheyAre) {
  EXPECT_THAT(Text({"p", "a b", "$x", "--nodes=9", "", "'", "l1\nl2", "--"}),
              HasSubstr("fsdprun p 'a b' '$x' --nodes=9 '' ''\\''' $'l1\\012l2' --\n"));
  EXPECT_THAT(Text({"--", "-p"}), HasSubstr("fsdprun -- -p\n"));
  EXPECT_THAT(Text({"--", "--"}), HasSubstr("fsdprun -- --\n"));
}

TEST(SubmissionTest, NamesThatCannotBeNamesOfJobsAreNot) {
  EXPECT_THAT(Text({"a/b c.py"}), HasSubstr("--job-name=\"b c.py\"\n"));
  EXPECT_THAT(Text({"a\nb"}), HasSubstr("--job-name=fsdprun\n"));
}

TEST(SubmissionTest, SetupAndFurtherOptionsStandInTheFile) {
  EXPECT_THAT(
      Text({"--setup", "module load cuda\nset -e", "--sbatch-args=--nice=5 --spread-job", "p"}),
      AllOf(HasSubstr("#SBATCH --nice=5\n#SBATCH --spread-job\n"),
            HasSubstr("\nmodule load cuda\nset -e\nexec ")));
}

TEST(SubmissionTest, VariablesOfSbatchAreDefaults) {
  const Environment environment{{"SBATCH_PARTITION", "slow"}, {"SBATCH_TIMELIMIT", "10"}};
  EXPECT_THAT(Text({"p"}, environment),
              AllOf(HasSubstr("--partition=slow\n"), HasSubstr("--time=10\n")));
  EXPECT_THAT(Text({"-p", "fast", "p"}, environment),
              AllOf(HasSubstr("--partition=fast\n"), Not(HasSubstr("slow"))));
  EXPECT_THAT(std::string(Error({"p"}, {{"SBATCH_TIMELIMIT", "x"}}).message()),
              HasSubstr("SBATCH_TIMELIMIT: 'x' is not a time limit"));
}

TEST(SubmissionTest, ErrorsNameOptionValueAndWhatIsExpected) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--nodes=x", "p"}, "--nodes: 'x' is not a number of nodes"},
      {{"--time=8h", "p"}, "--time: '8h' is not a time limit"},
      {{"--signal=B:USR9", "p"}, "--signal: 'B:USR9' is not a signal for sbatch"},
      {{"--cpus-per-task=0", "p"}, "--cpus-per-task: '0' is not a number"},
      {{"--open-mode=apend", "p"}, "append"},
      {{"--comment=a\nb", "p"}, "--comment: 'a\nb' is not a value that fits into a line"},
      {{"--nodes=1", "--nnodes=2:4", "p"}, "--nodes: 1 may be 1, but --nnodes needs 2"},
      {{"--nnodes=2", "--rdzv-endpoint=h:1", "p"}, "--rdzv-endpoint: 'h:1' says where"},
      {{"--sbatch-args=-n 4", "p"}, "--sbatch-args: '-n' is not an option of sbatch"},
      {{"--max-restarts=-1", "p"}, "--max-restarts"},
  };
  for (const auto& [args, text] : wrong) {
    const absl::Status error = Error(args);
    EXPECT_EQ(error.code(), absl::StatusCode::kOutOfRange) << args.front();
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
  }
}

TEST(SubmissionTest, WhatCannotBeReadIsAnErrorOfUsage) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{},
                                               {"--nodes"},
                                               {"--partitoin=a", "p"},
                                               {"--nnodes=2"},
                                               {"--max-restarts=x", "p"},
                                               {"--completion=bash", "p"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Error(args))) << args.size();
  }
  EXPECT_THAT(std::string(Error({"--partitoin=a", "p"}).message()),
              HasSubstr("did you mean --partition?"));
}

TEST(SubmissionTest, OptionsOfTheLauncherMeanWhatTheyMeanThere) {
  EXPECT_THAT(Text({"-t", "3", "--nnode", "2", "p"}), HasSubstr("--nnodes=2 --tee=3 p\n"));
  EXPECT_THAT(Text({"-m", "pkg.train"}), HasSubstr("--module pkg.train\n"));
}

TEST(SubmissionTest, ReaderIsShownTextsInstead) {
  EXPECT_EQ(PlanSubmission({"--help"}, {}, "f")->request, Request::kHelp);
  EXPECT_EQ(PlanSubmission({"--man"}, {}, "f")->request, Request::kManPage);
  EXPECT_EQ(PlanSubmission({"--dry-run", "p"}, {}, "f")->request, Request::kDryRun);
  for (const CliProgram program : {CliProgram::kSlurmSubmit, CliProgram::kSlurmGrow}) {
    const std::string help = HelpText(program);
    for (const OptionSpec& option : OptionsOf(program)) {
      EXPECT_THAT(help, HasSubstr(absl::StrCat("--", option.name)));
    }
    EXPECT_THAT(help, HasSubstr("Environment: SBATCH_PARTITION."));
  }
  EXPECT_THAT(HelpText(CliProgram::kSlurmGrow), Not(HasSubstr("--requeue")));
  EXPECT_THAT(ManPage(CliProgram::kSlurmSubmit), HasSubstr("fsdpctl\\-slurm\\-submit \\- submit"));
}

TEST(SubmissionTest, NoOptionOfSbatchHidesOneOfTheLauncher) {
  for (const auto& options : {BatchJobOptions(), QueueOptions()}) {
    for (const OptionSpec& option : options) {
      for (const OptionSpec& other : OptionTable()) {
        EXPECT_STRNE(option.name, other.name);
        EXPECT_FALSE(option.letter != 0 && option.letter == other.letter) << option.name;
      }
    }
  }
}

}  // namespace
}  // namespace fsdprun
