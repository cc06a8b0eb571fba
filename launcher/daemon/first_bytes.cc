#include "launcher/daemon/first_bytes.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

FirstBytes::~FirstBytes() {
  for (const auto& [fd, waiting] : waiting_) {
    loop_.Cancel(waiting.timer);
    loop_.Unwatch(fd);
  }
}

void FirstBytes::Add(UniqueFd connection) {
  const int fd = connection.get();
  Waiting& waiting = waiting_[fd];
  waiting.connection = std::move(connection);
  waiting.timer = loop_.At(MonoNow() + kSilence, [this, fd] {
    Take(fd);
    hooks_.on_refused(
        absl::StrCat("a connection that said nothing within ", ToSeconds(kSilence), " s"));
  });
  loop_.Watch(fd, EPOLLIN, [this, fd](uint32_t) { hooks_.on_bytes(Take(fd)); });
}

UniqueFd FirstBytes::Take(int fd) {
  auto waiting = waiting_.extract(fd);
  loop_.Cancel(waiting.mapped().timer);
  loop_.Unwatch(fd);
  return std::move(waiting.mapped().connection);
}

}  // namespace fsdprun
