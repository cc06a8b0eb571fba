#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mono_time.h"

namespace fsdprun {

/// gethostname(); never asks a name server.
std::string HostName();

/// Names the network that this process is in: the same for two processes that have the same
/// addresses because they share them. Empty if the kernel does not tell.
std::string OwnNetwork();

/// A lookup ends at `deadline`, or when `is_cancelled` (polled every 50 ms) returns true.
struct LookupOptions {
  MonoTime deadline = MonoTime::max();
  std::function<bool()> is_cancelled;
};

/// The addresses of the host (forward only; IPv4 before IPv6, else in the resolver's order; each
/// once; never empty). Errors: UNAVAILABLE naming host and reason, CANCELLED.
absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options);

/// False for what no name server can ever know: empty or overlong parts, characters that no host
/// name has, a number as the last part. Pure.
bool MayBeHostName(absl::string_view host);

struct AwaitHostOptions {
  /// How long a name may be unknown; zero: it is looked up once.
  Duration patience{};
  std::function<bool()> is_cancelled;
  /// Told every few seconds, for people, what is waited for; may be null.
  std::function<void(const std::string&)> notify;
};

/// As LookUpHost(), again and again: the name of a machine that starts later (a pod behind a
/// headless service) is known later. Errors: UNAVAILABLE, CANCELLED; what MayBeHostName() denies
/// fails at once.
absl::StatusOr<std::vector<std::string>> AwaitHost(const std::string& host,
                                                   const AwaitHostOptions& options);

}  // namespace fsdprun
