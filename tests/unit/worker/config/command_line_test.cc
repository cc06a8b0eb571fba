#include "worker/config/command_line.h"

#include <gtest/gtest.h>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

std::string RefusalOfFlags(const std::vector<std::string>& arguments) {
  try {
    ParseCommandLine(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CommandLineTest, BadArgumentsAreNamed) {
  EXPECT_EQ(RefusalOfFlags({"--confg", "x"}),
            "--confg: expected a known argument (see fsdp-train --help)");
  EXPECT_EQ(RefusalOfFlags({"train.json"}),
            "train.json: expected a known argument (see fsdp-train --help)");
  EXPECT_TRUE(RefusalOfFlags({}).starts_with("nothing to do: give --config FILE"))
      << RefusalOfFlags({});
  EXPECT_EQ(RefusalOfFlags({"--config"}), "--config: expected a JSON file");
  EXPECT_EQ(RefusalOfFlags({"--print-config=yes"}), "--print-config=yes: expected no value");
  EXPECT_EQ(RefusalOfFlags({"--bytes", "5"}),
            "--bytes: expected a known argument (see fsdp-train --help)");
  EXPECT_EQ(RefusalOfFlags({"sample", "--config", "c"}),
            "sample: --checkpoint is missing: expected a checkpoint directory");
  EXPECT_EQ(RefusalOfFlags({"sample", "--checkpoint", "d", "--bytes", "-1"}),
            "--bytes -1: expected an integer from 0 to 1000000");
  EXPECT_EQ(RefusalOfFlags({"sample", "--checkpoint", "d", "--temperature", "hot"}),
            "--temperature hot: expected a number from 0 to 100");
  EXPECT_EQ(RefusalOfFlags({"sample", "--checkpoint", "d", "--temperature", "nan"}),
            "--temperature nan: expected a number from 0 to 100");
}

TEST(CommandLineTest, BothSpellingsOfAValueAreTheSame) {
  const CommandLine line =
      ParseCommandLine({"--config=a=b.json", "--set", "train.steps=5", "--set=data.seed=1"});
  EXPECT_EQ(line.command, Command::kTrain);
  EXPECT_EQ(line.config, "a=b.json");
  EXPECT_EQ(line.overrides, (std::vector<std::string>{"train.steps=5", "data.seed=1"}));
}

TEST(CommandLineTest, SampleTakesItsFlags) {
  const CommandLine line =
      ParseCommandLine({"sample", "--checkpoint", "d", "--config", "c", "--prompt", "--odd",
                        "--bytes", "10", "--temperature", "0.5", "--seed", "7"});
  EXPECT_EQ(line.command, Command::kSample);
  EXPECT_EQ(line.sample.checkpoint, "d");
  EXPECT_EQ(line.sample.prompt, "--odd");
  EXPECT_EQ(line.sample.bytes, 10);
  EXPECT_EQ(line.sample.temperature, 0.5);
  EXPECT_EQ(line.sample.seed, 7u);
}

TEST(CommandLineTest, HelpAndVersionWin) {
  EXPECT_EQ(ParseCommandLine({"--help"}).command, Command::kHelp);
  EXPECT_EQ(ParseCommandLine({"sample", "--help"}).command, Command::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"}).command, Command::kVersion);
  EXPECT_EQ(ParseCommandLine({"--print-config"}).command, Command::kPrintConfig);
  EXPECT_NE(HelpText().find("micro_batch_size"), std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
