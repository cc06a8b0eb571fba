#include "worker/contract/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdprun::worker {
namespace {

using Variables = std::map<std::string, std::string>;

std::string ErrorOf(const Variables& variables) {
  try {
    ParseWorkerEnvironment(variables);
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

Variables TwoRanks() {
  return {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
}

TEST(WorkerEnvironmentTest, NothingSetIsASingleProcessWorld) {
  const WorkerEnvironment env = ParseWorkerEnvironment({{"HOME", "/root"}});
  EXPECT_FALSE(env.is_launched);
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.control_fd, -1);
  EXPECT_FALSE(env.uses_agent_store);
}

TEST(WorkerEnvironmentTest, ALauncherMayLeaveTheRanksOfALoneWorkerOut) {
  const WorkerEnvironment env =
      ParseWorkerEnvironment({{"FSDPRUN_GENERATION", "2"}, {"FSDPRUN_JOB_ID", "job"}});
  EXPECT_TRUE(env.is_launched);
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.generation, 2u);
}

TEST(WorkerEnvironmentTest, ReadsEveryVariable) {
  // Each number occurs once, so that none can be read from another's variable.
  Variables variables = TwoRanks();
  variables.insert_or_assign("RANK", "10");
  variables.insert_or_assign("WORLD_SIZE", "20");
  variables.insert({{"LOCAL_RANK", "2"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"GROUP_RANK", "6"},
                    {"GROUP_WORLD_SIZE", "8"},
                    {"ROLE_RANK", "9"},
                    {"ROLE_WORLD_SIZE", "11"},
                    {"ROLE_NAME", "trainer"},
                    {"TORCHELASTIC_RESTART_COUNT", "3"},
                    {"TORCHELASTIC_MAX_RESTARTS", "5"},
                    {"TORCHELASTIC_RUN_ID", "run"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                    {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"},
                    {"FSDPRUN_GENERATION", "18446744073709551615"},
                    {"FSDPRUN_JOB_ID", "job"},
                    {"FSDPRUN_CONTROL_FD", "7"},
                    {"FSDPRUN_PROGRESS_VIEW", "terminal"}});
  const WorkerEnvironment env = ParseWorkerEnvironment(variables);
  EXPECT_TRUE(env.is_launched);
  EXPECT_EQ(env.rank, 10);
  EXPECT_EQ(env.world_size, 20);
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.group_rank, 6);
  EXPECT_EQ(env.group_world_size, 8);
  EXPECT_EQ(env.role_rank, 9);
  EXPECT_EQ(env.role_world_size, 11);
  EXPECT_EQ(env.role_name, "trainer");
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.restart_count, 3);
  EXPECT_EQ(env.max_restarts, 5);
  EXPECT_EQ(env.run_id, "run");
  EXPECT_TRUE(env.uses_agent_store);
  EXPECT_EQ(env.error_file, "/tmp/e.json");
  EXPECT_EQ(env.generation, ~uint64_t{0});
  EXPECT_EQ(env.job_id, "job");
  EXPECT_EQ(env.control_fd, 7);
  EXPECT_TRUE(env.launcher_draws_progress);
}

TEST(WorkerEnvironmentTest, TheFirstLocaleThatIsSetSaysWhetherTheTerminalDrawsUtf8) {
  const auto is_utf8 = [](const Variables& variables) {
    return ParseWorkerEnvironment(variables).is_utf8;
  };
  EXPECT_FALSE(is_utf8({}));
  EXPECT_TRUE(is_utf8({{"LANG", "C.UTF-8"}}));
  EXPECT_TRUE(is_utf8({{"LC_ALL", ""}, {"LC_CTYPE", "de_DE.utf8"}, {"LANG", "C"}}));
  EXPECT_FALSE(is_utf8({{"LC_ALL", "C"}, {"LANG", "C.UTF-8"}}));
}

TEST(WorkerEnvironmentTest, LocalValuesDefaultToASingleNode) {
  const WorkerEnvironment env = ParseWorkerEnvironment(TwoRanks());
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
}

TEST(WorkerEnvironmentTest, ErrorsNameVariableValueAndExpectation) {
  Variables variables = TwoRanks();
  variables["RANK"] = "2";
  EXPECT_THAT(ErrorOf(variables), testing::HasSubstr("RANK='2': expected an integer in 0..1"));
  variables["RANK"] = "one";
  EXPECT_THAT(ErrorOf(variables), testing::HasSubstr("RANK='one'"));
  variables["RANK"] = "1 ";
  EXPECT_THAT(ErrorOf(variables), testing::HasSubstr("RANK='1 '"));
  variables = TwoRanks();
  variables["MASTER_PORT"] = "65536";
  EXPECT_THAT(ErrorOf(variables),
              testing::HasSubstr("MASTER_PORT='65536': expected an integer in 1..65535"));
  variables["WORLD_SIZE"] = "0";
  EXPECT_THAT(ErrorOf(variables), testing::HasSubstr("WORLD_SIZE='0'"));
}

// They stand in fsdprun.json: each save would fail.
TEST(WorkerEnvironmentTest, NamesOfALaunchAreUtf8) {
  for (const char* name : {"FSDPRUN_JOB_ID", "TORCHELASTIC_RUN_ID"}) {
    EXPECT_EQ(ErrorOf({{name, "caf\xc3\xa9"}}), "");
    EXPECT_EQ(ErrorOf({{name, "caf\xe9"}}), "environment variable " + std::string(name) +
                                                "='caf\\ufffd': expected a name in UTF-8");
  }
}

TEST(WorkerEnvironmentTest, MissingPartsOfAWorldAreRefused) {
  EXPECT_THAT(ErrorOf({{"RANK", "0"}}), testing::HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(ErrorOf({{"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK is not set"));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
              testing::HasSubstr("MASTER_PORT is not set"));
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
}

}  // namespace
}  // namespace fsdprun::worker
