#include "worker/config/estimate_options.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/config/command_line.h"

namespace fsdprun::worker {
namespace {

TEST(EstimateOptionsTest, BytesHaveUnits) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"1", 1},
      {"4096", 4096},
      {"17B", 17},
      {"2KB", 2000},
      {"2KiB", 2048},
      {"1.5 MB", 1'500'000},
      {"1MiB", 1 << 20},
      {"80GiB", int64_t{80} << 30},
      {"50GB", 50'000'000'000},
      {"1TB", 1'000'000'000'000},
      {"0.5TiB", int64_t{1} << 39},
  };
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(ParseByteCount(text), bytes) << text;
  }
}

TEST(EstimateOptionsTest, WhatIsNoNumberOfBytesIsRefused) {
  for (const char* text : {"", "GiB", "0", "0.4", "-1", "80G", "80gib", "1e3", "1 2", "1..2GB",
                           "nan", "inf", "80GiBs", "2000000TiB", "99999999999999999999999"}) {
    EXPECT_EQ(ParseByteCount(text), std::nullopt) << text;
  }
}

std::string RefusalOfEstimate(const std::vector<std::string>& arguments) {
  std::vector<std::string> line = {"estimate", "--config", "c"};
  line.insert(line.end(), arguments.begin(), arguments.end());
  try {
    ParseCommandLine(line);
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(EstimateOptionsTest, WrongValuesAreNamed) {
  EXPECT_EQ(RefusalOfEstimate({"--world", "0"}),
            "--world 0: expected an integer from 1 to 1048576");
  EXPECT_EQ(RefusalOfEstimate({"--world", "8x"}),
            "--world 8x: expected an integer from 1 to 1048576");
  EXPECT_EQ(RefusalOfEstimate({"--device-memory=80"}), "accepted");
  EXPECT_EQ(RefusalOfEstimate({"--device-memory=80G"}),
            "--device-memory 80G: expected a number of bytes such as 80GiB");
  EXPECT_EQ(RefusalOfEstimate({"--mfu", "1.1"}), "--mfu 1.1: expected a number > 0, up to 1");
  EXPECT_EQ(RefusalOfEstimate({"--mfu", "nan"}), "--mfu nan: expected a number > 0, up to 1");
  EXPECT_EQ(RefusalOfEstimate({"--peak-flops", "0"}), "--peak-flops 0: expected a number > 0");
  EXPECT_EQ(RefusalOfEstimate({"--bandwidth", "fast"}),
            "--bandwidth fast: expected a number of bytes such as 80GiB");
  EXPECT_EQ(RefusalOfEstimate({"--print-config"}),
            "--print-config: expected a known argument (see fsdp-train estimate --help)");
}

TEST(EstimateOptionsTest, EveryOptionIsTaken) {
  const CommandLine line = ParseCommandLine(
      {"estimate", "--config",     "c",      "--set",    "a.b=1", "--preset",
       "p",        "--world",      "64",     "--device", "H100",  "--device-memory",
       "80GiB",    "--peak-flops", "989e12", "--mfu",    "0.5",   "--bandwidth",
       "25GB",     "--json"});
  EXPECT_EQ(line.command, Command::kEstimate);
  EXPECT_EQ(line.config, "c");
  EXPECT_EQ(line.preset, "p");
  EXPECT_EQ(line.overrides, std::vector<std::string>{"a.b=1"});
  const EstimateRequest& request = line.estimate;
  EXPECT_EQ(request.ranks, 64);
  EXPECT_EQ(request.device, "H100");
  EXPECT_EQ(request.device_memory, int64_t{80} << 30);
  EXPECT_EQ(request.peak_flops, 989e12);
  EXPECT_EQ(request.mfu, 0.5);
  EXPECT_EQ(request.bandwidth, 25e9);
  EXPECT_TRUE(request.is_json);
}

TEST(EstimateOptionsTest, ACheckIsACommandOrAFlagOfTraining) {
  for (const std::vector<std::string>& line : {std::vector<std::string>{"check", "--config", "c"},
                                               {"--config", "c", "--dry-run"},
                                               {"train", "--config", "c", "--dry-run"}}) {
    EXPECT_EQ(ParseCommandLine(line).command, Command::kCheck);
  }
  EXPECT_EQ(ParseCommandLine({"check", "--config", "c", "--world=3"}).estimate.ranks, 3);
}

}  // namespace
}  // namespace fsdprun::worker
