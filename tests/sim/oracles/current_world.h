#pragma once

// Whose reports the coordinator has to heed, told from the messages alone: those of the nodes that
// were ordered into the newest world, until they are dismissed or left out of its stop. That a node
// is declared lost during a stop shows in no message before it is told to join again.

#include <map>
#include <set>

#include "proto/cluster/messages.h"

namespace fsdprun::sim {

class CurrentWorld {
 public:
  Generation generation() const { return generation_; }

  void OrderSent(const ToAgent& order);
  /// All orders of one step of the coordinator have been sent.
  void OrdersGiven();
  void ReportArrived(const FromAgent& report);

  /// The report means something to its own generation only, and that is not the newest one. A node
  /// that came back with an older generation is told to stop, and its answer is waited for.
  bool IsStale(const FromAgent& report) const;
  /// The report is about the newest world and comes from one of its members.
  bool IsOfMember(const FromAgent& report) const;

 private:
  Generation generation_;
  std::set<Incarnation> members_;
  std::set<Incarnation> told_to_stop_;
  bool stop_is_sent_ = false;
  std::map<Incarnation, Generation> owes_stopped_;
};

}  // namespace fsdprun::sim
