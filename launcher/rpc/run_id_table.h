#pragma once

// Who hosts the coordinators of the run ids that were given one endpoint. Pure.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mono_time.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

class RunIdTable {
 public:
  static constexpr size_t kMaxHosts = 256;
  static constexpr size_t kMaxClosed = 1024;
  /// How long after it has come to the endpoint a coordinator gives no run id to a newcomer:
  /// whoever hosts it has lost the coordinator that was there before, and tells the new one.
  static constexpr Duration kSettle = std::chrono::seconds(1);
  /// How long a host that beats may be silent until it counts as broken.
  static constexpr Duration kSilence = Clocks{}.stream_silence;

  enum class Kind {
    kHere,
    kThere,
    /// The caller hosts it from now on.
    kYours,
    kClosed,
    /// Nobody hosts it, and the caller cannot, or there are too many.
    kUnknown,
    /// Not known yet.
    kWait,
  };
  struct Question {
    std::string run_id;
    /// Where the caller hosts or would host; empty if it cannot.
    std::vector<std::string> endpoints;
    /// Where it was told to join, and nothing listens.
    std::vector<std::string> refused;
    /// It hosts already.
    bool hosts = false;
    /// How long it keeps its place while it is silent, as its claim in a file would: for no longer
    /// or shorter than some node lease makes it. Zero: of a version that does not tell.
    Duration claim_lease{};
  };
  struct Answer {
    Kind kind = Kind::kUnknown;
    /// Of kThere.
    std::vector<std::string> endpoints;
  };

  /// `own`: the run id whose coordinator is here; `since` when it came to the endpoint.
  RunIdTable(std::string own, MonoTime since)
      : own_(std::move(own)), settled_at_(since + kSettle) {}

  /// The coordinator here has come to another endpoint.
  void Settle(MonoTime since) { settled_at_ = since + kSettle; }
  /// `caller` is of this question alone.
  Answer Ask(const Question& question, uint64_t caller, MonoTime now);
  /// The caller hosts nothing any more; `closes`: its job is over, and nobody shall join it.
  void Leave(uint64_t caller, bool closes);
  /// Nothing is heard of the caller any more, which may still host.
  void Break(uint64_t caller, MonoTime now);
  /// The caller says that it is there. False if it hosts nothing any more: another has its place.
  bool Hear(uint64_t caller, MonoTime now);
  /// To be called about once a second, by who reads what the callers send: those that have been
  /// heard, but not for kSilence, count as broken. If the reader itself was late, they are heard
  /// again before their place is lost.
  void NoteSilence(MonoTime now);

 private:
  struct Host {
    uint64_t caller = 0;
    std::vector<std::string> endpoints;
    Duration claim_lease{};
    std::optional<MonoTime> broken_at{};
    /// Of a host that beats.
    std::optional<MonoTime> heard_at{};
  };
  using Hosts = std::map<std::string, Host>;

  Hosts::iterator HostedBy(uint64_t caller);
  void DropLostHosts(const Question& question, MonoTime now);

  const std::string own_;
  MonoTime settled_at_;
  Hosts hosts_;
  /// The oldest first.
  std::deque<std::string> closed_;
};

}  // namespace fsdprun
