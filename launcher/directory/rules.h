#pragma once

// What follows from what a launcher knows about its rendezvous. Pure.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// Whether this launcher may host the coordinator at a fixed endpoint.
enum class HostRole { kMust, kMay, kNever };
HostRole RoleOf(const LaunchPlan& plan);

/// What this machine knows about the host of an endpoint.
struct HostFacts {
  /// As the user wrote it: a name or a numeric address.
  std::string host;
  /// gethostname().
  std::string own_name;
  /// Forward lookup of `host`; empty only if it is this machine's own name, see MayBeOwnName().
  std::vector<std::string> resolved;
  /// Of this machine's interfaces.
  std::vector<std::string> own_addresses;
  /// This machine's address for others; empty without a network.
  std::string routable;
};

struct HostView {
  /// The host is this machine.
  bool is_own = false;
  /// Other machines cannot reach it.
  bool is_loopback = false;
  /// The host is this machine under its own name, which it cannot resolve or resolves to loopback
  /// only (stock Debian maps it to 127.0.1.1): the name is of no use to this node's workers.
  bool is_hidden = false;
  /// No interface of this machine has what the user calls this node, as where its address is
  /// translated on the way: it is used as written, and `addresses` has what this machine knows.
  bool is_foreign = false;
  /// Numeric, best first, never empty: where to reach the host.
  std::vector<std::string> addresses;
  /// Numeric, what a coordinator on this machine listens on; `::` means all addresses.
  std::vector<std::string> listen_on;
};
HostView ViewHost(const HostFacts& facts);

/// --local-addr, where it is nothing that this machine has; `routable` as in HostFacts.
HostView ViewForeignName(const std::string& routable);

/// `node0` and `node0.domain` may be one machine: such a name need not be resolvable on it.
bool MayBeOwnName(absl::string_view host, absl::string_view own_name);

enum class FirstMove { kBind, kJoin, kRefuse };
FirstMove FirstMoveOf(HostRole role, RendezvousBackend backend, bool is_own);

enum class NextMove {
  kHost,
  /// Join, unless the port's holder turns out to be no coordinator.
  kCheckHolder,
  /// The port is somebody else's: say whose.
  kNameHolder,
  kFail,
};
NextMove AfterBinding(HostRole role, const absl::Status& bound);

/// What decides the MASTER_ADDR of workers whose store is on this node.
struct StoreNaming {
  bool hosts = false;
  /// When this node hosts: the endpoint, and the numeric address of this node that belongs to it.
  HostView endpoint;
  std::string host_address;
  /// --local-addr; of no meaning if none is given.
  HostView local;
  /// Numeric address of this node.
  std::string node_address;
};

/// As the user wrote it where that names this node to itself and to the others, else numeric.
std::string StoreAddress(const LaunchPlan& plan, const StoreNaming& naming);

}  // namespace fsdprun
