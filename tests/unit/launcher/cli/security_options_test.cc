#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/cli/command_line.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<LaunchPlan> PlanOf(const std::vector<std::string>& args, const Environment& env = {},
                                  CliProgram program = CliProgram::kFsdprun) {
  return ParseCommandLine(program, args, env, MachineFacts{});
}

TEST(SecurityOptionsTest, FilesForTlsAreTakenAsTheyAreGiven) {
  const LaunchPlan plan =
      PlanOf({"--tls-cert", "c.pem", "--tls_key=k.pem", "s"}, {{"PET_TLS_CA", "ca.pem"}}).value();
  EXPECT_EQ(plan.tls_certificate, "c.pem");
  EXPECT_EQ(plan.tls_key, "k.pem");
  EXPECT_EQ(plan.tls_ca, "ca.pem");
  EXPECT_FALSE(plan.takes_anybody);
  const LaunchPlan agent =
      PlanOf({"--rdzv-endpoint=h:1", "--tls-ca=ca.pem", "s"}, {}, CliProgram::kFsdpAgent).value();
  EXPECT_EQ(agent.tls_ca, "ca.pem");
  EXPECT_EQ(PlanOf({"--tls-cert=", "s"}).value().tls_certificate, "");
}

TEST(SecurityOptionsTest, ACertificateComesWithItsKey) {
  for (const char* option : {"--tls-cert=c", "--tls-key=k"}) {
    const absl::Status status = PlanOf({option, "s"}).status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-cert and --tls-key"));
  }
}

TEST(SecurityOptionsTest, WithoutATokenOneIsWarnedWhereOthersMayJoin) {
  const auto is_warning = HasSubstr("--no-token: whoever can connect");
  EXPECT_THAT(PlanOf({"--no-token", "--nnodes=2", "s"}).value().warnings, ElementsAre(is_warning));
  EXPECT_THAT(PlanOf({"s"}, {{"PET_NO_TOKEN", "1"}, {"PET_NNODES", "2"}}).value().warnings,
              ElementsAre(is_warning));
  EXPECT_THAT(PlanOf({"--no-token", "s"}).value().warnings, IsEmpty());
  EXPECT_TRUE(PlanOf({"--no-token", "s"}).value().takes_anybody);
  const absl::Status both = PlanOf({"--no-token", "--token-file=t", "s"}).status();
  EXPECT_TRUE(absl::IsOutOfRange(both)) << both;
}

}  // namespace
}  // namespace fsdprun
