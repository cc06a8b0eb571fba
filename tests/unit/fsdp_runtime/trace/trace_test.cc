// What a training leaves in a trace.

#include <fsdp/optim.h>
#include <fsdp/trace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/src/trace/trace_file.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/fsdp_runtime/engine/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    std::string name = (std::filesystem::temp_directory_path() / "fsdp_trace_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TraceTest() override { fsdprun::RemoveFolder(folder_); }

  std::string path() const { return (folder_ / "trace.json").string(); }
  json events() const {
    std::ifstream file(path());
    return json::parse(file)["traceEvents"];
  }

  std::filesystem::path folder_;
};

void train(const ToyConfig& config, int64_t ranks, int steps, MixedPrecisionPolicy policy = {}) {
  run_ranks(ranks, [&](Rank& rank) {
    Unit<ToyModel> model = make_sharded(config, {.mesh = rank.mesh, .mp_policy = policy});
    const FSDPModule root = fsdp_module(*model);
    root.init_parameters(initialise);
    AdamW optimizer(root, {});
    for (int step = 0; step < steps; ++step) {
      const at::Tensor tokens = tokens_of(config, step, rank.rank);
      loss_of(model(tokens), tokens).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

std::map<std::string, int> count_by_name(const json& events, const std::string& phase) {
  std::map<std::string, int> counts;
  for (const json& event : events) {
    if (event["ph"] == phase) {
      ++counts[event["name"].get<std::string>()];
    }
  }
  return counts;
}

TEST_F(TraceTest, HasEachUnitsForwardAndBackward) {
  start_trace({.path = path()});
  train({.blocks = 2}, /*ranks=*/2, /*steps=*/3);
  stop_trace();
  const std::map<std::string, int> spans = count_by_name(events(), "X");
  for (const char* name : {"forward root", "forward block0", "forward block1", "backward root",
                           "backward block0", "backward block1"}) {
    EXPECT_EQ(spans.count(name) ? spans.at(name) : 0, 6) << name << ": 2 ranks, 3 steps";
  }
}

TEST_F(TraceTest, CollectivesBeginAndEndWithTheirUnitAndRanks) {
  start_trace({.path = path()});
  train({.blocks = 2}, /*ranks=*/2, /*steps=*/2);
  stop_trace();
  std::map<int64_t, double> begun;
  std::set<std::string> names;
  for (const json& event : events()) {
    if (event["ph"] == "b") {
      begun[event["id"]] = event["ts"];
      names.insert(event["name"]);
      EXPECT_TRUE(event["args"]["bytes"].is_number());
    } else if (event["ph"] == "e") {
      ASSERT_EQ(begun.count(event["id"]), 1u);
      EXPECT_GE(event["ts"].get<double>(), begun[event["id"]]);
      begun.erase(event["id"]);
    }
  }
  EXPECT_TRUE(begun.empty()) << begun.size() << " have not ended";
  EXPECT_THAT(names,
              IsSupersetOf({"all_gather for unit block0", "all_gather for unit block1",
                            "reduce_scatter for unit block0", "reduce_scatter for unit block1",
                            "reduce_scatter for the root unit"}));
}

// Of one rank, whose parameters need memory because they are cast.
TEST_F(TraceTest, MemoryInUseComesAndGoes) {
  start_trace({.path = path()});
  train({.blocks = 2}, /*ranks=*/1, /*steps=*/2,
        {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat});
  stop_trace();
  std::map<std::string, uint64_t> last, most;
  for (const json& event : events()) {
    if (event["ph"] == "C") {
      const uint64_t bytes = event["args"]["bytes"];
      last[event["name"]] = bytes;
      most[event["name"]] = std::max(most[event["name"]], bytes);
    }
  }
  ASSERT_FALSE(most.empty());
  for (const auto& [name, bytes] : last) {
    EXPECT_EQ(bytes, 0u) << name;
    EXPECT_GT(most[name], 0u) << name;
  }
}

TEST_F(TraceTest, HasRangesOfTheProgram) {
  { const TraceRange before("before"); }
  start_trace({.path = path(), .rank = 5});
  { const TraceRange range("data"); }
  stop_trace();
  const json all = events();
  EXPECT_EQ(count_by_name(all, "X"), (std::map<std::string, int>{{"data", 1}}));
  EXPECT_EQ(all.back()["pid"], 5);
}

TEST_F(TraceTest, OneAtATime) {
  EXPECT_THAT(refusal([] { start_trace({}); }), HasSubstr("give the path"));
  start_trace({.path = path()});
  EXPECT_THAT(refusal([] { start_trace({.path = "/tmp/other"}); }),
              HasSubstr("a trace is running, which will be written to " + path()));
  stop_trace();
  stop_trace();  // there is none
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(TraceTest, OfRanksThatAreThreadsTheFirstStartsThatOfTheEnvironment) {
  constexpr int kRanks = 4;
  const std::filesystem::path traces = folder_ / "traces";
  ASSERT_EQ(::setenv("FSDP_TRACE_DIR", traces.c_str(), 1), 0);
  for (int round = 0; round < 50; ++round) {
    std::barrier together(kRanks);
    std::vector<std::string> errors(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        together.arrive_and_wait();
        try {
          trace::start_from_environment(rank);
        } catch (const c10::Error& error) {
          errors[static_cast<size_t>(rank)] = error.what_without_backtrace();
        }
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    stop_trace();
    EXPECT_THAT(errors, ::testing::Each("")) << "round " << round;
  }
  ::unsetenv("FSDP_TRACE_DIR");
  EXPECT_FALSE(std::filesystem::is_empty(traces));
}

TEST_F(TraceTest, FolderThatIsNotThereIsNamed) {
  const std::string file = (folder_ / "none" / "trace.json").string();
  start_trace({.path = file});
  EXPECT_THAT(refusal([] { stop_trace(); }), HasSubstr(file));
  start_trace({.path = path()});  // it has ended all the same
  stop_trace();
}

}  // namespace
}  // namespace fsdp::testing
