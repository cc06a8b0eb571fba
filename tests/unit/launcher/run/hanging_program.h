#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error_text.h"
#include "base/unique_fd.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {

/// A program on a file system that does not answer until the test wants it.
class HangingProgram {
 public:
  /// `script`: what it does then.
  explicit HangingProgram(const std::string& script) {
    folder_ = ::testing::TempDir() + "/hanging_program_XXXXXX";
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/program";
    std::ofstream(path_) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
    // Whoever opens a file with a lease waits until that is given back.
    ::signal(SIGIO, SIG_IGN);
    leased_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::fcntl(leased_.get(), F_SETLEASE, F_WRLCK), 0) << ErrorText(errno);
  }
  ~HangingProgram() { RemoveFolder(folder_); }
  HangingProgram(const HangingProgram&) = delete;
  HangingProgram& operator=(const HangingProgram&) = delete;

  const std::string& path() const { return path_; }
  bool IsWaitedFor() const { return ::fcntl(leased_.get(), F_GETLEASE) != F_WRLCK; }
  void Answer() { leased_.reset(); }

 private:
  std::string folder_;
  std::string path_;
  UniqueFd leased_;
};

}  // namespace fsdprun
