#include "base/write_all.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace fsdprun {
namespace {

TEST(WriteAllTest, MoreThanAPipeHoldsThroughSignals) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  struct sigaction old {};
  struct sigaction interrupting {};
  interrupting.sa_handler = [](int) {};  // Without SA_RESTART.
  ASSERT_EQ(::sigaction(SIGUSR1, &interrupting, &old), 0);

  const std::string text(1 << 20, 'x');
  int error = -1;
  size_t written = 0;
  std::thread writer([&] {
    error = WriteAll(to.get(), text, &written);
    to.reset();
  });
  std::string read;
  std::string piece(3000, '\0');
  for (ssize_t n = 1; n > 0;) {
    ::pthread_kill(writer.native_handle(), SIGUSR1);
    n = ::read(from.get(), piece.data(), piece.size());
    read.append(piece, 0, static_cast<size_t>(n > 0 ? n : 0));
  }
  writer.join();
  ::sigaction(SIGUSR1, &old, nullptr);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(written, text.size());
  EXPECT_EQ(read, text);
}

TEST(WriteAllTest, SaysWhyAndHowMuch) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  size_t written = 1;
  EXPECT_EQ(WriteAll(full.get(), "text", &written), ENOSPC);
  EXPECT_EQ(written, 0u);
  EXPECT_EQ(WriteAll(full.get(), "", &written), 0);
  EXPECT_EQ(WriteAll(-1, "text"), EBADF);
}

TEST(WriteAllTest, SaysHowMuchFitted) {
  UniqueFd file(::memfd_create("limited", MFD_CLOEXEC));
  ASSERT_TRUE(file.valid());
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit limited = old;
  limited.rlim_cur = 10;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  size_t written = 0;
  const int error = WriteAll(file.get(), "sixteen letters.", &written);
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, EFBIG);
  EXPECT_EQ(written, 10u);
}

}  // namespace
}  // namespace fsdprun
