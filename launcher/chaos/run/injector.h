#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/chaos/plan/campaign.h"
#include "launcher/chaos/plan/victims.h"
#include "launcher/chaos/run/checkpoint_damage.h"
#include "launcher/chaos/run/room_filler.h"
#include "launcher/chaos/run/tcp_link.h"

namespace fsdprun::chaos {

/// Carries faults out, and lifts them. Destroyed, it lifts what is left. Thread: the loop's.
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
  };
  struct Done {
    /// Whom it met.
    std::string what;
    Expectation expects;
  };

  explicit Injector(Options options);
  ~Injector();
  Injector(const Injector&) = delete;
  Injector& operator=(const Injector&) = delete;

  /// The ways from the nodes' launchers to the coordinator, by number.
  void UseLinks(std::vector<TcpLink*> links) { links_ = std::move(links); }

  /// `index` names it for Lift(). Errors: NOT_FOUND and others, with why it could not be done.
  absl::StatusOr<Done> Begin(size_t index, const PlannedFault& fault);
  void Lift(size_t index);

 private:
  absl::StatusOr<JobProcess> Victim(const PlannedFault& fault) const;
  bool SendKill(const JobProcess& victim) const;
  absl::StatusOr<Done> Kill(const PlannedFault& fault);
  absl::StatusOr<Done> Stop(size_t index, const PlannedFault& fault);
  absl::StatusOr<Done> Disturb(size_t index, const PlannedFault& fault);
  absl::StatusOr<Done> Fill(size_t index);
  absl::StatusOr<Done> Corrupt(const PlannedFault& fault);
  void Continue(size_t index);
  void Restore(size_t index);

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
  std::map<size_t, RoomFiller> filled_;
  CheckpointDamage damage_;
};

}  // namespace fsdprun::chaos
