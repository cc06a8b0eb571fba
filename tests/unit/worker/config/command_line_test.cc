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
  EXPECT_EQ(RefusalOfFlags({"--set"}), "--set: expected section.key=value");
  EXPECT_EQ(RefusalOfFlags({"sample", "--print-config"}),
            "--print-config: expected a known argument (see fsdp-train sample --help)");
  EXPECT_EQ(RefusalOfFlags({"sample", "--checkpoint", "d", "train.json"}),
            "train.json: expected a known argument (see fsdp-train sample --help)");
  EXPECT_EQ(RefusalOfFlags({"--config", "c", "sample", "--checkpoint", "d"}),
            "--config: expected after sample");
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

TEST(CommandLineTest, TrainIsTheDefault) {
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"--config", "c", "--set", "a.b=[1, 2]", "--preset", "p"},
        {"train", "--config", "c", "--set", "a.b=[1, 2]", "--preset", "p"},
        {"--config", "c", "train", "--set", "a.b=[1, 2]", "--preset", "p"}}) {
    const CommandLine line = ParseCommandLine(given);
    EXPECT_EQ(line.command, Command::kTrain);
    EXPECT_EQ(line.config, "c");
    EXPECT_EQ(line.preset, "p");
    EXPECT_EQ(line.overrides, (std::vector<std::string>{"a.b=[1, 2]"}));
  }
}

TEST(CommandLineTest, TheLastOfSeveralValuesCounts) {
  EXPECT_EQ(ParseCommandLine({"--config", "a", "--config", "b"}).config, "b");
}

TEST(CommandLineTest, ValuesMayBeEmptyOrLookLikeSomethingElse) {
  const auto prompt = [](const std::vector<std::string>& words) {
    std::vector<std::string> line = {"sample", "--checkpoint", "d"};
    line.insert(line.end(), words.begin(), words.end());
    return ParseCommandLine(line).sample.prompt;
  };
  EXPECT_EQ(prompt({"--prompt", ""}), "");
  EXPECT_EQ(prompt({"--prompt=", "--seed", "1"}), "");
  EXPECT_EQ(prompt({"--prompt", "train"}), "train");
  EXPECT_EQ(prompt({"--prompt", "[a, b]"}), "[a, b]");
  EXPECT_EQ(prompt({"--prompt", "--help"}), "--help");
}

TEST(CommandLineTest, ConfigPrintsInOneOfThreeWays) {
  EXPECT_EQ(ParseCommandLine({"config", "--config", "c"}).command, Command::kPrintConfig);
  EXPECT_EQ(ParseCommandLine({"config", "--default"}).command, Command::kPrintDefaultConfig);
  EXPECT_EQ(ParseCommandLine({"config", "--list-presets"}).command, Command::kListPresets);
}

TEST(CommandLineTest, SampleTakesItsFlags) {
  const CommandLine line =
      ParseCommandLine({"sample", "--checkpoint", "d", "--config", "c", "--prompt", "--odd",
                        "--bytes", "10", "--temperature", "0.5", "--seed", "7"});
  EXPECT_EQ(line.command, Command::kSample);
  EXPECT_EQ(line.sample.checkpoint, "d");
  EXPECT_EQ(line.sample.prompt, "--odd");
  EXPECT_EQ(line.sample.tokens, 10);
  EXPECT_EQ(line.sample.temperature, 0.5);
  EXPECT_EQ(line.sample.seed, 7u);
}

TEST(CommandLineTest, HelpAndVersionWin) {
  EXPECT_EQ(ParseCommandLine({"--help"}).command, Command::kHelp);
  EXPECT_EQ(ParseCommandLine({"sample", "--help"}).command, Command::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"}).command, Command::kVersion);
  EXPECT_EQ(ParseCommandLine({"--print-config"}).command, Command::kPrintConfig);
}

TEST(CommandLineTest, EveryCommandHasItsOwnHelp) {
  const auto help = [](const std::vector<std::string>& line) {
    return ParseCommandLine(line).help;
  };
  for (const char* part : {"micro_batch_size", "sample", "config", "--preset NAME", "Exit codes"}) {
    EXPECT_NE(help({"--help"}).find(part), std::string::npos) << part;
  }
  EXPECT_NE(help({"train", "-h"}).find("micro_batch_size"), std::string::npos);
  EXPECT_NE(help({"sample", "--help"}).find("--temperature T"), std::string::npos);
  EXPECT_EQ(help({"sample", "--help"}).find("--preset"), std::string::npos);
  EXPECT_NE(help({"config", "--help"}).find("--list-presets"), std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
