#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/control/node_asides.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/watch/progress_watch.h"
#include "launcher/watch/vitals_table.h"

namespace fsdprun {

/// Watches over the workers of a job: asks its nodes for vitals, has ProgressWatch judge them, and
/// does what is wanted about what it finds; see docs/WATCH.md. Thread: loop thread only.
class JobWatch {
 public:
  struct Options {
    /// Else nothing is looked for; vitals are asked for all the same, for who looks at them.
    bool is_on = false;
    OnHang on_hang = OnHang::kReport;
    watch::ProgressWatch::Options watch{};
  };
  struct Hooks {
    /// Something was found; it has been logged.
    std::function<void(const watch::Finding& finding)> tell;
    /// The world is to be stopped for it.
    std::function<void(const job::WorldHangs& hangs)> stop_world;
    /// A text to be kept under this file name beside the events; returns where it is, empty: it
    /// is not kept. May be null.
    std::function<std::string(const std::string& name, const std::string& text)> keep_report;
  };

  /// How long the stacks of a hang are waited for.
  static constexpr Duration kStacksPatience = std::chrono::seconds(2);
  /// So many nodes tell each second at most: with more of them, each tells less often.
  static constexpr int kVitalsPerSecond = 256;

  /// `machine` and `asides` must outlive it.
  JobWatch(EventLoop& loop, const JobMachine& machine, NodeAsides& asides, const Options& options,
           Hooks hooks);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  /// After every step of the machine, with the event.
  void Stepped(const job::Event& event);
  void Hear(const v1::NodeVitals& vitals);
  /// Nothing is done any more.
  void Close();

  const VitalsTable& vitals() const { return table_; }

 private:
  /// A hang whose stacks are being read.
  struct Report {
    watch::HangFound hang;
    Generation generation;
    /// Who is read, in the order of the report.
    std::vector<watch::RankPlace> places;
    std::map<int, v1::WorkerStacks> stacks;
    std::vector<NodeAsides::Id> open;
    EventLoop::TimerId timer = 0;
  };

  void BeginWorld();
  void EndWorld();
  Duration Every() const;
  void Want(Incarnation agent);
  void Feed(const watch::Event& event);
  void Schedule();
  void Tell(watch::HangFound hang);
  void Tell(const watch::HangEnded& ended);
  void Tell(const watch::SlowFound& slow);
  void Tell(const watch::SlowEnded& ended);
  void Tell(const watch::HangReported& /*reported*/) {}
  void ReadStacks(watch::HangFound hang);
  void Ask(const World::Member& member, const std::vector<int>& ranks);
  void OnAnswer(NodeAsides::Id id, const v1::NodeAnswer& answer);
  void FinishReport();
  void Act();
  std::string TextOf(const Report& report) const;
  const World::Member* MemberWith(int rank) const;

  // Constant after construction.
  EventLoop& loop_;
  const JobMachine& machine_;
  NodeAsides& asides_;
  const Options options_;
  const Hooks hooks_;

  // Owned by the loop thread.
  watch::ProgressWatch watch_;
  VitalsTable table_;
  bool is_closed_ = false;
  /// The world that is watched; 0: none.
  Generation generation_;
  int64_t step_ = -1;
  EventLoop::TimerId timer_ = 0;
  std::optional<Report> report_;
  /// The agents that were asked for vitals, until they are asked no more.
  std::set<Incarnation> wanted_;
  /// The last hang that something was done about; 0: none.
  uint64_t acted_on_ = 0;
};

/// What is done about a hang, and when, for the log.
std::string DescribeAction(OnHang on_hang, const watch::HangFound& hang);

}  // namespace fsdprun
