#pragma once

#include "agent/local/local_agent.h"
#include "agent/node/node_machine.h"
#include "base/mono_time.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/metrics/node_tally.h"

namespace fsdprun {

/// What a launcher tells Prometheus of its node and of its own process. Thread: loop thread only.
class NodeMonitor {
 public:
  void On(const node::News& news) { tally_.On(news); }
  void On(const node::Event& event) { tally_.On(event, MonoNow()); }

  /// `agent`: null without one.
  void Collect(LocalAgent* agent, MetricPage* page);

 private:
  NodeTally tally_;
};

/// Of this process.
void CollectOwnProcess(MetricPage* page);

}  // namespace fsdprun
