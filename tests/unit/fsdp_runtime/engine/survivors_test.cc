// Four processes, of which one is killed in the middle of an operation or of training: the others
// hear who it was long before the timeout, and go on as a group of three.
//
// FSDPRUN_KILLS: how often each; FSDPRUN_HEARD_WITHIN_MS: how soon all must have heard, which is
// checked only where nothing else runs.

#include <fsdp/process_group.h>
#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>
#include <tuple>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/rank_processes.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kStepsAfterwards = 3;
/// How long nobody may tell anything. Ends only a test that fails.
constexpr std::chrono::minutes kPatience{2};
/// gloo, each rank on a machine of its own.
const std::string kApart = "gloo_in_namespaces";
constexpr char kNoNetworks[] = "no network namespaces: not root, or no iproute2";

using Group = std::shared_ptr<Collectives>;

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // the same in all processes
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/// What happens in one round.
struct Round {
  std::string backend, operation;
  int64_t number = 0;

  bool is_apart() const { return backend == kApart; }
  int64_t victim() const {
    return (number + static_cast<int64_t>(backend.size() + operation.size())) % kRanks;
  }
  /// One message, several pieces, next to nothing.
  int64_t numel() const { return std::array{10'000, 300'000, 1}[static_cast<size_t>(number % 3)]; }
  /// Whether who hears of the death leaves at once, and meets the others under another name: a rank
  /// that has not heard yet sees it leave.
  bool leaves_first() const { return number % 2 == 1; }
  /// What errors must begin with.
  std::string operation_in_error() const {
    static const std::map<std::string, std::string> texts = {
        {"gather", "all_gather for unit a on lane 0"},
        {"reduce", "reduce_scatter for unit a on lane 1"},
        {"broadcast", "broadcast for unit a on lane 1"},
        {"barrier", "barrier on lane 1"},
        {"training", ""}};
    return texts.at(operation);
  }
};

double train(const Group& group, int64_t steps, const std::function<void()>& on_step) {
  Rank rank;
  rank.rank = group->rank();
  rank.size = group->size();
  rank.comm = std::make_shared<RecordingCollectives>(group);
  rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, rank.comm);
  Sharded setup = make(rank);
  AdamW optimizer(setup.root, {});
  double last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor value = loss(setup.model, step, rank.rank);
    value.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = value.item<double>();
    on_step();
  }
  return last;
}

/// Does the operation again and again; ends by an exception.
void repeat(const Round& round, const Group& group, const std::function<void()>& on_turn) {
  constexpr int64_t kForever = int64_t{1} << 40;
  if (round.operation == "training") {
    train(group, kForever, on_turn);
    return;
  }
  at::Tensor whole = at::ones({kRanks * round.numel()});
  at::Tensor part = at::ones({round.numel()});
  for (int64_t turn = 0; turn < kForever; ++turn) {
    if (round.operation == "gather") {
      group->all_gather_into(whole, part, {Lane::kGather, "unit a"})->wait();
    } else if (round.operation == "reduce") {
      group->reduce_scatter_into(part, whole, ReduceOp::kAvg, {Lane::kReduce, "unit a"})->wait();
    } else if (round.operation == "broadcast") {
      group->broadcast(whole, 1, {Lane::kReduce, "unit a"})->wait();
    } else {
      group->barrier();
    }
    on_turn();
  }
}

Group group_of_the_others(const Round& round, ProcessGroupOptions options, Group group,
                          int64_t lost, const LinePipe& lines) {
  if (!round.leaves_first()) {
    return group->shrink({lost});
  }
  group.reset();
  lines.write("did leave");
  options.rank -= options.rank > lost ? 1 : 0;
  options.world_size -= 1;
  return init_process_group(options);
}

/// What each process does.
void be_a_rank(const Round& round, int64_t rank, int port, const LinePipe& lines) {
  ProcessGroupOptions options;
  options.backend = round.is_apart() ? "gloo" : round.backend;
  options.master_addr = round.is_apart() ? RankProcesses::kHub : "127.0.0.1";
  options.rank = rank;
  options.world_size = kRanks;
  options.master_port = port;
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  Group group = init_process_group(options);
  int64_t lost = -1;
  try {
    int64_t turns = 0;
    repeat(round, group, [&] {
      if (++turns == 3) {
        lines.write("ready");
      }
    });
  } catch (const PeerError& error) {
    lost = error.rank.value_or(-1);
    lines.write("lost " + std::to_string(lost) + " " + std::to_string(now_ms()) + " " +
                error.what_without_backtrace());
  }
  const Group others = group_of_the_others(round, options, std::move(group), lost, lines);
  lines.write("did meet");
  at::Tensor sum = at::ones({1});
  others->all_reduce(sum, ReduceOp::kSum)->wait();
  std::ostringstream told;
  told.precision(17);  // what is read is what was written
  told << "trained " << sum.item<double>() << " " << others->rank() << " "
       << train(others, kStepsAfterwards, [] {});
  lines.write(told.str());
}

/// The last loss of each rank of a group of as many as are left, which has lost nobody. Backends
/// give the same bits.
std::vector<double> losses_of_the_others() {
  auto world = make_local_world(kRanks - 1);
  std::vector<double> losses(world.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const Group group = std::move(world[rank]);
      losses[rank] = train(group, kStepsAfterwards, [] {});
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return losses;
}

/// What the processes of one round have told.
class Account {
 public:
  explicit Account(const Round& round) : round_(round) {}

  /// Whether it is time to kill.
  bool add(const std::string& line) {
    told_.push_back("after " + std::to_string(now_ms() - begun_at_) + " ms: " + line);
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "lost") {
      add_lost(words, line);
    } else if (kind == "trained") {
      double members = 0, value = 0;
      size_t rank = 0;
      words >> members >> rank >> value;
      ++trained_;
      losses_.at(rank) = value;
      expect(members == kRanks - 1, line);
    } else if (kind != "ready" && kind != "did") {
      expect(false, line);
    }
    return kind == "ready" && ++ready_ == kRanks;
  }
  void killed() { killed_at_ = now_ms(); }
  /// Whether something is wrong already: the others may wait for the rank that is.
  bool is_wrong() const { return !lines_.empty(); }
  void nobody_told() { expect(false, "nobody has told anything for minutes"); }

  /// One line for each thing that is wrong, and one with how long it took. `losses`: the right
  /// ones.
  std::vector<std::string> result(const std::vector<double>& losses, RankProcesses& ranks) {
    if (is_wrong() || lost_ < kRanks - 1 || trained_ < kRanks - 1) {
      lines_.push_back("error " + std::to_string(lost_) + " have heard and " +
                       std::to_string(trained_) + " have trained on; all that was told:");
      for (const std::string& line : ranks.states()) {
        told_.push_back(line);
      }
      for (const std::string& line : told_) {
        lines_.push_back("error   " + line);
      }
      return lines_;
    }
    expect(losses_ == losses,
           "those that have trained on have other losses than ranks that have "
           "never lost one");
    const int64_t limit = number_from("FSDPRUN_HEARD_WITHIN_MS", slowest_);
    expect(slowest_ <= limit, "the last one heard after " + std::to_string(slowest_) + " ms");
    lines_.push_back("heard " + std::to_string(slowest_));
    return lines_;
  }

 private:
  void add_lost(std::istringstream& words, const std::string& line) {
    int64_t who = -1;
    int64_t at = 0;
    std::string error;
    words >> who >> at;
    std::getline(words >> std::ws, error);
    ++lost_;
    slowest_ = std::max(slowest_, at - killed_at_);
    expect(who == round_.victim(), line);
    expect(error.find("rank " + std::to_string(round_.victim()) + " died") != std::string::npos,
           line);
    expect(error.rfind(round_.operation_in_error(), 0) == 0, line);
  }
  void expect(bool is_right, const std::string& line) {
    if (!is_right) {
      lines_.push_back("error " + line);
    }
  }

  const Round round_;
  std::vector<double> losses_ = std::vector<double>(kRanks - 1);
  const int64_t begun_at_ = now_ms();
  int64_t ready_ = 0, lost_ = 0, trained_ = 0, killed_at_ = 0, slowest_ = 0;
  std::vector<std::string> lines_, told_;
};

std::vector<std::string> run_round(const Round& round) {
  RankProcesses ranks(kRanks, round.is_apart(), [&](int64_t rank, int port, const LinePipe& lines) {
    be_a_rank(round, rank, port, lines);
  });
  const auto store = serve_store();
  ranks.begin(store->getPort());
  Account account(round);
  while (const std::optional<std::string> line = ranks.read(kPatience)) {
    if (account.add(*line)) {
      account.killed();
      ranks.kill(round.victim());
    }
    if (account.is_wrong()) {
      break;
    }
  }
  if (ranks.was_silent()) {
    account.nobody_told();
  }
  return account.result(losses_of_the_others(), ranks);
}

class SurvivorsTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(SurvivorsTest, HearWhoWasKilledAndGoOnWithoutIt) {
  const auto& [backend, operation] = GetParam();
  ::signal(SIGPIPE, SIG_IGN);
  if (backend == kApart && !RankProcesses::can_be_apart()) {
    GTEST_SKIP() << kNoNetworks;
  }
  const int64_t kills = number_from("FSDPRUN_KILLS", 2);
  int64_t slowest = 0;
  for (int64_t number = 0; number < kills; ++number) {
    const Round round{backend, operation, number};
    for (const std::string& line : lines_of_child([&] { return run_round(round); })) {
      if (line.rfind("heard ", 0) == 0) {
        slowest = std::max<int64_t>(slowest, std::atoll(line.c_str() + 6));
      } else {
        ADD_FAILURE() << "round " << number << ", rank " << round.victim() << " killed: " << line;
      }
    }
  }
  std::cout << backend << " " << operation << ": " << kills << " kills, heard by all after at most "
            << slowest << " ms\n";
}

INSTANTIATE_TEST_SUITE_P(
    Backends, SurvivorsTest,
    ::testing::Combine(::testing::Values("shm", "gloo", kApart),
                       ::testing::Values("gather", "reduce", "barrier", "broadcast", "training")),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

// A part's ranks need addresses that reach other machines also where one of them reaches the store
// by its loopback.
TEST(RanksApartTest, PartsAcrossMachinesFormWhereRankZeroServesTheStore) {
  ::signal(SIGPIPE, SIG_IGN);
  if (!RankProcesses::can_be_apart()) {
    GTEST_SKIP() << kNoNetworks;
  }
  const auto be = [](int64_t rank, int port, const LinePipe& lines) {
    ProcessGroupOptions options;
    options.master_addr = RankProcesses::address_of(0);
    options.rank = rank;
    options.world_size = kRanks;
    options.master_port = port;
    options.host_store = rank == 0;
    options.timeout = std::chrono::seconds(60);
    const Group world = init_process_group(options);
    const auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp_replicate", "dp_shard"}, world);
    at::Tensor sum = at::full({1}, rank);
    mesh->group(1)->all_reduce(sum, ReduceOp::kSum)->wait();
    mesh->group(0)->all_reduce(sum, ReduceOp::kSum)->wait();
    world->barrier();
    lines.write(world->name() + " " + std::to_string(sum.item<int64_t>()));
  };
  const std::vector<std::string> lines = lines_of_child([&] {
    RankProcesses ranks(kRanks, /*are_apart=*/true, be);
    ranks.begin(29500);  // nobody else is on these networks
    std::vector<std::string> told;
    while (const std::optional<std::string> line = ranks.read()) {
      told.push_back(*line);
    }
    return told;
  });
  EXPECT_EQ(lines, std::vector<std::string>(kRanks, "gloo 6"));
}

}  // namespace
}  // namespace fsdp::testing
