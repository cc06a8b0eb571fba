#include "agent/process/worker_environment.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using Environment = std::map<std::string, std::string>;

TEST(WorkerEnvironmentBuilderTest, JobIdNamesRunAndLaunchAndFitsAFileName) {
  EXPECT_EQ(WorkerJobId("none", "12ab34cd"), "none-12ab34cd");
  EXPECT_NE(WorkerJobId("none", "12ab34cd"), WorkerJobId("none", "12ab34ce"));
  EXPECT_EQ(WorkerJobId("../a b", "1"), "---a-b-1");
  EXPECT_LT(WorkerJobId(std::string(5000, 'x'), std::string(5000, 'y')).size(), 100u);
}

TEST(WorkerEnvironmentBuilderTest, LaysTorchrunsTableOverTheLaunchersEnvironment) {
  WorkerPlace place{
      .rank = 5, .local_rank = 1, .world_size = 8, .local_world_size = 4, .group_rank = 1};
  place.group_world_size = 2;
  place.role_rank = 5;
  place.role_world_size = 8;
  WorkerSettings settings{
      .master_addr = "10.0.0.1", .master_port = 29500, .restart_count = 1, .max_restarts = 3};
  settings.run_id = "none";
  settings.error_file = "/logs/error.json";
  settings.generation = 4;
  settings.job_id = "job";
  settings.progress_view = "plain";
  settings.vitals_file = "/vitals/4.1";
  const Environment base = {{"HOME", "/root"},
                            {"RANK", "77"},
                            {"FSDPRUN_CONTROL_FD", "9"},
                            {"PET_NNODES", "2"},
                            {"FSDPRUN_VITALS_FILE", "/outer"}};
  const WorkerVariables result = BuildWorkerEnvironment(base, place, settings);
  const Environment expected = {{"HOME", "/root"},
                                {"PET_NNODES", "2"},
                                {"RANK", "5"},
                                {"LOCAL_RANK", "1"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_RANK", "5"},
                                {"ROLE_WORLD_SIZE", "8"},
                                {"ROLE_NAME", "default"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_RESTART_COUNT", "1"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "none"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"OMP_NUM_THREADS", "1"},
                                {"FSDPRUN_GENERATION", "4"},
                                {"FSDPRUN_JOB_ID", "job"},
                                {"FSDPRUN_VITALS_FILE", "/vitals/4.1"},
                                {"FSDPRUN_PROGRESS_VIEW", "plain"}};
  EXPECT_EQ(result.environment, expected);
  EXPECT_TRUE(result.defaulted_omp_threads);
}

TEST(WorkerEnvironmentBuilderTest, OmpThreadsThatWereAskedForAreNoDefault) {
  WorkerSettings settings;
  settings.omp_threads = 6;
  for (const int workers : {1, 4}) {
    const WorkerPlace place{.local_world_size = workers};
    const WorkerVariables unset = BuildWorkerEnvironment({}, place, settings);
    EXPECT_EQ(unset.environment.at("OMP_NUM_THREADS"), "6");
    EXPECT_FALSE(unset.defaulted_omp_threads);
    const WorkerVariables set = BuildWorkerEnvironment({{"OMP_NUM_THREADS", "2"}}, place, settings);
    EXPECT_EQ(set.environment.at("OMP_NUM_THREADS"), "2");
  }
}

TEST(WorkerEnvironmentBuilderTest, OmpThreadsAreDefaultedOnlyForSeveralWorkersAndWhenUnset) {
  const WorkerVariables single = BuildWorkerEnvironment({}, {}, {});
  EXPECT_EQ(single.environment.count("OMP_NUM_THREADS"), 0u);
  EXPECT_FALSE(single.defaulted_omp_threads);
  const WorkerVariables set =
      BuildWorkerEnvironment({{"OMP_NUM_THREADS", "6"}}, {.local_world_size = 2}, {});
  EXPECT_EQ(set.environment.at("OMP_NUM_THREADS"), "6");
  EXPECT_FALSE(set.defaulted_omp_threads);
}

TEST(WorkerEnvironmentBuilderTest, InheritedNcclHandlingWins) {
  const Environment base = {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}};
  EXPECT_EQ(BuildWorkerEnvironment(base, {}, {}).environment.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            "0");
}

TEST(WorkerEnvironmentBuilderTest, VirtualLocalRankShowsOneDevice) {
  const WorkerSettings settings{.has_virtual_local_rank = true};
  const WorkerPlace place{.rank = 1, .local_rank = 1, .world_size = 2, .local_world_size = 2};
  const Environment listed =
      BuildWorkerEnvironment({{"CUDA_VISIBLE_DEVICES", "4,GPU-x"}}, place, settings).environment;
  EXPECT_EQ(listed.at("CUDA_VISIBLE_DEVICES"), "GPU-x");
  EXPECT_EQ(listed.at("LOCAL_RANK"), "0");
  EXPECT_EQ(BuildWorkerEnvironment({}, place, settings).environment.at("CUDA_VISIBLE_DEVICES"),
            "1");
}

TEST(WorkerEnvironmentBuilderTest, ALoneWorkerHasNoRanksWhereThatIsAskedFor) {
  const Environment base = {{"HOME", "/root"},
                            {"LOCAL_RANK", "3"},
                            {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                            {"FSDPRUN_LONE_WORKER_IS_PLAIN", "1"}};
  const Environment alone = BuildWorkerEnvironment(base, {}, {.run_id = "none"}).environment;
  const Environment expected = {{"HOME", "/root"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"TORCHELASTIC_RESTART_COUNT", "0"},
                                {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                {"TORCHELASTIC_ERROR_FILE", ""},
                                {"FSDPRUN_GENERATION", "0"},
                                {"FSDPRUN_JOB_ID", ""}};
  EXPECT_EQ(alone, expected);
  const Environment pair = BuildWorkerEnvironment(base, {.world_size = 2}, {}).environment;
  EXPECT_EQ(pair.at("LOCAL_RANK"), "0");
  EXPECT_EQ(pair.count("FSDPRUN_LONE_WORKER_IS_PLAIN"), 0u);
}

}  // namespace
}  // namespace fsdprun
