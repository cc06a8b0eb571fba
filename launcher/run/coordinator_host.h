#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "agent/rpc/coordinator_link.h"
#include "base/event_loop.h"
#include "base/machine_driver.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "launcher/control/control_desk.h"
#include "launcher/control/local_door.h"
#include "launcher/control/node_asides.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/metrics/job_history.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/rpc/coordinator_service.h"
#include "launcher/run/event_log.h"
#include "launcher/run/job_watch.h"
#include "launcher/run/local_link.h"
#include "launcher/run/refusal_log.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

/// Runs the coordinator of one job: feeds JobMachine and delivers its messages, to the agent of
/// this process directly and to the others over gRPC. gRPC is not started for a one-node job.
/// Thread: loop thread only.
class CoordinatorHost : private MachineDriver<JobMachine>::Executor {
 public:
  struct Options {
    /// `launch_id` is filled in here: every host is a launch of its own, unless it takes one over.
    JobSpec spec;
    std::string run_id;
    /// Empty: no other process can join.
    std::string token;
    /// See Clocks.
    Duration stream_silence = Clocks{}.stream_silence;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
    /// What a host before this one has left; see JobMachine.
    std::optional<job::Record> record{};
    /// See Journal::sure_until(); null: always.
    std::function<MonoTime()> sure_until{};
    /// Without: nobody watches whether the workers get on.
    JobWatch::Options watch{};
    /// For operators who ask about the job.
    struct Control {
      /// RuntimeFolder(); empty: nobody on this machine can ask.
      std::string folder;
      /// This node's name.
      std::string node;
      /// Where nodes join; empty if none can.
      std::string endpoint;
    } control{};
  };
  struct Hooks {
    std::function<void(const JobOutcome&)> on_finish;
    /// To be kept before this returns; may be null.
    std::function<void(const job::Record&)> persist{};
    /// See job::PlaceAsked; answered by PlaceChecked(), PlaceUnknown() or Replaced(), but not at
    /// once. Not called unless the spec has a `place_sure_for`.
    std::function<void()> on_check_place;
    /// This process did not run for so long, or longer.
    std::function<void(Duration)> on_stall;
    /// What has happened, for those who only watch; may be null.
    std::function<void(const job::News&)> on_news;
    /// What the watch over the workers has found; may be null.
    std::function<void(const watch::Finding&)> on_finding{};
    /// See JobWatch::Hooks; may be null.
    std::function<std::string(const std::string& name, const std::string& text)> on_report{};
    /// After every step: the machine may have changed.
    std::function<void()> on_step;
    /// See CoordinatorService::Callbacks.
    std::function<void(const std::vector<std::string>& endpoints)> on_other_host;
  };

  CoordinatorHost(EventLoop& loop, Options options, Hooks hooks);
  ~CoordinatorHost() override;
  CoordinatorHost(const CoordinatorHost&) = delete;
  CoordinatorHost& operator=(const CoordinatorHost&) = delete;

  /// Starts gRPC if there is a token. Errors: INTERNAL.
  absl::Status Start();
  /// The link for the agent in this process.
  CoordinatorLink& local_link();
  /// A connection of another agent.
  void AddConnection(UniqueFd connection);
  /// See CoordinatorService::TakeOver().
  void TakeOver();
  void OperatorStop(int signal);
  /// See job::AgentDied.
  void AgentDied(Incarnation agent);
  /// See job::NoSuccessor.
  void NoSuccessor(const std::string& node_name);
  /// See job::HostReplaced.
  void Replaced(const std::string& why);
  /// See job::PlaceChecked.
  void PlaceChecked(MonoTime at);
  /// See job::PlaceUnknown.
  void PlaceUnknown(const std::string& why);
  /// Passes a signal on to the workers of all nodes; the job goes on.
  void ForwardSignal(int signal);
  /// The job is another coordinator's: nothing is sent or decided here any more, not even what
  /// follows from the present step.
  void Silence();
  /// Ends all streams; see CoordinatorService::Shutdown().
  void Shutdown();

  const JobMachine& machine() const { return machine_; }
  /// Where the job's time went, and what happened.
  const JobHistory& history() const { return history_; }
  /// What is known of the job, for Prometheus. O(nodes).
  void Collect(MetricPage* page);
  /// What the nodes have told last.
  const VitalsTable& vitals() const { return watch_.vitals(); }
  /// The agent of this process has no company, and there has been no world: nothing is lost if they
  /// meet elsewhere.
  bool is_alone() const;

 private:
  void Feed(job::Event event) { driver_.Feed(std::move(event)); }
  LocalLink::Coordinator MakeLocalLink();
  ControlDesk::Hooks DeskHooks();
  JobWatch::Hooks WatchHooks();
  void SendAside(Incarnation agent, const v1::ToNodeAside& aside);
  absl::Status OpenLocalDoor();
  // The machine's executor.
  MonoTime Now() override { return MonoNow(); }
  void Persist(const job::Record& record) override;
  void WakeAt(MonoTime at) override;
  void Send(ToAgent& message) override;
  void Execute(job::PlaceAsked& asked) override;
  bool IsSure() const;
  bool IsSafe(const ToAgent& message) const;
  void Hold();
  void SendSoon();
  void SendSome();
  void Hear(const job::News& news) override;
  void OnEvent(const job::Event& event) override { history_.Begin(event); }
  void OnStepped(const job::Event& event, const job::Effects& effects) override;
  void Tell(const job::Stalled& stalled);
  void Tell(const job::Warned& warned);
  void Tell(const job::NodeQuarantined& quarantined);
  void Tell(const job::QuarantineLifted& lifted);
  void Tell(const job::QuarantineWaived& waived);
  void Tell(const job::NodeDraining& draining);
  void Tell(const job::JobScaled& scaled);
  void Tell(const job::JobFinished& finished);
  // What else there is to know is in the machine; see Hooks::on_step.
  template <class Other>
  void Tell(const Other& /*what*/) {}

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const Hooks hooks_;
  const double began_unix_s_;

  // Owned by the loop thread.
  JobMachine machine_;
  MachineDriver<JobMachine> driver_{machine_, *this};
  bool is_silent_ = false;
  EventLoop::TimerId wake_timer_ = 0;
  LocalLink local_link_;
  NodeAsides asides_{
      [this](Incarnation agent, const v1::ToNodeAside& aside) { SendAside(agent, aside); },
      [this](Incarnation /*agent*/, const v1::NodeVitals& vitals) { watch_.Hear(vitals); }};
  JobHistory history_;
  JobWatch watch_;
  ControlDesk desk_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<LocalDoor> local_door_;
  /// What a step has to say to more agents than may hold up the loop at once, and what is held
  /// until it is sure that the job is this host's, in order; and how many messages the step has
  /// sent itself.
  std::deque<ToAgent> outbox_;
  int sent_in_step_ = 0;
  bool is_holding_ = false;
  bool will_send_ = false;
  EventLoop::TimerId held_timer_ = 0;
  RefusalLog refusals_;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

/// What the watch finds goes where the news go. `log` must outlive the host.
void RecordFindings(EventLog& log, CoordinatorHost::Hooks* hooks);

}  // namespace fsdprun
