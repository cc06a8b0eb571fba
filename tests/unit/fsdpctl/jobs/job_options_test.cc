#include "fsdpctl/jobs/job_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

TEST(JobOptionsTest, WhatACommandLineSays) {
  const absl::StatusOr<JobOptions> options =
      ReadJobOptions(CliProgram::kJobStatus,
                     {"--job=run7", "--rdzv_endpoint", "node0:29400", "--token-file", "secret",
                      "--tls-cert=a", "--tls-key=b", "--tls-ca=c", "-f", "--json"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job, "run7");
  EXPECT_EQ(options->endpoint, "node0:29400");
  EXPECT_EQ(options->token_file, "secret");
  EXPECT_EQ(options->tls.certificate, "a");
  EXPECT_EQ(options->tls.key, "b");
  EXPECT_EQ(options->tls.ca, "c");
  EXPECT_TRUE(options->follows);
  EXPECT_TRUE(options->is_json);
}

TEST(JobOptionsTest, EachCommandHasItsOwn) {
  EXPECT_TRUE(ReadJobOptions(CliProgram::kJobStop, {"--now"})->now);
  EXPECT_FALSE(ReadJobOptions(CliProgram::kJobStatus, {"--now"}).ok());
  EXPECT_FALSE(ReadJobOptions(CliProgram::kJobList, {"--job", "a"}).ok());
  EXPECT_FALSE(ReadJobOptions(CliProgram::kJobRestart, {"--json"}).ok());
}

TEST(JobOptionsTest, WhatIsDrainedOrScaledStandsAmongTheOptions) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--job", "run7", "node3", "--below-min"},
        std::vector<std::string>{"node3", "--below-min", "--job=run7"}}) {
    const absl::StatusOr<JobOptions> options = ReadJobOptions(CliProgram::kJobDrain, args);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->node, "node3");
    EXPECT_EQ(options->job, "run7");
    EXPECT_TRUE(options->may_wait);
  }
  const absl::StatusOr<JobOptions> options = ReadJobOptions(CliProgram::kJobScale, {"2:8"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->numbers.min, 2);
  EXPECT_EQ(options->numbers.max, 8);
  EXPECT_EQ(ReadJobOptions(CliProgram::kJobScale, {"4"})->numbers.min, 4);
}

TEST(JobOptionsTest, WhatIsDrainedOrScaledHasToBeSaid) {
  const auto refusal = [](CliProgram program, const std::vector<std::string>& args) {
    return ReadJobOptions(program, args).status();
  };
  EXPECT_THAT(refusal(CliProgram::kJobDrain, {}).message(), HasSubstr("no NODE was given"));
  EXPECT_THAT(refusal(CliProgram::kJobDrain, {"a", "b"}).message(), HasSubstr("'b' is no option"));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal(CliProgram::kJobScale, {"--job", "a"})));
  for (const char* text : {"0", "3:2", "1:2:3", "a", "", "1:70000"}) {
    EXPECT_TRUE(!refusal(CliProgram::kJobScale, {text}).ok()) << text;
  }
  EXPECT_THAT(refusal(CliProgram::kJobScale, {"3:2"}).message(),
              HasSubstr("MIN:MAX: '3:2' is not"));
}

TEST(JobOptionsTest, TextsAreForTheReaderWhateverElseIsGiven) {
  for (const CliProgram program : kControlPrograms) {
    if (IsJobCommand(program)) {
      EXPECT_EQ(ReadJobOptions(program, {"--help", "more"})->request, Request::kHelp);
      EXPECT_EQ(ReadJobOptions(program, {"--man"})->request, Request::kManPage);
      EXPECT_EQ(ReadJobOptions(program, {"--version"})->request, Request::kVersion);
    }
  }
}

TEST(JobOptionsTest, AnEndpointHasAPortAndAJob) {
  const auto refusal = [](const std::vector<std::string>& args) {
    return ReadJobOptions(CliProgram::kJobStatus, args).status();
  };
  for (const char* text : {"node0", "node0:", ":1"}) {
    EXPECT_TRUE(absl::IsOutOfRange(refusal({"--job", "a", "--rdzv-endpoint", text}))) << text;
  }
  EXPECT_THAT(refusal({"--rdzv-endpoint", "node0:1"}).message(), HasSubstr("--job"));
}

}  // namespace
}  // namespace fsdprun
