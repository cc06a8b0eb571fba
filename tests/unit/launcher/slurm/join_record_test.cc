#include "launcher/slurm/join_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/slurm/recorded.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

SlurmJoinRecord Example() {
  return {.job = "12_3",
          .cluster = "test",
          .run_id = "slurm-12_3",
          .restarts = "2",
          .token = "secret",
          .coordinators = "10.0.0.1:4000,[::1]:4000",
          .folder = "/a b\n",
          .command = {"/opt/fsdprun", "", "a=b", "\n'\"\xff"},
          .environment = {{"A", "x=y\nz"}, {"B", ""}},
          .resources = {{"partition", "gpu"}}};
}

TEST(JoinRecordTest, IsReadAsWritten) {
  EXPECT_EQ(DecodeJoinRecord(EncodeJoinRecord(Example())).value(), Example());
}

TEST(JoinRecordTest, NoPartOfARecordIsOne) {
  const std::string text = EncodeJoinRecord(Example());
  for (size_t size = 0; size < text.size(); ++size) {
    const auto part = DecodeJoinRecord(text.substr(0, size));
    // What ends with a field may be one of fewer words and variables.
    EXPECT_TRUE(!part.ok() || text[size - 1] == '\0') << size;
  }
  EXPECT_FALSE(DecodeJoinRecord("").ok());
  EXPECT_FALSE(DecodeJoinRecord("another file").ok());
}

TEST(JoinRecordTest, ResourcesAreTheJobs) {
  EXPECT_THAT(GrantedResources(Recorded("batch")), ElementsAre(Pair("partition", "debug")));
  EXPECT_THAT(GrantedResources({{"SLURM_GPUS_PER_NODE", "8"}, {"SLURM_JOB_ACCOUNT", "(null)"}}),
              ElementsAre(Pair("gpus-per-node", "8")));
}

TEST(JoinRecordTest, PlaceAndTokenAreNotRecordedWithTheEnvironment) {
  EXPECT_THAT(RecordedEnvironment({{"SLURM_JOB_ID", "12"},
                                   {"FSDPRUN_TOKEN", "secret"},
                                   {"FSDPRUN_CONTROL_FD", "3"},
                                   {"KEY_OF_A_SERVICE", "x"}}),
              ElementsAre(Pair("KEY_OF_A_SERVICE", "x")));
}

TEST(JoinRecordTest, WhoJoinsHasTheJobsEnvironmentAndItsOwnPlace) {
  SlurmJoinRecord record;
  record.environment = {
      {"PATH", "/venv/bin"}, {"TMPDIR", "/job12"}, {"SLURM_JOB_ID", "12"}, {"SLURM_HINT", "x"}};
  const Environment own{{"PATH", "/bin"},       {"TMPDIR", "/job13"},
                        {"SLURM_JOB_ID", "13"}, {"SLURM_RESTART_COUNT", "7"},
                        {"OTHER", "1"},         {"CUDA_VISIBLE_DEVICES", "0,1"}};
  EXPECT_THAT(JoinEnvironment(record, own),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "0,1"), Pair("PATH", "/venv/bin"),
                          Pair("SLURM_JOB_ID", "13"), Pair("TMPDIR", "/job13")));
  record.restarts = "2";
  EXPECT_EQ(JoinEnvironment(record, own).at("SLURM_RESTART_COUNT"), "2");
}

}  // namespace
}  // namespace fsdprun
