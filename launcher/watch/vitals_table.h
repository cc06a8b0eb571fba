#pragma once

#include <map>
#include <optional>

#include "base/mono_time.h"
#include "fsdprun/v1/aside.pb.h"
#include "launcher/watch/sample.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The latest that the nodes have told of each worker of the present world.
class VitalsTable {
 public:
  struct Entry {
    v1::WorkerVitals vitals;
    /// When it was received.
    MonoTime at{};
    /// Processors that it has used on average since the time before; absent before the second one.
    std::optional<double> cpus{};
  };

  /// What is known of another generation is forgotten.
  void Begin(Generation generation);
  /// False, and nothing happens, if they are of another generation.
  bool Take(const v1::NodeVitals& vitals, MonoTime now);

  Generation generation() const { return generation_; }
  /// By rank. Those of nodes that have told nothing are missing.
  const std::map<int, Entry>& entries() const { return entries_; }

 private:
  Generation generation_;
  std::map<int, Entry> entries_;
};

/// What a watch takes of them. Pure.
watch::VitalsCame SamplesOf(const v1::NodeVitals& vitals);

}  // namespace fsdprun
