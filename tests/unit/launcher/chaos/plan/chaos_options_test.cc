#include "launcher/chaos/plan/chaos_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/help_text.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ChaosOptionsTest, WhatMeansNothingIsRefused) {
  for (const auto& [args, word] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--faults", "0"}, "--faults"},
           {{"--every", "soon"}, "--every"},
           {{"--length", "5:2"}, "--length"},
           {{"--kinds", "kill,shoot"}, "shoot"},
           {{"--targets", "node"}, "--targets"},
           {{"--seed", "x"}, "--seed"},
           {{"--fill-leave", "-1"}, "--fill-leave"},
           {{"--nodes", "2"}, "--nodes"},
           {{"--job", "a", "--", "fsdprun", "x"}, "--job"},
           {{"--verify", "true"}, "--until-end"},
           {{"--schedule", "f", "--faults", "3"}, "--faults"},
           {{"--unknown"}, "--unknown"}}) {
    const absl::StatusOr<ChaosOptions> options = ReadChaosOptions(args);
    ASSERT_FALSE(options.ok()) << args.front();
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(word));
  }
}

TEST(ChaosOptionsTest, WhatACommandLineSays) {
  const absl::StatusOr<ChaosOptions> options =
      ReadChaosOptions({"--faults=200", "--every", "500ms", "--kinds", "kill,stop",
                        "--targets=agent", "--length", "1:2s", "--seed", "42", "--verify", "true",
                        "--json", "--", "fsdprun", "--nnodes=2", "t.py"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->faults, 200);
  EXPECT_EQ(options->every, milliseconds(500));
  EXPECT_THAT(options->kinds, ElementsAre(FaultKind::kKill, FaultKind::kStop));
  EXPECT_THAT(options->targets, ElementsAre(FaultTarget::kAgent));
  EXPECT_EQ(options->length, (LengthRange{seconds(1), seconds(2)}));
  EXPECT_EQ(options->seed, 42u);
  EXPECT_TRUE(options->is_json);
  EXPECT_THAT(options->command, ElementsAre("fsdprun", "--nnodes=2", "t.py"));
}

TEST(ChaosOptionsTest, ADurationHasNoBoundOfNumber) {
  EXPECT_EQ(ReadChaosOptions({})->faults, 20);
  EXPECT_EQ(ReadChaosOptions({"--duration", "1h"})->faults, 3601);
  EXPECT_EQ(ReadChaosOptions({"--duration", "1h", "--every", "0"})->faults, 10'000);
  EXPECT_EQ(ReadChaosOptions({"--duration", "1h", "--faults", "3"})->faults, 3);
}

absl::Status StatusOfPlan(const std::vector<std::string>& args, Form form,
                          const std::optional<std::string>& schedule = std::nullopt) {
  const absl::StatusOr<ChaosOptions> options = ReadChaosOptions(args);
  return options.ok() ? PlanFaults(*options, form, schedule, 1).status() : options.status();
}

TEST(ChaosOptionsTest, AFaultThatCannotBeDoneSaysWhatItNeeds) {
  for (const auto& [args, form, word] :
       std::vector<std::tuple<std::vector<std::string>, Form, const char*>>{
           {{"--kinds", "partition", "--targets", "agent"}, Form::kAttached, "--nnodes 2"},
           {{"--kinds", "fill"}, Form::kNodes, "--fill DIR"},
           {{"--kinds", "corrupt"}, Form::kNodes, "--corrupt DIR"},
           {{"--kinds", "kill", "--targets", "agent"}, Form::kOneLauncher, "one launcher"},
           {{"--kinds", "stop", "--targets", "keeper"}, Form::kNodes, "suits none"}}) {
    EXPECT_THAT(std::string(StatusOfPlan(args, form).message()), HasSubstr(word));
  }
  EXPECT_THAT(std::string(StatusOfPlan({}, Form::kAttached, "5 delay agent 3").message()),
              HasSubstr("--schedule: delay needs"));
  EXPECT_TRUE(StatusOfPlan({}, Form::kAttached, "5 kill agent").ok());
  EXPECT_TRUE(StatusOfPlan({"--targets", "agent"}, Form::kAttached).ok());
}

TEST(ChaosOptionsTest, NobodyThatIsNotStartedAgainIsKilledUnasked) {
  const FaultPlan plan =
      *PlanFaults(*ReadChaosOptions({"--faults", "200"}), Form::kAttached, std::nullopt, 1);
  EXPECT_EQ(plan.faults.size(), 200u);
  for (const PlannedFault& fault : plan.faults) {
    EXPECT_TRUE(fault.target == FaultTarget::kWorker || fault.target == FaultTarget::kKeeper);
  }
}

TEST(ChaosOptionsTest, HelpNamesEveryOption) {
  const std::string help = HelpText(CliProgram::kChaos);
  for (const OptionSpec& option : OptionsOf(CliProgram::kChaos)) {
    EXPECT_THAT(help, HasSubstr(std::string("--") + option.name));
  }
  EXPECT_THAT(help, ::testing::Not(HasSubstr("PET_")));
}

}  // namespace
}  // namespace fsdprun::chaos
