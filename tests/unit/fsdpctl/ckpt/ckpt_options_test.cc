#include "fsdpctl/ckpt/ckpt_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fsdprun::ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

absl::Status Refusal(CliProgram program, const Words& words) {
  return ReadCkptOptions(program, words).status();
}

TEST(CkptOptionsTest, UsageErrors) {
  for (const Words& words :
       {Words{}, Words{"a", "b"}, Words{"a", "--nothing"}, Words{"a", "--force"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Refusal(CliProgram::kCkptVerify, words)));
  }
  for (const std::string name : {"config", "max-shard-size", "tokenizer-dir"}) {
    for (const std::string format : {"pt", "adapter"}) {
      const absl::Status status =
          Refusal(CliProgram::kCkptExport, {"a", "b", "--format=" + format, "--" + name, "5GB"});
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("--" + name + " has no meaning with --format " + format));
    }
  }
  EXPECT_THAT(std::string(Refusal(CliProgram::kCkptConvert, {"a", "b"}).message()),
              HasSubstr("--map"));
}

TEST(CkptOptionsTest, ValuesThatMeanNothing) {
  for (const char* option : {"--format=tar", "--dtype=int8", "--max-shard-size=0"}) {
    const absl::Status status = Refusal(CliProgram::kCkptExport, {"a", "b", option});
    EXPECT_FALSE(status.ok()) << option;
    EXPECT_FALSE(absl::IsInternal(status)) << option;
  }
}

TEST(CkptOptionsTest, OptionsStandAnywhere) {
  const absl::StatusOr<CkptOptions> options = ReadCkptOptions(
      CliProgram::kCkptExport,
      {"--format", "hf", "a", "--max_shard_size=5GB", "b", "--force", "--dtype=bfloat16"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->operands, ElementsAre("a", "b"));
  EXPECT_EQ(options->format, ExportFormat::kHuggingFace);
  EXPECT_EQ(options->shard_bytes_max, 5'000'000'000);
  EXPECT_EQ(options->dtype, "bfloat16");
  EXPECT_TRUE(options->force);
  EXPECT_FALSE(options->is_json);
  EXPECT_EQ(ReadCkptOptions(CliProgram::kCkptExport, {"a", "b", "--format=pt"})->format,
            ExportFormat::kTorchFile);
  const auto adapter =
      ReadCkptOptions(CliProgram::kCkptExport, {"a", "b", "--format=adapter", "--base=model"});
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->format, ExportFormat::kAdapter);
  EXPECT_EQ(adapter->base, "model");
}

TEST(CkptOptionsTest, HelpNeedsNoPaths) {
  EXPECT_EQ(ReadCkptOptions(CliProgram::kCkptDiff, {"--help"})->request, Request::kHelp);
}

}  // namespace
}  // namespace fsdprun::ckpt
