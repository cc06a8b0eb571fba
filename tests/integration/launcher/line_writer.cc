// A worker that writes numbered lines to standard output, and every tenth to standard error too, as
// fast as they are taken, in pieces that do not end where lines do. Then it makes the file
// $D/done.<rank> and lives until somebody opens the FIFO $D/go for writing, if there is one.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

class Stream {
 public:
  explicit Stream(int fd) : fd_(fd) {}

  void Put(const char* text, size_t size) {
    while (size > 0) {
      const size_t part = size < sizeof(buffer_) - used_ ? size : sizeof(buffer_) - used_;
      std::memcpy(buffer_ + used_, text, part);
      used_ += part;
      text += part;
      size -= part;
      if (used_ == sizeof(buffer_)) {
        Flush();
      }
    }
  }
  void Flush() {
    for (size_t done = 0; done < used_;) {
      const ssize_t n = ::write(fd_, buffer_ + done, used_ - done);
      if (n < 0) {
        std::_Exit(3);
      }
      done += static_cast<size_t>(n);
    }
    used_ = 0;
  }

 private:
  const int fd_;
  size_t used_ = 0;
  char buffer_[7001];
};

void PutLine(Stream& stream, char letter, const char* rank, int number) {
  char line[128];
  const int size = std::snprintf(line, sizeof(line), "%c%s %07d %.*s\n", letter, rank, number,
                                 number % 40, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
  stream.Put(line, static_cast<size_t>(size));
}

}  // namespace

int main(int argc, char** argv) {
  const int lines = argc > 1 ? std::atoi(argv[1]) : 0;
  const char* rank = std::getenv("RANK");
  const char* folder = std::getenv("D");
  if (rank == nullptr || folder == nullptr) {
    return 2;
  }
  Stream out(STDOUT_FILENO);
  Stream error(STDERR_FILENO);
  for (int i = 0; i < lines; ++i) {
    PutLine(out, 'o', rank, i);
    if (i % 10 == 0) {
      PutLine(error, 'e', rank, i);
    }
  }
  out.Flush();
  error.Flush();
  char path[512];
  std::snprintf(path, sizeof(path), "%s/done.%s", folder, rank);
  ::close(::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  std::snprintf(path, sizeof(path), "%s/go", folder);
  ::close(::open(path, O_RDONLY | O_CLOEXEC));
  return 0;
}
