// What is made from the option table for people and shells.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/completions.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/man_page.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DocumentsTest, EveryOptionIsInAllOfThem) {
  for (const OptionSpec& option : OptionTable()) {
    const CliProgram program = option.agent_only ? CliProgram::kFsdpAgent : CliProgram::kFsdprun;
    const std::string help = HelpText(program);
    const std::string page = ManPage(program);
    const std::string bash = CompletionScript(program, Shell::kBash);
    const std::string zsh = CompletionScript(program, Shell::kZsh);
    const std::string fish = CompletionScript(program, Shell::kFish);
    const std::string name = option.name;
    const std::string other = absl::StrReplaceAll(name, {{"-", "_"}});
    const std::string spellings =
        name == other ? absl::StrCat("--", name) : absl::StrCat("--", name, ", --", other);
    EXPECT_THAT(help, HasSubstr(absl::StrCat(spellings, option.takes_value() ? " " : "\n")));
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\\-\\-", absl::StrReplaceAll(name, {{"-", "\\-"}}))));
    EXPECT_THAT(bash, ::testing::ContainsRegex(absl::StrCat("[ ']--", name, "[ ']")));
    EXPECT_THAT(zsh, HasSubstr(absl::StrCat("'--", name, option.takes_value() ? "=[" : "[")));
    EXPECT_THAT(fish, HasSubstr(absl::StrCat(" -l ", name, " ")));
    // The option's own line begins with it, perhaps after the letter.
    const std::string agents = HelpText(CliProgram::kFsdpAgent);
    const std::string end = option.takes_value() ? " " : "\n";
    const bool has_line =
        absl::StrContains(agents, absl::StrCat("\n  ", spellings, end)) ||
        absl::StrContains(
            agents, absl::StrCat("\n  -", std::string(1, option.letter), ", ", spellings, end));
    EXPECT_EQ(has_line, Offers(CliProgram::kFsdpAgent, option)) << name;
    EXPECT_EQ(Offers(CliProgram::kFsdprun, option), !option.agent_only) << name;
  }
}

TEST(DocumentsTest, ManPageHasNoLineThatTroffWouldTakeForARequest) {
  for (const CliProgram program :
       {CliProgram::kFsdprun, CliProgram::kFsdpAgent, CliProgram::kChaos}) {
    for (absl::string_view line : absl::StrSplit(ManPage(program), '\n')) {
      if (absl::StartsWith(line, ".") || absl::StartsWith(line, "'")) {
        EXPECT_THAT(std::string(line), ::testing::MatchesRegex("\\.(TH|SH|SS|TP|PP|EX|EE)( .*)?"));
      }
    }
  }
}

TEST(DocumentsTest, CompletionsSayTheFirstSentenceOfTheHelp) {
  const std::string script = CompletionScript(CliProgram::kFsdprun, Shell::kFish);
  EXPECT_THAT(script, HasSubstr("-l standalone -d 'One node, a random run id, free ports'\n"));
  EXPECT_THAT(script, HasSubstr("{stdout.log,stderr.log,error.json} are written'\n"));
}

TEST(DocumentsTest, CompletionsOfFsdprunHaveThoseOfItsCommand) {
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = CompletionScript(CliProgram::kFsdprun, shell);
    for (const OptionSpec& option : OptionsOf(CliProgram::kChaos)) {
      EXPECT_THAT(script, HasSubstr(option.name));
    }
  }
}

TEST(DocumentsTest, CompletionsOfTheAgentAreItsOwn) {
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = CompletionScript(CliProgram::kFsdpAgent, shell);
    EXPECT_THAT(script, HasSubstr("fsdp-agent"));
    EXPECT_THAT(script, Not(HasSubstr("standalone")));
  }
}

TEST(DocumentsTest, CompletionsOfFsdpctlAreThoseOfItsCommands) {
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = ControlCompletionScript(shell);
    for (const CliProgram program : kControlPrograms) {
      for (const OptionSpec& option : OptionsOf(program)) {
        EXPECT_THAT(script, HasSubstr(option.name));
      }
    }
    EXPECT_THAT(script, HasSubstr("submit grow"));
    EXPECT_THAT(
        script,
        HasSubstr(
            "ps status top events logs stacks checkpoint restart drain scale stop slurm doctor "
            "ckpt"));
    for (const char* left :
         {"FIRST", "GROUP", "NAMES", "IDENTIFIER", "SKIPPED", "STOP", "CHECK", "NEXT"}) {
      EXPECT_FALSE(std::regex_search(script, std::regex(absl::StrCat("\\b", left, "\\b")))) << left;
    }
  }
}

}  // namespace
}  // namespace fsdprun
