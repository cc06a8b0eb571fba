#include "fsdp_runtime/src/comm/own_address.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

namespace fsdp {
namespace {

// What NCCL leaves out, too, unless it is told an interface.
constexpr char kNotToOtherHosts[] = "^docker,virbr,lo";

bool is_loopback_address(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

std::optional<std::string> first_of(const AddressChoice& choice, const std::string& names) {
  const auto found =
      std::find_if(choice.interfaces.begin(), choice.interfaces.end(),
                   [&](const NetworkInterface& each) { return is_used_by_nccl(names, each.name); });
  return found == choice.interfaces.end() ? std::nullopt : std::optional(found->address);
}

}  // namespace

bool is_used_by_nccl(const std::string& names, const std::string& name) {
  size_t begin = 0;
  const bool is_excluded = names.rfind('^', 0) == 0;
  begin += is_excluded ? 1 : 0;
  const bool is_whole = names.compare(begin, 1, "=") == 0;
  begin += is_whole ? 1 : 0;
  std::istringstream in(names.substr(begin));
  for (std::string each; std::getline(in, each, ',');) {
    if (is_whole ? name == each : name.rfind(each, 0) == 0) {
      return !is_excluded;
    }
  }
  return is_excluded;
}

std::string choose_address(const AddressChoice& choice) {
  if (choice.nccl_names) {
    const std::optional<std::string> address = first_of(choice, *choice.nccl_names);
    TORCH_CHECK(address,
                "init_process_group: no network interface with an address is one of "
                "NCCL_SOCKET_IFNAME=",
                *choice.nccl_names, "; see `ip addr`");
    return *address;
  }
  if (!is_loopback_address(choice.route)) {
    return choice.route;
  }
  const std::optional<std::string> address = first_of(choice, kNotToOtherHosts);
  TORCH_CHECK(address, "init_process_group: '", choice.master, "' resolves to ", choice.route,
              " here, which ranks on other hosts cannot reach, and this machine has no other "
              "address; set GLOO_SOCKET_IFNAME, or with NCCL NCCL_SOCKET_IFNAME, to the interface "
              "to use, or MASTER_ADDR to an address of it");
  return *address;
}

}  // namespace fsdp
