#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "launcher/chaos/plan/campaign.h"
#include "launcher/chaos/plan/victims.h"
#include "launcher/chaos/run/checkpoint_damage.h"
#include "launcher/chaos/run/room_filler.h"
#include "launcher/chaos/run/tcp_link.h"

namespace fsdprun::chaos {

/// Carries faults out, and lifts them. What touches files is done on threads, since a file
/// system may hang, or take long. Destroyed, it lifts what is left. Thread: the loop's.
class Injector {
 public:
  struct Options {
    std::string fill;
    int64_t fill_leave = 0;
    std::string corrupt;
    /// The job's processes now.
    std::function<std::vector<JobProcess>()> find;
    /// One of them was sent SIGKILL.
    std::function<void(int64_t pid)> on_killed;
    /// What was given up was done all the same: it had begun, and cannot be undone.
    std::function<void(size_t index, const std::string& what)> on_late;
  };
  struct Done {
    /// Whom it met.
    std::string what;
    Expectation expects;
  };

  /// Errors: NOT_FOUND and others, with why it could not be done.
  using Then = std::function<void(absl::StatusOr<Done> done)>;

  Injector(EventLoop& loop, Options options);
  ~Injector();
  Injector(const Injector&) = delete;
  Injector& operator=(const Injector&) = delete;

  /// The ways from the nodes' launchers to the coordinator, by number.
  void UseLinks(std::vector<TcpLink*> links) { links_ = std::move(links); }

  /// `index` names it for Lift(). `then` is called once it is done or cannot be: before this
  /// returns, or later on the loop, unless it is lifted or given up meanwhile.
  void Begin(size_t index, const PlannedFault& fault, const Then& then);
  void Lift(size_t index);
  /// Lifts what has not begun yet.
  void GiveUpBeginnings();
  /// Waits until all that was lifted or given up has come to its end, but not longer than to
  /// `deadline`: a file system may hang. For when the loop does not run any more.
  void Settle(MonoTime deadline);

 private:
  absl::StatusOr<JobProcess> Victim(const PlannedFault& fault) const;
  bool SendKill(const JobProcess& victim) const;
  absl::StatusOr<Done> Kill(const PlannedFault& fault);
  absl::StatusOr<Done> Stop(size_t index, const PlannedFault& fault);
  absl::StatusOr<Done> Disturb(size_t index, const PlannedFault& fault);
  void Fill(size_t index, const Then& then);
  void Corrupt(size_t index, const PlannedFault& fault, const Then& then);
  absl::StatusOr<Done> KillAfterDamage(const PlannedFault& kill,
                                       const absl::StatusOr<std::string>& file) const;
  struct Work {
    FileThread::Closure run;
    /// Has it end soon, and do no more.
    std::function<void()> stop;
    /// On the loop, once it has ended although it was given up; may be empty.
    std::function<void()> late;
  };
  void BeginOn(FileThread& thread, size_t index, Work work, std::function<void()> then);
  void Continue(size_t index);
  void Restore(size_t index);
  void StopBeginning(size_t index);
  void GiveBack(size_t index);

  const Options options_;
  std::vector<TcpLink*> links_;
  /// What is stopped, cut off or late, by the index of the fault.
  std::map<size_t, JobProcess> stopped_;
  struct Disturbance {
    int link = 0;
    bool is_cut = false;
    Duration latency{};
  };
  std::map<size_t, Disturbance> disturbed_;
  std::map<size_t, std::shared_ptr<RoomFiller>> filled_;
  /// Of its thread.
  const std::shared_ptr<CheckpointDamage> damage_ = std::make_shared<CheckpointDamage>();
  /// What a thread is at, or will be, and how to stop that.
  std::map<size_t, std::function<void()>> beginning_;
  /// One for each folder: they may be of different file systems.
  FileThread fill_thread_;
  FileThread damage_thread_;
};

}  // namespace fsdprun::chaos
