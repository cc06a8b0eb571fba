#include "launcher/daemon/file_growth.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

namespace fsdprun {

FileGrowth::FileGrowth(EventLoop& loop)
    : loop_(loop), fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (is_valid()) {
    loop_.Watch(fd_.get(), EPOLLIN, [this](uint32_t) { OnEvents(); });
  }
}

FileGrowth::~FileGrowth() {
  if (is_valid()) {
    loop_.Unwatch(fd_.get());
  }
}

int FileGrowth::Watch(const std::string& path, std::function<void()> on_growth) {
  const int watch = ::inotify_add_watch(fd_.get(), path.c_str(), IN_MODIFY);
  if (watch >= 0) {
    watches_[watch] = std::move(on_growth);
  }
  return watch;
}

void FileGrowth::Unwatch(int watch) {
  if (watches_.erase(watch) > 0) {
    ::inotify_rm_watch(fd_.get(), watch);
  }
}

void FileGrowth::OnEvents() {
  alignas(inotify_event) char buffer[4096];
  std::set<int> grown;
  for (ssize_t n = 0; (n = ::read(fd_.get(), buffer, sizeof(buffer))) > 0;) {
    for (ssize_t at = 0; at < n;) {
      inotify_event event;
      std::memcpy(&event, buffer + at, sizeof(event));
      grown.insert(event.wd);
      at += static_cast<ssize_t>(sizeof(event) + event.len);
    }
  }
  for (const int watch : grown) {
    if (const auto found = watches_.find(watch); found != watches_.end()) {
      const std::function<void()> on_growth = found->second;
      on_growth();
    }
  }
}

}  // namespace fsdprun
