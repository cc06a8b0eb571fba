#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/checks/pair_facts.h"
#include "fsdpctl/doctor/pair/handshake.h"
#include "fsdpctl/doctor/pair/link.h"
#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

/// A node that goes to the one that listens, and does what that asks for. Thread: one.
class TestGuest {
 public:
  struct Options {
    std::string token;
    /// Of the host, best first.
    std::vector<NumericEndpoint> endpoints;
    /// As the user wrote it.
    std::string endpoint_text;
    /// Until somebody listens there.
    Duration patience{};
    /// Name, release and protocol of this node.
    PairFacts own;
    std::function<int(const std::string& address)> mtu_of;
    /// What the host name of this node is on it; empty: nothing.
    std::string name_address;
    NodeReport report;
    int stop_fd = -1;
  };

  explicit TestGuest(Options options) : options_(std::move(options)) {}

  /// What was measured, as this node sees it. `failure` is set if there is nothing.
  absl::StatusOr<PairFacts> Run(JoinFailure* failure);

 private:
  absl::StatusOr<UniqueFd> Reach(JoinFailure* failure);
  absl::StatusOr<Link> Prove(UniqueFd socket, const std::string& test, PairNonces* nonces,
                             JoinFailure* failure) const;
  absl::StatusOr<PairFacts> Obey(Link link);
  absl::Status Introduce(Link* link);
  void AwaitBack(Link* link, const UniqueFd& listener) const;
  void AnswerBack(UniqueFd socket) const;
  void OpenStreams(int count);
  Message Move(const Message& order);

  Options options_;
  /// Where the host was reached.
  NumericEndpoint host_;
  PairNonces nonces_;
  std::vector<UniqueFd> streams_;
};

}  // namespace fsdprun::doctor
