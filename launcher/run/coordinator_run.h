#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "agent/store/store_server.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "launcher/cli/command_line.h"
#include "launcher/directory/directory.h"
#include "launcher/journal/journal.h"
#include "launcher/journal/open_journal.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/event_log.h"
#include "launcher/run/health_port.h"
#include "launcher/run/job_output.h"
#include "launcher/run/journal_keeper.h"
#include "launcher/run/place_search.h"
#include "launcher/run/signals.h"
#include "launcher/standby/handover.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

/// `fsdprun --coordinator`: the job's coordinator and nothing else. With a journal it can be killed
/// and started again, see Note [Taking a job over]. Or what goes on in the place of a launcher that
/// hosted it, see Note [A standby]. Thread: the main thread, which also runs the loop. `plan` and
/// `environment` must outlive it.
class CoordinatorRun {
 public:
  /// Without `tls`, it is made as the plan says.
  CoordinatorRun(const LaunchPlan& plan, const Environment& environment,
                 std::optional<Inheritance> inheritance = std::nullopt,
                 std::shared_ptr<const Tls> tls = nullptr);
  ~CoordinatorRun();
  CoordinatorRun(const CoordinatorRun&) = delete;
  CoordinatorRun& operator=(const CoordinatorRun&) = delete;

  /// Runs until the job is over. Returns its exit code. Call once.
  int Run();

 private:
  absl::Status Start();
  absl::Status Find();
  bool HasOwnPlace() const;
  void TakeInheritance();
  const std::optional<job::Record>& found() const;
  JournalOptions MakeJournalOptions();
  JobSpec MakeSpec() const;
  void OpenKeeper();
  absl::Status OpenHost();
  absl::Status OpenPort();
  void OpenMonitoring();
  void TellOfStart();
  void ScheduleWaitNotice();
  void TrackStop();
  void OnSignal(int signal);
  void OnJournalTaken(const absl::Status& why);
  void LeaveDirectory();
  int Finish();

  // Whether the job is still this coordinator's: coordinator_place.cc.
  bool CanBeTaken() const;
  void BeginPlace();
  void StepPlace(place::Event event);
  void OnClaimTaken();
  void Execute(const place::Ask&);
  void Execute(const place::Confirmed& confirmed);
  void Execute(const place::Unknown& unknown);
  void Execute(const place::Replaced& replaced);
  void Execute(const place::GiveUpClaim&);
  template <class Other>
  void Execute(const Other& /*of launchers*/) {}

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const Clocks clocks_;

  EventLoop loop_;
  LoopGate gate_{loop_};
  SignalWatcher signals_;
  JobOutput output_;
  EventLog events_;
  const std::shared_ptr<std::atomic<bool>> is_search_over_ =
      std::make_shared<std::atomic<bool>>(false);
  FileThread directory_thread_{loop_};
  PlaceSearch search_;
  EventLoop::TimerId search_timer_ = 0;

  // Set by Start().
  /// Null: nothing is encrypted.
  std::shared_ptr<const Tls> tls_;
  std::shared_ptr<Directory> directory_;
  /// Shared with the thread that writes it, which may hang. Null without one.
  std::shared_ptr<Journal> journal_;
  Place place_;
  /// Of a standby.
  std::optional<Inheritance> inheritance_;
  std::unique_ptr<JournalKeeper> keeper_;
  std::unique_ptr<CoordinatorHost> host_;
  /// Listens: what speaks HTTP/2 is an agent's. No world has its store here.
  std::unique_ptr<StoreServer> port_;
  /// Null if nobody wants it.
  std::unique_ptr<HealthPort> health_port_;

  bool has_started_ = false;
  /// Why this coordinator may do nothing any more; OK if it may.
  absl::Status taken_;
  int own_signal_ = 0;
  std::pair<Generation, bool> noticed_stop_{};
  std::optional<JobOutcome> outcome_;
};

}  // namespace fsdprun
