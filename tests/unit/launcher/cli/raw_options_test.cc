#include "launcher/cli/raw_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RawOptions Read(const std::vector<std::string>& args) {
  return OptionsOfArguments(CliProgram::kFsdprun, args).value();
}

std::string WhyNot(const std::vector<std::string>& args) {
  return std::string(OptionsOfArguments(CliProgram::kFsdprun, args).status().message());
}

TEST(RawOptionsTest, ValueIsTheNextWordUnlessThatIsAnOption) {
  EXPECT_EQ(Read({"--max-restarts", "-1", "s"}).Find("max-restarts")->text, "-1");
  EXPECT_EQ(Read({"--role", "-a b", "s"}).Find("role")->text, "-a b");
  EXPECT_EQ(Read({"--role=", "s"}).Find("role")->text, "");
  EXPECT_EQ(Read({"--role", "-", "s"}).Find("role")->text, "-");
  for (const char* next : {"--standalone", "-m", "-x", "--"}) {
    EXPECT_THAT(WhyNot({"--role", next, "s"}), HasSubstr("--role needs a value")) << next;
  }
  EXPECT_THAT(WhyNot({"--role"}), HasSubstr("--role needs a value: NAME"));
}

TEST(RawOptionsTest, SwitchesTakeNoValue) {
  EXPECT_THAT(WhyNot({"--standalone=1", "s"}), HasSubstr("takes no value, but '1' was given"));
  EXPECT_THAT(WhyNot({"-m=1", "s"}), HasSubstr("takes no value"));
  EXPECT_THAT(WhyNot({"-mx", "s"}), HasSubstr("unknown option -x"));
  const RawOptions both = Read({"-mh", "s"});
  EXPECT_TRUE(both.IsOn("module") && both.IsOn("help"));
}

TEST(RawOptionsTest, TheLastOfEqualOptionsCounts) {
  EXPECT_EQ(Read({"--role=a", "--role", "b", "s"}).Find("role")->text, "b");
}

TEST(RawOptionsTest, ProgramBeginsWithTheFirstWordThatIsNoOption) {
  EXPECT_THAT(Read({"-m", "-5", "--role", "x"}).program, ElementsAre("-5", "--role", "x"));
  EXPECT_THAT(Read({"--log-dir=a b", "s", "--"}).program, ElementsAre("s", "--"));
  EXPECT_THAT(Read({"--", "--role"}).program, ElementsAre("--role"));
}

TEST(RawOptionsTest, VariablesAreReadOnlyWhereTorchrunReadsThem) {
  const RawOptions options = OptionsOfEnvironment(CliProgram::kFsdprun, {{"PET_ROLE", "a"},
                                                                         {"PET_RDZV_ID", ""},
                                                                         {"PET_LOGS_SPECS", "mine"},
                                                                         {"PET_HELP", "1"},
                                                                         {"PET_VERSION", "1"}});
  EXPECT_EQ(options.values.size(), 1u);
  EXPECT_EQ(options.Find("role")->source, "PET_ROLE");
}

}  // namespace
}  // namespace fsdprun
