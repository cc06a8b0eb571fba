#include "launcher/cli/option_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

std::string Found(const char* written, CliProgram program = CliProgram::kFsdprun) {
  const auto option = FindOption(program, written);
  return option.ok() ? (*option)->name : std::string(option.status().message());
}

TEST(OptionLookupTest, PrefixMeansWhatItMeansToTorchrun) {
  EXPECT_EQ(Found("nproc_per"), "nproc-per-node");
  EXPECT_EQ(Found("nproc"), "nproc-per-node");
  EXPECT_EQ(Found("max"), "max-restarts");
  EXPECT_EQ(Found("mod"), "module");
  EXPECT_EQ(Found("no-"), "no-python");
  EXPECT_EQ(Found("h"), "help");
  EXPECT_EQ(Found("start"), "start-method");
  EXPECT_THAT(Found("s"),
              HasSubstr("it could be --standalone, --signals-to-handle, --start-method"));
  EXPECT_THAT(Found("no"), HasSubstr("ambiguous"));
}

TEST(OptionLookupTest, PrefixOfTorchrunsOptionIsNeverOneOfOurs) {
  // Ours: token-file, version, dry-run, man.
  EXPECT_EQ(Found("t"), "tee");
  EXPECT_EQ(Found("v"), "virtual-local-rank");
  EXPECT_THAT(Found("d"), HasSubstr("--duplicate-stdout-filters, --duplicate-stderr-filters"));
  EXPECT_THAT(Found("ma"), HasSubstr("ambiguous"));
  EXPECT_EQ(Found("man"), "man");
  EXPECT_EQ(Found("to"), "token-file");
  EXPECT_EQ(Found("ve"), "version");
  EXPECT_EQ(Found("sh"), "shutdown-timeout");
}

TEST(OptionLookupTest, NoOptionOfOursHidesAPrefixOfTorchruns) {
  std::vector<std::string> torchruns;
  for (const OptionSpec& option : OptionTable()) {
    if (option.family == OptionFamily::kTorchrun) {
      torchruns.emplace_back(option.name);
    }
  }
  for (const OptionSpec& option : OptionTable()) {
    for (const std::string& name : torchruns) {
      EXPECT_FALSE(option.family == OptionFamily::kOwn && absl::StartsWith(name, option.name))
          << option.name << " hides a prefix of " << name;
    }
  }
}

TEST(OptionLookupTest, UnknownNamesGetTheNearest) {
  EXPECT_THAT(Found("nproc-pre-node"), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(Found("zzzzzzzzzz"), HasSubstr("see fsdprun --help"));
  EXPECT_THAT(Found("standalone", CliProgram::kFsdpAgent), HasSubstr("unknown option"));
}

TEST(OptionLookupTest, WordsLookLikeOptionsAsToArgparse) {
  for (const char* word :
       {"-x", "--x", "--", "--nnodes=2", "--log-dir=a b", "-1x", "-1.", "-1e5"}) {
    EXPECT_TRUE(LooksLikeOption(word)) << word;
  }
  for (const char* word : {"", "-", "x", "-1", "-1.5", "-.5", "-a b", "a=-b"}) {
    EXPECT_FALSE(LooksLikeOption(word)) << word;
  }
}

}  // namespace
}  // namespace fsdprun
