#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "fsdpctl/doctor/machine/system_files.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kLookUpPatience = std::chrono::seconds(5);
constexpr char kSettings[] = "/proc/sys/net/";

int Setting(const char* name) {
  return static_cast<int>(NumberIn(absl::StrCat(kSettings, name)).value_or(0));
}

/// Asked of the kernel: /sys may be another network namespace's.
int MtuOfInterface(const UniqueFd& socket, const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  return ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

void LookUpOwnName(NetworkFacts* facts) {
  const MonoTime begin = MonoNow();
  const auto found = LookUpHost(facts->host_name, {.deadline = begin + kLookUpPatience});
  facts->lookup_ms = ToSeconds(MonoNow() - begin) * 1e3;
  if (found.ok()) {
    facts->resolved = *found;
  } else {
    facts->lookup_error = std::string(found.status().message());
  }
  facts->localhost = LookUpHost("localhost", {.deadline = MonoNow() + kLookUpPatience})
                         .value_or(std::vector<std::string>());
}

void TryPort(const PortChoice& choice, NetworkFacts* facts) {
  facts->port = choice.port;
  facts->port_is_given = choice.is_given;
  facts->port_is_unknown = choice.is_left_alone;
  if (choice.is_left_alone) {
    return;
  }
  const absl::StatusOr<UniqueFd> bound = BindListener({"::", choice.port});
  if (!bound.ok()) {
    facts->port_error = std::string(bound.status().message());
    facts->port_holder = PortHolder(choice.port);
  }
}

void ReadPortRange(NetworkFacts* facts) {
  const std::vector<std::string> words =
      absl::StrSplit(TextOf(absl::StrCat(kSettings, "ipv4/ip_local_port_range")),
                     absl::ByAnyChar(" \t"), absl::SkipEmpty());
  int first = 0;
  int last = 0;
  if (words.size() == 2 && absl::SimpleAtoi(words[0], &first) &&
      absl::SimpleAtoi(words[1], &last)) {
    facts->first_ephemeral = first;
    facts->last_ephemeral = last;
  }
}

}  // namespace

std::vector<InterfaceFacts> ReadInterfaces() {
  std::map<std::string, InterfaceFacts> by_name;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    InterfaceFacts& facts = by_name[entry->ifa_name];
    facts.name = entry->ifa_name;
    facts.is_up = (entry->ifa_flags & IFF_UP) != 0;
    facts.is_running = facts.is_up && (entry->ifa_flags & IFF_RUNNING) != 0;
    facts.is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    std::string address = entry->ifa_addr == nullptr ? "" : AddressText(entry->ifa_addr);
    if (!address.empty()) {
      facts.addresses.push_back(std::move(address));
    }
  }
  ::freeifaddrs(list);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::vector<InterfaceFacts> interfaces;
  for (auto& [name, facts] : by_name) {
    const std::string folder = absl::StrCat("/sys/class/net/", name);
    facts.mtu = MtuOfInterface(socket, name);
    facts.speed = static_cast<int>(std::max<int64_t>(0, NumberIn(folder + "/speed").value_or(0)));
    interfaces.push_back(std::move(facts));
  }
  return interfaces;
}

NetworkFacts ReadNetwork(const PortChoice& port) {
  NetworkFacts facts{.host_name = HostName(), .interfaces = ReadInterfaces()};
  LookUpOwnName(&facts);
  facts.routable = RoutableAddress().value_or("");
  TryPort(port, &facts);
  ReadPortRange(&facts);
  facts.keepalive_s = Setting("ipv4/tcp_keepalive_time");
  facts.somaxconn = Setting("core/somaxconn");
  facts.has_ipv6 = BindListener({"::1", 0}).ok();
  return facts;
}

}  // namespace fsdprun::doctor
