#pragma once

#include <fsdp/export.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/store/tcp.h"

namespace fsdp {

/// What decides at which address a rank listens for ranks on other hosts.
struct AddressChoice {
  std::string master;                          // as given
  std::string route;                           // own address on the way to it
  std::vector<NetworkInterface> interfaces;    // interfaces_to_others()
  std::optional<std::string> nccl_names = {};  // NCCL_SOCKET_IFNAME, for a group that uses NCCL
};

/// The interface that NCCL would use if it is told one; else the route's, which is that of the
/// network on which the master is reached; else, if the master's name is one of this machine's
/// loopback, the first one that is no bridge of containers or virtual machines. Errors:
/// TORCH_CHECK that says what to set. Pure.
FSDP_API std::string choose_address(const AddressChoice& choice);

/// Whether NCCL uses interface `name` with NCCL_SOCKET_IFNAME=`names`: prefixes with commas between
/// them, whole names behind "=", and all but those behind "^". Pure.
FSDP_API bool is_used_by_nccl(const std::string& names, const std::string& name);

}  // namespace fsdp
