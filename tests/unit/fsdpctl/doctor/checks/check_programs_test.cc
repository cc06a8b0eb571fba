#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

TEST(CheckPythonTest, WithAndWithoutPyTorch) {
  PythonFacts facts{.name = "python3",
                    .path = "/usr/bin/python3",
                    .version = "3.11.2",
                    .torch = "2.11.0",
                    .py_spy = "/usr/bin/py-spy"};
  EXPECT_EQ(WorstOf(CheckPython(facts)), Severity::kOk);
  facts.torch.clear();
  EXPECT_EQ(SeverityOf(CheckPython(facts), "torch"), Severity::kNote);
  facts.torch = "2.11.0+cpu";
  EXPECT_EQ(SeverityOf(CheckPython(facts), "torch"), Severity::kOk);
  facts.has_gpus = true;
  EXPECT_EQ(SeverityOf(CheckPython(facts), "torch"), Severity::kWarning);
  facts.py_spy.clear();
  EXPECT_EQ(SeverityOf(CheckPython(facts), "py_spy"), Severity::kNote);
}

TEST(CheckPythonTest, InterpreterThatIsNotThereOrDoesNotAnswer) {
  EXPECT_EQ(WorstOf(CheckPython({.name = "python3"})), Severity::kNote);
  const std::vector<Finding> findings =
      CheckPython({.name = "python3", .path = "/nfs/python3", .trouble = "no answer within 3 s"});
  EXPECT_EQ(WorstOf(findings), Severity::kNote);
  EXPECT_THAT(FindingOf(findings, "interpreter").found, HasSubstr("no answer"));
}

InstallationFacts Whole() {
  return {.release = "1.0",
          .has_keeper = true,
          .has_launcher = true,
          .folder = "/opt/bin",
          .launcher_release = "1.0",
          .secret_path = "/users/a/.config/fsdprun/secret",
          .has_secret = true};
}

TEST(CheckInstallationTest, ProgramsOfOneBuild) {
  EXPECT_EQ(WorstOf(CheckInstallation(Whole())), Severity::kOk);
  InstallationFacts facts = Whole();
  facts.has_keeper = false;
  EXPECT_THAT(FindingOf(CheckInstallation(facts), "programs").found, HasSubstr("fsdp-keeper"));
  facts = Whole();
  facts.launcher_release = "0.9";
  EXPECT_EQ(SeverityOf(CheckInstallation(facts), "programs"), Severity::kProblem);
}

TEST(CheckInstallationTest, Token) {
  const auto severity = [](const InstallationFacts& facts) {
    return SeverityOf(CheckInstallation(facts), "token");
  };
  InstallationFacts facts = Whole();
  facts.secret_error = "the secret of this user can be read or written by other users";
  EXPECT_EQ(severity(facts), Severity::kProblem);
  facts.token_length = 64;  // Then the secret does not count.
  EXPECT_EQ(severity(facts), Severity::kOk);
  facts.token_length = 4;
  EXPECT_EQ(severity(facts), Severity::kWarning);
  facts.token_error = "cannot be read";
  EXPECT_EQ(severity(facts), Severity::kProblem);
  facts.takes_anybody = true;
  EXPECT_EQ(severity(facts), Severity::kNote);
}

}  // namespace
}  // namespace fsdprun::doctor
