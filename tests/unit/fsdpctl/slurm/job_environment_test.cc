#include "fsdpctl/slurm/job_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;

TEST(JobEnvironmentTest, SbatchDoesNotHearOfTheFilesValuesOrOfThisJob) {
  EXPECT_THAT(SbatchEnvironment({{"SBATCH_PARTITION", "a"}, {"SLURM_CONF", "/c"}, {"A", "b"}}),
              ElementsAre(std::pair("A", "b"), std::pair("SLURM_CONF", "/c")));
  EXPECT_THAT(SbatchEnvironment({{"SLURM_JOB_ID", "1"},
                                 {"SLURM_NTASKS", "2"},
                                 {"A", "b"},
                                 {"SLURM_CONF", "/c"},
                                 {"PMI_RANK", "0"}}),
              ElementsAre(std::pair("A", "b"), std::pair("SLURM_CONF", "/c")));
}

TEST(JobEnvironmentTest, JobHasWhatIsExported) {
  const Environment shell{{"A", "1"}, {"B", "2"}};
  EXPECT_EQ(ExportedEnvironment(shell, "ALL"), shell);
  EXPECT_EQ(ExportedEnvironment(shell, "all"), shell);
  EXPECT_EQ(ExportedEnvironment(shell, "NONE"), Environment());
  EXPECT_EQ(ExportedEnvironment(shell, "NIL"), Environment());
  EXPECT_EQ(ExportedEnvironment(shell, "B,MISSING"), (Environment{{"B", "2"}}));
  EXPECT_EQ(ExportedEnvironment(shell, "ALL,B=3,C="),
            (Environment{{"A", "1"}, {"B", "3"}, {"C", ""}}));
}

TEST(JobEnvironmentTest, QuotesKeepCommas) {
  EXPECT_EQ(ExportedEnvironment({}, "'A=x,y',\"B=z\""), (Environment{{"A", "x,y"}, {"B", "z"}}));
  EXPECT_EQ(ExportedEnvironment({}, "A='x,y'"), (Environment{{"A", "'x,y'"}}));
}

}  // namespace
}  // namespace fsdprun
