#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/control/control_service.h"
#include "launcher/control/job_status.h"
#include "launcher/control/node_answers.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/coordinator/job_machine.h"

namespace fsdprun {

/// Answers what operators ask of a running job, and tells those who follow it what is new. Costs
/// nothing while nobody asks. Thread: loop thread.
class ControlDesk {
 public:
  /// What an operator may ask for, to be done by who runs the job.
  struct Hooks {
    std::function<void(int signal)> stop;
    std::function<void()> restart;
    std::function<void(Incarnation)> drain;
    std::function<void(int min_nodes, int max_nodes)> scale;
    /// Adds to a state what is known elsewhere; may be null.
    std::function<void(v1::JobStatus*)> complete{};
    /// Adds the workers, for who asks for them; may be null.
    std::function<void(v1::JobStatus*)> add_workers{};
  };

  /// Events that are known to who asks later.
  static constexpr size_t kEventsKept = 4096;
  /// How many lines one answer has at most.
  static constexpr size_t kLinesAtOnce = 256;
  /// Between two states for one who follows.
  static constexpr Duration kStatusPause = std::chrono::milliseconds(200);
  /// The same with workers, of which so many are told in a second, to all who follow: with more,
  /// each hears less often.
  static constexpr Duration kWorkersPause = std::chrono::seconds(1);
  static constexpr int64_t kWorkersPerSecond = 16384;

  /// `machine` and `asides` must outlive it.
  ControlDesk(EventLoop& loop, const JobMachine& machine, JobFacts facts, Hooks hooks,
              NodeAsides& asides);
  ~ControlDesk();
  ControlDesk(const ControlDesk&) = delete;
  ControlDesk& operator=(const ControlDesk&) = delete;

  /// A service that asks here, for one server. Must end before this does.
  std::unique_ptr<ControlService> MakeService(CallCheck check);

  /// After every step of the machine.
  void Stepped();
  /// Before that: something has happened.
  void Note(const job::News& news);
  /// The state of the job, without what Hooks::complete adds.
  v1::JobStatus Status() const { return DescribeJob(machine_, facts_, MonoNow()); }
  /// The watch over the workers has found something, at any time.
  void Note(const watch::Finding& finding);
  /// Nothing is answered any more, for this reason.
  void Close(const std::string& why);

 private:
  using Caller = NodeAnswers::Caller;
  struct Follower {
    bool wants_events = false;
    /// Of a state; it is then told anew also if nothing has changed.
    bool wants_workers = false;
    /// The number of the next event, or the version of the state that was told last.
    uint64_t next = 0;
    bool has_been_told = false;
    bool is_writing = false;
    /// It does not follow: it only has not got all yet.
    bool ends_when_told = false;
    /// No other state before.
    MonoTime not_before{};
  };
  struct Event {
    std::variant<job::News, watch::Finding> what;
    int64_t unix_ms = 0;
  };

  void Keep(Event event);
  void Answer(const Caller& caller, const v1::ControlQuestion& question);
  void AnswerStop(const Caller& caller, const v1::StopQuestion& question);
  void AnswerRestart(const Caller& caller);
  void Say(const Caller& caller, const std::string& what);
  void SayOrRefuse(const Caller& caller, const absl::StatusOr<std::string>& what);
  // control_desk_nodes.cc: each returns what is done now.
  absl::StatusOr<std::string> Drain(const v1::DrainQuestion& question);
  absl::Status CheckOthers(const job::Node& node, bool may_wait) const;
  absl::StatusOr<std::string> Scale(const v1::ScaleQuestion& question);
  absl::Status CheckScale(int min, int max) const;
  void Follow(const Caller& caller, Follower follower, bool follows);
  /// If there is anything new.
  void TellNext(const Caller& caller, Follower& follower);
  void TellState(Follower& follower, v1::JobStatus* status);
  Duration PauseOf(const Follower& follower) const;
  void TellAll();
  void TellLater(MonoTime when);
  void Written(const Caller& caller);
  /// Another one with everything that is new.
  uint64_t version() const { return machine_.revision() + progress_reports_ + findings_told_; }
  uint64_t events_begin() const { return events_end_ - events_.size(); }
  v1::EventLines LinesFrom(uint64_t* next) const;
  bool is_over() const { return machine_.phase() == job::Phase::kFinished; }

  // Constant after construction.
  EventLoop& loop_;
  const JobMachine& machine_;
  const Hooks hooks_;

  // Owned by the loop thread.
  JobFacts facts_;
  std::deque<Event> events_;
  /// How many there have been.
  uint64_t events_end_ = 0;
  Generation progress_generation_;
  int64_t progress_step_ = -1;
  uint64_t progress_reports_ = 0;
  uint64_t findings_told_ = 0;
  /// Empty: it is open.
  std::string why_closed_;
  std::map<Caller, Follower> followers_;
  NodeAnswers node_answers_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace fsdprun
