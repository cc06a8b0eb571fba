#include "base/write_all.h"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

namespace fsdprun {

int WriteAll(int fd, absl::string_view text, size_t* written) {
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      error = n == 0 ? ENOSPC : errno;
    }
  }
  if (written != nullptr) {
    *written = done;
  }
  return error;
}

}  // namespace fsdprun
