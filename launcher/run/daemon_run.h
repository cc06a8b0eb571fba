#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/daemon/daemon_service.h"
#include "launcher/daemon/daemon_session.h"
#include "launcher/daemon/file_growth.h"
#include "launcher/daemon/first_bytes.h"
#include "launcher/daemon/revivals.h"
#include "launcher/daemon/session_folder.h"
#include "launcher/daemon/session_life.h"
#include "launcher/daemon/slot_ledger.h"
#include "launcher/run/refusal_log.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// `fsdp-agent --daemon`: runs parts of jobs for launchers, each in a session of its own, which is
/// a process that outlives this one (Note [What is in a daemon's folder]). Thread: the main thread,
/// which also runs the loop. `plan` and `environment` must outlive it.
class DaemonRun {
 public:
  DaemonRun(const LaunchPlan& plan, const Environment& environment);
  ~DaemonRun();
  DaemonRun(const DaemonRun&) = delete;
  DaemonRun& operator=(const DaemonRun&) = delete;

  /// Runs until a signal, and then until all sessions have ended. Returns the exit code: 2 if the
  /// options mean nothing here. Call once.
  int Run();

 private:
  struct Session {
    std::string id;
    std::string title;
    SessionLife life;
    std::unique_ptr<DaemonSession> process;
    std::vector<std::string> devices;
    /// Who follows it; 0: nobody.
    DaemonService::CallId call = 0;
    /// What it was sent last is on its way.
    bool is_sending = false;
    EventLoop::TimerId timer = 0;
    Revivals revivals;
  };

  // Setup.
  absl::Status Start();
  absl::StatusOr<std::string> ChooseToken();
  void CountSlots();
  absl::Status Listen();
  void WatchListener(const UniqueFd& listener);
  void LogRefusal(const std::string& what);
  void Adopt();
  void AdoptOne(const std::string& id);
  void AdoptLater(const std::string& id, const absl::StatusOr<v1::SessionSpec>& spec);
  void TakeOver(const v1::SessionSpec& spec, SessionProcess process);

  // Orders.
  void OnOrder(DaemonService::CallId call, const v1::DaemonOrder& order);
  void RunOrder(DaemonService::CallId call, const v1::SessionSpec& spec);
  absl::StatusOr<Session*> Begin(v1::SessionSpec spec);
  void Follow(Session& session, DaemonService::CallId call, uint64_t out, uint64_t error);
  void OnMessage(DaemonService::CallId call, const v1::LauncherMessage& message);
  void OnWritten(DaemonService::CallId call);
  void OnLost(DaemonService::CallId call);

  // Sessions.
  absl::StatusOr<LaunchPlan> PlanOf(const v1::SessionSpec& spec,
                                    const Environment& environment) const;
  bool Revive(Session& session);
  void OnSessionEnd(Session& session);
  Session& Keep(const v1::SessionSpec& spec, SessionProcess process);
  Session* SessionOf(DaemonService::CallId call);
  void SendNext(Session& session);
  void Tend(std::string id);
  void Forget(std::string id);
  void OnSignal(int signal);
  void LeaveWhoIsBeingAdopted();
  void StopIfDone();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const MachineFacts machine_;

  EventLoop loop_;
  SignalWatcher signals_;
  FileGrowth growth_{loop_};
  RefusalLog refusals_;

  // Set by Start().
  std::string token_;
  std::string program_;
  std::optional<DaemonFolder> folder_;
  std::optional<SlotLedger> ledger_;
  std::unique_ptr<DaemonService> service_;
  std::vector<UniqueFd> listeners_;
  FirstBytes connections_{
      loop_,
      {[this](UniqueFd connection) { service_->AddConnection(std::move(connection)); },
       [this](const std::string& what) { LogRefusal(what); }}};

  std::map<std::string, Session> sessions_;
  /// Of an earlier daemon, while it cannot be told yet whether they run.
  std::set<std::string> being_adopted_;
  bool is_ending_ = false;
  EventLoop::TimerId stop_timer_ = 0;
};

}  // namespace fsdprun
