#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/checks/pair_facts.h"
#include "fsdpctl/doctor/pair/handshake.h"
#include "fsdpctl/doctor/pair/link.h"
#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

/// The test of one node, by the one that listens: it says what is to be done, and measures. Each
/// step has a deadline; the whole takes a few seconds where nothing is wrong, and a minute at most.
/// Thread: one.
class TestDriver {
 public:
  struct Setup {
    std::string token;
    PairNonces nonces;
    /// What is known before: of this node, and where the other's connection came from.
    PairFacts facts;
    int stop_fd = -1;
    /// Takes `count` further connections of this test, as far as they come until the deadline.
    std::function<std::vector<UniqueFd>(int count, MonoTime deadline)> take_streams;
  };

  TestDriver(Link link, Setup setup);

  /// Sets what was measured, and what the other node has found on itself (an empty node: it did not
  /// say).
  void Run(PairFacts* facts, NodeReport* other);

 private:
  absl::Status Test();
  absl::Status Introduce();
  void TryBack(const std::string& address, uint16_t port, Attempt* attempt);
  absl::Status TryWaysBack(const Message& node);
  absl::Status MeasureTrips();
  absl::Status OpenStreams();
  absl::Status TryLargeMessages();
  absl::Status MeasureRates();
  absl::Status Ask(const Message& order, Message* answer);

  Link link_;
  Setup setup_;
  PairFacts facts_;
  std::vector<UniqueFd> streams_;
};

}  // namespace fsdprun::doctor
