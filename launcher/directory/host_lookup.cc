#include "launcher/directory/host_lookup.h"

#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {
namespace {

constexpr auto kCancelCheckInterval = std::chrono::milliseconds(50);

absl::Status NoAddress(const std::string& host, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot find the address of host '", host, "': ", why,
                                             "; give a numeric address or fix name resolution"));
}

// `error` is one of getaddrinfo's codes.
struct ResolverResult {
  int error = 0;
  std::vector<std::string> addresses;
};

ResolverResult Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  ResolverResult found;
  found.error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
      std::string address =
          entry->ai_family == family ? AddressText(entry->ai_addr) : std::string();
      if (!address.empty() && std::find(found.addresses.begin(), found.addresses.end(), address) ==
                                  found.addresses.end()) {
        found.addresses.push_back(std::move(address));
      }
    }
  }
  if (list != nullptr) {
    ::freeaddrinfo(list);
  }
  if (found.error == 0 && found.addresses.empty()) {
    found.error = EAI_NONAME;
  }
  return found;
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options) {
  // getaddrinfo() cannot be interrupted, so it runs on a thread that is abandoned if it hangs.
  std::promise<ResolverResult> promise;
  std::future<ResolverResult> future = promise.get_future();
  std::thread([host, promise = std::move(promise)]() mutable {
    promise.set_value(Resolve(host));
  }).detach();
  while (future.wait_for(kCancelCheckInterval) != std::future_status::ready) {
    if (options.is_cancelled && options.is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("interrupted while looking up the address of host '", host, "'"));
    }
    if (MonoNow() >= options.deadline) {
      return NoAddress(host, "the name server does not answer");
    }
  }
  const ResolverResult found = future.get();
  if (found.error != 0) {
    return NoAddress(host, ::gai_strerror(found.error));
  }
  return found.addresses;
}

}  // namespace fsdprun
