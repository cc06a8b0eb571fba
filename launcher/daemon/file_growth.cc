#include "launcher/daemon/file_growth.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"

namespace fsdprun {
namespace {

constexpr Duration kPollPause = std::chrono::milliseconds(200);

}  // namespace

FileGrowth::FileGrowth(EventLoop& loop)
    : loop_(loop), fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (is_valid()) {
    loop_.Watch(fd_.get(), EPOLLIN, [this](uint32_t) { OnEvents(); });
  }
}

FileGrowth::~FileGrowth() {
  loop_.Cancel(poll_timer_);
  if (is_valid()) {
    loop_.Unwatch(fd_.get());
  }
}

int FileGrowth::Watch(const std::string& path, std::function<void()> on_growth) {
  int watch = ::inotify_add_watch(fd_.get(), path.c_str(), IN_MODIFY);
  if (watch < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return kNotWatched;
  }
  if (watch < 0) {
    watch = --last_polled_;
    if (poll_timer_ == 0) {
      Log(LogLevel::kWarning,
          absl::StrCat("cannot watch ", path, ": ", ErrorText(errno),
                       "; looking at it, and at what comes after it, all the time (raise "
                       "fs.inotify.max_user_watches)"));
      Poll();
    }
  }
  watches_[watch] = std::move(on_growth);
  return watch;
}

void FileGrowth::Unwatch(int watch) {
  if (watches_.erase(watch) > 0 && watch >= 0) {
    ::inotify_rm_watch(fd_.get(), watch);
  }
}

void FileGrowth::OnEvents() {
  alignas(inotify_event) char buffer[4096];
  std::set<int> grown;
  bool has_lost = false;
  for (ssize_t n = 0; (n = ::read(fd_.get(), buffer, sizeof(buffer))) > 0;) {
    for (ssize_t at = 0; at < n;) {
      inotify_event event;
      std::memcpy(&event, buffer + at, sizeof(event));
      grown.insert(event.wd);
      has_lost = has_lost || (event.mask & IN_Q_OVERFLOW) != 0;
      at += static_cast<ssize_t>(sizeof(event) + event.len);
    }
  }
  TellAll([&](int watch) { return has_lost || grown.contains(watch); });
}

void FileGrowth::TellAll(const std::function<bool(int watch)>& which) {
  std::vector<int> told;
  for (const auto& [watch, on_growth] : watches_) {
    if (which(watch)) {
      told.push_back(watch);
    }
  }
  for (const int watch : told) {  // Each may end others.
    if (const auto found = watches_.find(watch); found != watches_.end()) {
      const std::function<void()> on_growth = found->second;
      on_growth();
    }
  }
}

void FileGrowth::Poll() {
  poll_timer_ = loop_.At(MonoNow() + kPollPause, [this] {
    poll_timer_ = 0;
    TellAll([](int watch) { return watch < kNotWatched; });
    if (poll_timer_ == 0 && !watches_.empty() && watches_.begin()->first < kNotWatched) {
      Poll();
    }
  });
}

}  // namespace fsdprun
