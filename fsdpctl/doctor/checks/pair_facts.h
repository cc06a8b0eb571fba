#pragma once

// What the test of the way between this node and another has measured. Plain data.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdprun::doctor {

/// Streams that are open at once for the second rate.
inline constexpr int kManyStreams = 8;
inline constexpr uint64_t kLargeBytes = 1024 * 1024;

struct RoundTrips {
  int count = 0;
  double median_us = 0;
  double p99_us = 0;
  /// The other's clock less this one's, and how wrong that may be.
  double clock_offset_us = 0;
  double clock_error_us = 0;
};

/// One large message.
struct LargeMessage {
  bool was_sent = false;
  /// Nothing more came, though it was not whole.
  bool stalled = false;
  uint64_t arrived = 0;
};

/// A connection that this node tries to make to the other, or the other to this one.
struct Attempt {
  /// Empty: it was not tried.
  std::string address;
  /// Empty: it connects, and the other end has proved the token.
  std::string error;
};

/// In bits a second; 0: not measured.
struct Rates {
  double one_stream = 0;
  double many_streams = 0;
  uint64_t segments = 0;
  uint64_t retransmitted = 0;
};

/// "to" is from this node to the other, "from" the reverse.
struct PairFacts {
  std::string own_node;
  std::string own_release;
  uint32_t own_protocol = 0;
  int own_mtu = 0;
  std::string node;
  std::string release;
  uint32_t protocol = 0;
  int mtu = 0;
  /// Where the other's connection came from, or where it was reached.
  std::string address;

  RoundTrips round_trips;
  /// To a port of the kernel's choice, as workers connect: by the node that listens for nodes to
  /// the one that came to it.
  bool back_is_to_other = true;
  Attempt back;
  /// The same, to what the host name of the node that came is on that node: PyTorch's Gloo tells
  /// it.
  Attempt back_by_name;
  LargeMessage large_to;
  LargeMessage large_from;
  /// Connections beside the first that could be made.
  int streams = 0;
  Rates to;
  Rates from;
  /// Why the test ended early; empty: it did not.
  std::string broken;
};

/// The same, as the other node sees it.
PairFacts Mirrored(const PairFacts& facts);

/// What a meeting of nodes has come to, on the node that they come to.
struct MeetingFacts {
  /// With this one; 0: as many as come.
  int expected = 0;
  int came = 0;
  double waited_s = 0;
  bool was_interrupted = false;
  /// Addresses of those that could not prove the token, each once.
  std::vector<std::string> refused;
  /// Connections that were closed because they said nothing that a node says.
  int strangers = 0;
};

/// Why a node did not get to the one that listens.
enum class JoinFailure {
  kUnknownHost,
  kRefused,
  kSilent,
  kOtherProgram,
  kOtherVersion,
  kOtherToken,
  kInterrupted,
  kBroken,
};
struct JoinFacts {
  JoinFailure failure = JoinFailure::kBroken;
  /// As the user wrote it.
  std::string endpoint;
  std::string text;
};

}  // namespace fsdprun::doctor
