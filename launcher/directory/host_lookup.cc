#include "launcher/directory/host_lookup.h"

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {
namespace {

constexpr std::chrono::duration<int, std::milli> kCancelCheckInterval(50);
// The resolver may be slow in a healthy cluster; with a dead name server it needs up to half a
// minute to fail.
constexpr Duration kLookUpTimeout = std::chrono::seconds(5);
constexpr Duration kLookUpPause = std::chrono::seconds(1);
constexpr Duration kUnknownNameNotice = std::chrono::seconds(5);
constexpr size_t kMaxHostName = 253;
constexpr size_t kMaxNamePart = 63;

absl::Status NoAddress(const std::string& host, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot find the address of host '", host, "'", why,
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

// The message of an UNAVAILABLE error is only why.
absl::StatusOr<std::vector<std::string>> AskResolver(const std::string& host,
                                                     const LookupOptions& options) {
  // getaddrinfo() cannot be interrupted, so it runs on a thread that is abandoned if it hangs.
  std::promise<ResolverResult> promise;
  std::future<ResolverResult> future = promise.get_future();
  try {
    std::thread([host, promise = std::move(promise)]() mutable {
      promise.set_value(Resolve(host));
    }).detach();
  } catch (const std::system_error& error) {
    return absl::UnavailableError(
        absl::StrCat("no thread can be started to ask the name server: ", error.what()));
  }
  while (future.wait_for(kCancelCheckInterval) != std::future_status::ready) {
    if (options.is_cancelled && options.is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("interrupted while looking up the address of host '", host, "'"));
    }
    if (MonoNow() >= options.deadline) {
      return absl::UnavailableError("the name server does not answer");
    }
  }
  const ResolverResult found = future.get();
  if (found.error != 0) {
    return absl::UnavailableError(::gai_strerror(found.error));
  }
  return found.addresses;
}

// True if interrupted.
bool PauseBetweenLookups(const AwaitHostOptions& options, MonoTime until) {
  while (MonoNow() < until) {
    if (options.is_cancelled && options.is_cancelled()) {
      return true;
    }
    ::poll(nullptr, 0, kCancelCheckInterval.count());
  }
  return false;
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string OwnNetwork() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[64] = "";
  const ssize_t length = ::readlink("/proc/self/ns/net", name, sizeof(name));
  return boot.empty() || length <= 0
             ? ""
             : absl::StrCat(boot, "/", absl::string_view(name, static_cast<size_t>(length)));
}

absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options) {
  absl::StatusOr<std::vector<std::string>> found = AskResolver(host, options);
  return absl::IsUnavailable(found.status())
             ? NoAddress(host, absl::StrCat(": ", found.status().message()))
             : std::move(found);
}

bool MayBeHostName(absl::string_view host) {
  const absl::string_view name = absl::StripSuffix(host, ".");
  if (name.empty() || name.size() > kMaxHostName) {
    return false;
  }
  absl::string_view last;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    const bool is_plain = std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c >= 0x80;
    });
    if (part.empty() || part.size() > kMaxNamePart || !is_plain) {
      return false;
    }
    last = part;
  }
  return !std::all_of(last.begin(), last.end(),
                      [](unsigned char c) { return absl::ascii_isdigit(c); });
}

absl::StatusOr<std::vector<std::string>> AwaitHost(const std::string& host,
                                                   const AwaitHostOptions& options) {
  const MonoTime start = MonoNow();
  const Duration patience = MayBeHostName(host) ? options.patience : Duration::zero();
  MonoTime notice = start + kUnknownNameNotice;
  for (;;) {
    absl::StatusOr<std::vector<std::string>> found =
        AskResolver(host, {MonoNow() + kLookUpTimeout, options.is_cancelled});
    if (!absl::IsUnavailable(found.status())) {
      return found;
    }
    const MonoTime now = MonoNow();
    const std::string of_patience = absl::StrCat(ToSeconds(patience), " s");
    if (now - start >= patience) {
      const std::string within =
          patience > Duration::zero() ? absl::StrCat(" within ", of_patience) : "";
      return NoAddress(host, absl::StrCat(within, ": ", found.status().message()));
    }
    if (now >= notice && options.notify) {
      notice += kUnknownNameNotice;
      const auto since = std::chrono::floor<std::chrono::seconds>(now - start);
      options.notify(absl::StrCat("waiting for the address of host '", host, "' (", since.count(),
                                  " s of ", of_patience, "): name not known yet (",
                                  found.status().message(), ")"));
    }
    if (PauseBetweenLookups(options, std::min(start + patience, now + kLookUpPause))) {
      return absl::CancelledError(
          absl::StrCat("interrupted while waiting for the address of host '", host, "'"));
    }
  }
}

}  // namespace fsdprun
