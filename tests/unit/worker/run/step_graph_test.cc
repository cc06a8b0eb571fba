// Steps that are launched as a whole, on the CPU: Note [A step as a graph].

#include "worker/run/step_graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/worker/data/data_folder.h"
#include "tests/unit/worker/run/observed_step.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/training_step.h"

namespace fsdprun::worker {
namespace {

using testing::HasSubstr;

/// Counts its steps, and changes nothing, so that only what is around it is looked at: of AdamW on
/// the CPU the host computes the factors.
class IdleOptimizer : public RunOptimizer {
 public:
  explicit IdleOptimizer(std::unique_ptr<RunOptimizer> real) : real_(std::move(real)) {}
  void SetRateFactor(double) override {}
  void Step(const at::Tensor& found_inf) override { EXPECT_EQ(found_inf.numel(), 1); }
  void ZeroGrad() override { real_->ZeroGrad(); }
  std::vector<OptimizerTensors> Tensors() const override { return real_->Tensors(); }
  std::vector<int64_t> ParameterSteps() const override { return real_->ParameterSteps(); }
  void SetParameterSteps(const std::vector<int64_t>& steps) override {
    real_->SetParameterSteps(steps);
  }

 private:
  const std::unique_ptr<RunOptimizer> real_;
};

/// A graph of the CPU that is watched.
class WatchedGraph : public fsdp::DeviceGraph {
 public:
  struct Log {
    int captures = 0;
    int replays = 0;
    std::function<void()> before_replay = [] {};
  };
  explicit WatchedGraph(Log& log) : log_(log) {}
  void capture(std::function<void()> work) override {
    ++log_.captures;
    graph_->capture(std::move(work));
  }
  void replay() override {
    ++log_.replays;
    log_.before_replay();
    graph_->replay();
  }

 private:
  Log& log_;
  const std::unique_ptr<fsdp::DeviceGraph> graph_ = fsdp::make_device_graph(at::kCPU);
};

/// As rank 1 of 2, which hears nothing of the other.
class SecondRank : public fsdp::Collectives {
 public:
  explicit SecondRank(std::shared_ptr<fsdp::Collectives> alone) : alone_(std::move(alone)) {}
  int64_t rank() const override { return 1; }
  int64_t size() const override { return 2; }
  std::string name() const override { return "second rank"; }
  fsdp::WorkPtr all_gather_into(at::Tensor output, at::Tensor input, fsdp::Issue issue) override {
    return alone_->all_gather_into(output, input, issue);
  }
  fsdp::WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, fsdp::ReduceOp op,
                                    fsdp::Issue issue) override {
    return alone_->reduce_scatter_into(output, input, op, issue);
  }
  fsdp::WorkPtr all_reduce(at::Tensor tensor, fsdp::ReduceOp op, fsdp::Issue issue) override {
    return alone_->all_reduce(tensor, op, issue);
  }
  fsdp::WorkPtr broadcast(at::Tensor tensor, int64_t root, fsdp::Issue issue) override {
    return alone_->broadcast(tensor, root, issue);
  }
  void barrier() override {}

 private:
  const std::shared_ptr<fsdp::Collectives> alone_;
};

/// A training of some steps, which may be graphs.
class Training {
 public:
  struct Options {
    Json changes = Json::object();
    Documents documents = Documents::kJoin;
    size_t lateness = 0;
    /// Before the parts of the training are made.
    std::function<void(SmallRun&)> prepare = [](SmallRun&) {};
  };
  Training(bool as_graphs, const Options& options, std::shared_ptr<const TrainData> data)
      : run(SmallLlama(), options.changes),
        batches(std::move(data), BatchOptions{.sampler = Sampler::kGlobal}) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    channel_.emplace(ends_[1]);
    stop_.emplace(*channel_);
    run.config.train.step_graph = as_graphs;
    options.prepare(run);
    vitals.SetObserver([this](contract::WorkerPhase phase) { phases.push_back(phase); });
    const RunContext context{run.config, run.world, *channel_, vitals, run.report, *stop_};
    keeper.emplace(context, run.group(), run.state);
    step.emplace(context, batches, run.state, *keeper, options.lateness,
                 [this](at::Device) { return std::make_unique<WatchedGraph>(graphs); });
    step->GoOnFromState();
  }
  ~Training() { close(ends_[0]); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void RequestStop() const {
    const std::string line = R"({"v":1,"type":"stop","grace_ms":60000})"
                             "\n";
    ASSERT_EQ(send(ends_[0], line.data(), line.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size()));
  }
  /// `before`: called before each step, with its number.
  void Do(
      int steps, const std::function<void(int number)>& before = [](int) {}) {
    for (int number = 1; number <= steps; ++number) {
      before(number);
      step->Do();
      losses.push_back(std::bit_cast<double>(page->loss.load()));
    }
  }
  std::vector<at::Tensor> Weights() const {
    std::vector<at::Tensor> weights;
    for (const fsdp::LocalShard& part : run.state.model.root.sharded_parameters()) {
      weights.push_back(part.local.clone());
    }
    return weights;
  }

  SmallRun run;
  TrainBatches batches;
  const std::unique_ptr<contract::VitalsPage> page = std::make_unique<contract::VitalsPage>();
  Vitals vitals{page.get(), [] { return std::chrono::nanoseconds(0); }};
  WatchedGraph::Log graphs;
  std::vector<contract::WorkerPhase> phases;
  std::vector<double> losses;  // as they are known behind each step
  std::optional<CheckpointKeeper> keeper;
  std::optional<TrainingStep> step;

 private:
  int ends_[2] = {-1, -1};
  std::optional<ControlChannel> channel_;
  std::optional<StopListener> stop_;
};

class StepGraphTest : public DataFolderTest {
 protected:
  static constexpr int kSteps = 9;
  static constexpr int kGraphs = kSteps - static_cast<int>(StepGraph::kStepsBefore);
  using Before = std::function<void(Training&, int number)>;

  static Json Changes(const Json& more = Json::object()) {
    Json all = {{"data", {{"seq_len", 8}, {"sampler", "global"}}},
                {"train", {{"steps", 100}, {"micro_batch_size", 2}}}};
    MergeConfig(all, more, "more");
    return all;
  }
  std::shared_ptr<const TrainData> DataOf(Documents documents) const {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 900; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * i + i / 3) % 16));
    }
    return std::make_shared<const TrainData>(
        Windows(StreamOf(Path("tokens"), tokens, {.document_end = 15}), 8, documents));
  }
  std::unique_ptr<Training> Train(
      bool as_graphs, const Training::Options& options,
      const Before& before = [](Training&, int) {}) const {
    auto training = std::make_unique<Training>(as_graphs, options, DataOf(options.documents));
    training->Do(kSteps, [&](int number) { before(*training, number); });
    training->step->Flush();
    return training;
  }
  /// Trains both ways, and returns the one with graphs.
  std::unique_ptr<Training> ExpectSame(
      const Training::Options& options, const Before& before = [](Training&, int) {}) const {
    std::unique_ptr<Training> graphs = Train(true, options, before);
    const std::unique_ptr<Training> parts = Train(false, options, before);
    EXPECT_EQ(parts->graphs.captures, 0);
    EXPECT_EQ(graphs->losses, parts->losses);
    const std::vector<at::Tensor> weights = graphs->Weights();
    const std::vector<at::Tensor> expected = parts->Weights();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], expected[i])) << "parameter " << i;
    }
    const RunState& state = graphs->run.state;
    EXPECT_EQ(state.optimizer->ParameterSteps(), parts->run.state.optimizer->ParameterSteps());
    EXPECT_EQ(state.tokens, parts->run.state.tokens);
    EXPECT_EQ(state.cursor, parts->run.state.cursor);
    EXPECT_EQ(state.judged, parts->run.state.judged);
    return graphs;
  }
};

TEST_F(StepGraphTest, HasTheBitsOfStepsThatAreIssuedPartByPart) {
  const Json several = Changes({{"train", {{"grad_accumulation", 3}, {"max_grad_norm", 0.1}}},
                                {"schedule", {{"kind", "linear"}, {"warmup_steps", 4}}}});
  for (const size_t lateness : {0, 1}) {
    const auto training = ExpectSame({.changes = several, .lateness = lateness});
    EXPECT_EQ(training->graphs.captures, 1);
    EXPECT_EQ(training->graphs.replays, kGraphs);
  }
}

TEST_F(StepGraphTest, ForwardsOfOtherSizesAndTargetsThatDoNotCount) {
  const Json uneven = Changes({{"train", {{"global_batch_size", 5}}}});  // forwards of 2, 2 and 1
  ExpectSame({.changes = uneven, .documents = Documents::kMask});
}

// The first rank takes two windows and this one the third: its other forward does not count.
TEST_F(StepGraphTest, ForwardsThatDoNotCount) {
  const Json uneven = Changes({{"train", {{"global_batch_size", 3}, {"micro_batch_size", 1}}}});
  const auto as_second = [](SmallRun& run) {
    run.world.group = std::make_shared<SecondRank>(run.world.group);
  };
  ExpectSame({.changes = uneven, .documents = Documents::kMask, .prepare = as_second});
}

TEST_F(StepGraphTest, RecomputedBlocksAndWhatASpikeIsMeasuredBy) {
  const Json spikes =
      Changes({{"train", {{"on_spike", "skip"}, {"spike_window", 3}, {"spike_deviations", 6.0}}}});
  at::Tensor kept;
  const auto spoil = [&kept](Training& training, int number) {
    const at::Tensor head = training.run.state.model.root.sharded_parameters().back().local;
    if (number == 7) {
      kept = head.clone();
      head.mul_(300);
    } else if (number == 8) {
      head.copy_(kept);
    }
  };
  const auto recompute = [](SmallRun& run) { CheckpointActivations(run.state.model); };
  const auto training = ExpectSame({.changes = spikes, .prepare = recompute}, spoil);
  EXPECT_EQ(training->run.state.optimizer->ParameterSteps().front(), kSteps - 1);
}

TEST_F(StepGraphTest, IsCapturedAnewBehindALoad) {
  const auto load = [](Training& training, int number) {
    if (number == 5) {
      RunOptimizer& optimizer = *training.run.state.optimizer;
      optimizer.SetParameterSteps(optimizer.ParameterSteps());
      training.step->GoOnFromState();
    }
  };
  const auto training = ExpectSame({.changes = Changes()}, load);
  EXPECT_EQ(training->graphs.captures, 2);
  EXPECT_EQ(training->graphs.replays, kSteps - 2 * StepGraph::kStepsBefore);
}

TEST_F(StepGraphTest, IsGivenBackForStepsOfATrace) {
  Training training(true, {.changes = Changes()}, DataOf(Documents::kJoin));
  training.Do(StepGraph::kStepsBefore + 2);
  EXPECT_EQ(training.graphs.replays, 2);
  training.step->Do(/*is_traced=*/true);
  training.Do(2);
  EXPECT_EQ(training.graphs.captures, 1);
  training.Do(1);
  EXPECT_EQ(training.graphs.captures, 2);
  EXPECT_EQ(training.graphs.replays, 3);
}

TEST_F(StepGraphTest, WaitsForTheCopyOfASaveBeforeItsReplay) {
  Training training(
      true,
      {.changes = Changes({{"checkpoint", {{"dir", Path("saves")}, {"async", true}}}}),
       .prepare = [](SmallRun& run) { run.state.run = "this run"; }},
      DataOf(Documents::kJoin));
  training.keeper->Claim({}, 1, [] { return std::nullopt; });
  training.Do(StepGraph::kStepsBefore + 1);
  const auto has_waited = [&training] {
    return std::count(training.phases.begin(), training.phases.end(),
                      contract::WorkerPhase::kSaving) > 0;
  };
  EXPECT_FALSE(training.keeper->Save());
  ASSERT_TRUE(training.keeper->is_saving());
  training.phases.clear();
  training.graphs.before_replay = [&] { EXPECT_TRUE(has_waited()); };
  training.Do(1);
  EXPECT_EQ(training.graphs.replays, 2);
}

TEST_F(StepGraphTest, TellsThatAStopWasRequested) {
  Training training(true, {.changes = Changes()}, DataOf(Documents::kJoin));
  training.Do(StepGraph::kStepsBefore + 1);
  EXPECT_FALSE(training.step->Do().is_stopping);
  training.RequestStop();
  EXPECT_TRUE(training.step->Do().is_stopping);
}

TEST_F(StepGraphTest, WhereStepsAreLongNoneIsBegunBehindTheRequest) {
  Training training(true, {.changes = Changes()}, DataOf(Documents::kJoin));
  training.graphs.before_replay = [] { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  training.Do(StepGraph::kStepsBefore + 2);
  const DataCursor cursor = training.run.state.cursor;
  training.RequestStop();
  testing::internal::CaptureStdout();
  EXPECT_TRUE(training.step->Do().is_stopping);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("step 6 was not begun, because of the stop"));
  EXPECT_EQ(training.graphs.replays, 2);
  EXPECT_EQ(training.run.state.step, 5);
  EXPECT_EQ(training.run.state.cursor, cursor);
}

/// A device's group that has failed, which only its results tell.
class FailedLater : public SecondRank {
 public:
  using SecondRank::SecondRank;
  void check_results(const std::string& operation) const override {
    if (has_failed) {
      throw fsdp::PeerError({__func__, __FILE__, __LINE__}, "lost before " + operation);
    }
  }
  bool has_failed = false;
};

TEST_F(StepGraphTest, OfAGroupThatHasFailedNothingIsReplayedOrReported) {
  std::shared_ptr<FailedLater> group;
  const auto as_second = [&group](SmallRun& run) {
    run.world.group = group = std::make_shared<FailedLater>(run.world.group);
  };
  Training training(true, {.changes = Changes(), .lateness = 1, .prepare = as_second},
                    DataOf(Documents::kJoin));
  training.Do(StepGraph::kStepsBefore + 1);
  const int64_t tokens = static_cast<int64_t>(training.page->tokens.load());
  group->has_failed = true;
  EXPECT_THROW(training.step->Do(), fsdp::PeerError);
  EXPECT_EQ(training.graphs.replays, 1);
  EXPECT_THROW(training.step->Flush(), fsdp::PeerError);
  EXPECT_EQ(static_cast<int64_t>(training.page->tokens.load()), tokens);
}

/// A device's group, as far as its order goes, that lists what is reduced.
class OrderedGroup : public SecondRank {
 public:
  using SecondRank::SecondRank;
  bool is_stream_ordered() const override { return true; }
  fsdp::WorkPtr all_reduce(at::Tensor tensor, fsdp::ReduceOp op, fsdp::Issue issue) override {
    purposes.push_back(issue.purpose);
    return SecondRank::all_reduce(std::move(tensor), op, std::move(issue));
  }
  std::vector<std::string> purposes;
};

// Else nobody would notice that one hangs.
TEST_F(StepGraphTest, BehindAReplayIsAnOperationThatIsWatched) {
  SmallRun run(SmallLlama(), Changes());
  const auto group = std::make_shared<OrderedGroup>(run.world.group);
  run.world.group = group;
  StepBody body(run.context(), run.state, /*may_ignore_targets=*/false);
  StepGraph graph(run.world, body, fsdp::make_device_graph);
  const at::Tensor ids = at::arange(16, at::kLong).view({2, 8});
  graph.Do({{{ids, ids.roll(1)}, 1.0, {}}}, at::zeros({kToldShare}));
  EXPECT_EQ(group->purposes, (std::vector<std::string>{"", "the graph of a step"}));
}

TEST_F(StepGraphTest, WhatAStepHasGivenIsNotThatOfTheNext) {
  SmallRun run(SmallLlama(), Changes());
  StepBody body(run.context(), run.state, /*may_ignore_targets=*/false);
  StepGraph graph(run.world, body, fsdp::make_device_graph);
  const at::Tensor ids = at::arange(16, at::kLong).view({2, 8});
  const std::vector<WeighedBatch> batches{{{ids, ids.roll(1)}, 1.0, {}}};
  const at::Tensor first = graph.Do(batches, at::zeros({kToldShare}));
  const at::Tensor kept = first.clone();
  const at::Tensor second = graph.Do(batches, at::ones({kToldShare}));
  EXPECT_TRUE(at::equal(first, kept));
  EXPECT_EQ(second[kToldStop].item<float>(), 1);
}

/// A step in memory that stays, as a graph has it.
class StepInMemory {
 public:
  explicit StepInMemory(SmallRun& run)
      : body_(run.context(), run.state, /*may_ignore_targets=*/true) {
    for (int i = 0; i < 2; ++i) {
      const at::Tensor ids = at::zeros({2, 8}, at::kLong);
      batches_.push_back({{ids, ids.clone()}, 2.0, at::ones({})});
    }
    numbers_ = at::zeros({kToldShare});
  }
  /// Another step's batches and numbers.
  std::vector<ObservedCall> Do(int64_t number) {
    for (WeighedBatch& weighed : batches_) {
      const at::Tensor ids = (at::arange(16, at::kLong) * (number + 3)).remainder(16).view({2, 8});
      weighed.batch.inputs.copy_(ids);
      weighed.batch.targets.copy_(ids.roll(1));
      weighed.weight.fill_(1.0 / static_cast<double>(number + 1));
    }
    numbers_.fill_(static_cast<double>(number));
    return CallsOf([this] { values_.push_back(body_.Do(batches_, numbers_)); });
  }

 private:
  StepBody body_;
  std::vector<WeighedBatch> batches_;
  at::Tensor numbers_;
  std::vector<at::Tensor> values_;  // kept, so that no address is another's
};

/// "" or how one of the steps of a run differs from those before.
std::string DifferenceOfSteps(const Json& changes, bool recomputes_blocks = false) {
  SmallRun run(SmallLlama(), changes);
  if (recomputes_blocks) {
    CheckpointActivations(run.state.model);
  }
  run.state.optimizer = std::make_unique<IdleOptimizer>(std::move(run.state.optimizer));
  StepInMemory step(run);
  for (int64_t number = 0; number < StepGraph::kStepsBefore; ++number) {
    step.Do(number);
  }
  const std::vector<ObservedCall> captured = step.Do(10);
  EXPECT_GT(captured.size(), 100u);
  for (int64_t number = 11; number < 15; ++number) {
    const std::string difference = FirstDifference(captured, step.Do(number));
    if (!difference.empty()) {
      return "step " + std::to_string(number) + ": " + difference;
    }
  }
  return "";
}

// What a graph would keep as it was: numbers of the host, and where memory is that was there
// before.
TEST_F(StepGraphTest, EachStepDoesTheSameWithTheSameMemory) {
  for (const char* on_spike : {"off", "skip", "stop"}) {
    Json train = {{"on_spike", on_spike}, {"on_nonfinite", "skip"}};
    if (std::string(on_spike) != "off") {
      train["spike_window"] = 3;
    }
    EXPECT_EQ(DifferenceOfSteps(Changes({{"train", train}})), "") << on_spike;
  }
  EXPECT_EQ(DifferenceOfSteps(Changes(), /*recomputes_blocks=*/true), "");
  for (const Json& changes :
       {Json{{"precision", {{"param", "bfloat16"}}}}, Json{{"lora", {{"rank", 2}}}},
        Json{{"model", {{"kernels", "fused"}}}},
        Json{{"train", {{"sync_each_micro_batch", false}}}},
        Json{{"train", {{"max_grad_norm", 0.0}}}}}) {
    EXPECT_EQ(DifferenceOfSteps(Changes(changes)), "") << changes;
  }
}

TEST(ObservedStepTest, NumbersOfTheHostAndMemoryThatMovesAreNoticed) {
  double factor = 1;
  at::Tensor state = at::zeros({3});
  const at::Tensor fixed = at::ones({3});
  const auto same = [&] { return CallsOf([&] { state.add_(fixed.mul(2.0)); }); };
  EXPECT_EQ(FirstDifference(same(), same()), "");
  const auto scaled = [&] { return CallsOf([&] { fixed.mul(factor++); }); };
  EXPECT_THAT(FirstDifference(scaled(), scaled()), HasSubstr("aten::mul"));
  const auto moved = [&] { return CallsOf([&] { state = state + fixed; }); };
  EXPECT_THAT(FirstDifference(moved(), moved()), HasSubstr("aten::add"));
  bool is_second = false;
  const auto longer = [&] {
    return CallsOf([&] {
      fixed.sum();
      if (std::exchange(is_second, true)) {
        fixed.mean();
      }
    });
  };
  EXPECT_THAT(FirstDifference(longer(), longer()), HasSubstr("aten::mean"));
}

}  // namespace
}  // namespace fsdprun::worker
