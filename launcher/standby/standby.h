#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/process/orphans.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/journal/record_codec.h"
#include "launcher/standby/handover.h"
#include "launcher/standby/restart_pause.h"

namespace fsdprun {

/// Note [A standby]
/// The launcher that hosts the coordinator has a second process beside it, started once there is
/// something to lose. It has the sockets on which the coordinator listens, and the job's latest
/// record, and does nothing but read. When the launcher dies, the kernel ends the connection; the
/// standby becomes the coordinator, on the same sockets: who redials is not refused. So the death
/// of that launcher is to the others the loss of one node. A launcher that is merely stopped keeps
/// its end of the connection open, and nobody takes its place: there are never two. A launcher that
/// ends in order ends its standby first. With both gone nobody listens, and the job is over.
///
/// The launcher's side. Thread: loop thread only.
class Standby {
 public:
  struct Options {
    std::string path;
    /// The program's name and the launcher's own options; see kStandbyOption.
    std::vector<std::string> command;
    Handover handover;
    JournaledJob job;
  };

  Standby(EventLoop& loop, Options options);
  /// Ends it, with a short wait: who listens on the same port next finds it free.
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  /// A descriptor of our own of a socket on which the coordinator listens, too.
  void AddListener(UniqueFd listener);
  /// Of the launcher, from its start on.
  void SetAgent(Incarnation agent) { options_.handover.agent = agent; }
  /// On return the kernel keeps it for the standby, which is started if there is none. If that
  /// fails, or the standby is lost, it is logged, and another one is started, see RestartPause.
  void Keep(const job::Record& record);

 private:
  absl::Status Start();
  void TellOfLatest();
  void End();
  void Reap();
  void OnLost(absl::string_view why);

  EventLoop& loop_;
  Options options_;
  std::vector<UniqueFd> listeners_;
  job::Record latest_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  /// Of `pid_`: the agent beside us ends what is left of its workers.
  std::unique_ptr<SparedChild> spared_;
  struct Killed {
    pid_t pid = 0;
    std::unique_ptr<SparedChild> spared;
  };
  /// Former ones that have not ended.
  std::vector<Killed> killed_;
  MonoTime started_at_{};
  RestartPause restart_pause_;
  /// 0: none is to be started.
  EventLoop::TimerId retry_timer_ = 0;
};

/// How a standby is started: this word, then the launcher's own options, and its socket there.
inline constexpr char kStandbyOption[] = "--standby";
inline constexpr int kStandbySocket = 3;

}  // namespace fsdprun
