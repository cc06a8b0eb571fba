#include "launcher/run/host_lookups.h"

#include <algorithm>
#include <utility>

#include "launcher/directory/host_lookup.h"

namespace fsdprun {
namespace {

constexpr Duration kLookupTimeout = std::chrono::seconds(10);

}  // namespace

HostLookups::HostLookups(EventLoop& loop)
    : HostLookups(loop, [](const std::string& host, const std::function<bool()>& is_cancelled) {
        return LookUpHost(host,
                          {.deadline = MonoNow() + kLookupTimeout, .is_cancelled = is_cancelled});
      }) {}

HostLookups::HostLookups(EventLoop& loop, LookUp look_up)
    : loop_(loop), look_up_(std::move(look_up)) {}

HostLookups::~HostLookups() { is_cancelled_->store(true); }

void HostLookups::Start(std::vector<std::string> hosts,
                        std::function<void(size_t, const Addresses&)> on_found) {
  hosts_ = std::move(hosts);
  on_found_ = std::move(on_found);
  for (size_t i = 0; i < std::min(kAtOnce, hosts_.size()); ++i) {
    threads_.push_back(std::make_unique<FileThread>(loop_));
    StartNext(*threads_.back());
  }
}

void HostLookups::StartNext(FileThread& thread) {
  if (next_ >= hosts_.size()) {
    return;
  }
  const size_t index = next_++;
  const auto found = std::make_shared<Addresses>();
  thread.Run(
      [look_up = look_up_, host = hosts_[index], found, is_cancelled = is_cancelled_] {
        *found = look_up(host, [is_cancelled] { return is_cancelled->load(); });
      },
      [this, index, found, &thread] {
        StartNext(thread);
        on_found_(index, *found);
      });
}

}  // namespace fsdprun
