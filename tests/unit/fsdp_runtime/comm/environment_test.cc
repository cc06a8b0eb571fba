#include <c10/util/Exception.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "fsdp_runtime/src/comm/device_choice.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

class EnvironmentTest : public ::testing::Test {
 protected:
  EnvironmentTest() { clear(); }
  ~EnvironmentTest() override { clear(); }
  static void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "FSDPRUN_GENERATION",
          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static void set_two_ranks() {
    set("RANK", "0");
    set("WORLD_SIZE", "2");
    set("MASTER_ADDR", "10.0.0.7");
    set("MASTER_PORT", "29501");
  }
  static std::string error() {
    try {
      ProcessGroupOptions::from_environment();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }
};

TEST_F(EnvironmentTest, WithoutRankIsAWorldOfOne) {
  const auto options = ProcessGroupOptions::from_environment();
  EXPECT_EQ(options.world_size, 1);
  EXPECT_EQ(options.rank, 0);
}

TEST_F(EnvironmentTest, ReadsAWorldOfTwo) {
  set_two_ranks();
  set("LOCAL_RANK", "1");
  const auto options = ProcessGroupOptions::from_environment();
  EXPECT_EQ(options.world_size, 2);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.master_addr, "10.0.0.7");
  EXPECT_EQ(options.master_port, 29501);
}

// As started by hand on one host: two processes must not take one GPU.
TEST_F(EnvironmentTest, WithoutALocalRankItIsTheRank) {
  set_two_ranks();
  set("RANK", "1");
  EXPECT_EQ(ProcessGroupOptions::from_environment().local_rank, 1);
  set("LOCAL_RANK", "0");
  EXPECT_EQ(ProcessGroupOptions::from_environment().local_rank, 0);
}

TEST_F(EnvironmentTest, WhoeverNamesTheDeviceGetsIt) {
  set_two_ranks();
  set("LOCAL_RANK", "4095");  // more than there are GPUs
  EXPECT_EQ(ProcessGroupOptions::from_environment(c10::kCPU).device_type, c10::kCPU);
  EXPECT_EQ(ProcessGroupOptions::from_environment(c10::kCUDA).device_type, c10::kCUDA);
}

TEST(DeviceChoiceTest, IsTheCpuWhereThereIsNoGpuForAnyNumberOfProcesses) {
  EXPECT_EQ(choose_device_type(0, 0), c10::kCPU);
  EXPECT_EQ(choose_device_type(0, 63), c10::kCPU);
}

TEST(DeviceChoiceTest, IsTheProcesssOwnGpu) {
  EXPECT_EQ(choose_device_type(1, 0), c10::kCUDA);
  EXPECT_EQ(choose_device_type(8, 7), c10::kCUDA);
}

// Not the CPU: its neighbours have chosen their GPUs.
TEST(DeviceChoiceTest, AProcessWithoutAGpuAmongOthersWithOneIsRefused) {
  try {
    choose_device_type(1, 1);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("LOCAL_RANK is 1, and this host has 1 GPU "));
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("from_environment(torch::kCPU)"));
  }
}

TEST_F(EnvironmentTest, RankZeroServesTheStoreUnlessTheAgentDoes) {
  set_two_ranks();
  EXPECT_TRUE(ProcessGroupOptions::from_environment().host_store);
  set("RANK", "1");
  EXPECT_FALSE(ProcessGroupOptions::from_environment().host_store);
  set("RANK", "0");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_FALSE(ProcessGroupOptions::from_environment().host_store);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_TRUE(ProcessGroupOptions::from_environment().host_store);
}

TEST_F(EnvironmentTest, EveryLifeOfAWorldHasKeysOfItsOwn) {
  const std::string by_hand = ProcessGroupOptions::from_environment().store_prefix;
  set("TORCHELASTIC_RESTART_COUNT", "1");
  const std::string restarted = ProcessGroupOptions::from_environment().store_prefix;
  set("FSDPRUN_GENERATION", "1");
  const std::string generation = ProcessGroupOptions::from_environment().store_prefix;
  EXPECT_NE(by_hand, restarted);
  EXPECT_NE(restarted, generation);
  set("TORCHELASTIC_RUN_ID", "another-run");
  EXPECT_NE(ProcessGroupOptions::from_environment().store_prefix, generation);
}

TEST_F(EnvironmentTest, ErrorsNameTheVariable) {
  set("RANK", "0");
  EXPECT_THAT(error(), HasSubstr("WORLD_SIZE"));
  set("WORLD_SIZE", "2");
  EXPECT_THAT(error(), HasSubstr("MASTER_ADDR"));
  set("MASTER_ADDR", "127.0.0.1");
  EXPECT_THAT(error(), HasSubstr("MASTER_PORT"));
  for (const char* port : {"", "x", "0", "65536", "29500x", "-1", "99999999999999999999"}) {
    set("MASTER_PORT", port);
    EXPECT_THAT(error(), HasSubstr("MASTER_PORT")) << port;
  }
  set("MASTER_PORT", "29500");
  EXPECT_EQ(error(), "");
  set("RANK", "2");
  EXPECT_THAT(error(), HasSubstr("RANK is '2'"));
  set("RANK", "0");
  set("WORLD_SIZE", "0");
  EXPECT_THAT(error(), HasSubstr("WORLD_SIZE is '0'"));
}

}  // namespace
}  // namespace fsdp
