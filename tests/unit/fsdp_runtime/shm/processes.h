#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/world.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdp::shm::testing {

/// A folder as key-value store, so that processes can meet without a server.
class FolderExchange : public Exchange {
 public:
  explicit FolderExchange(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void put(const std::string& key, const std::string& value) override {
    const auto temporary = folder_ / (name(key) + "." + std::to_string(::getpid()));
    std::ofstream(temporary) << value;
    std::filesystem::rename(temporary, folder_ / name(key));
  }
  std::string get(const std::string& key, std::chrono::steady_clock::time_point deadline) override {
    const fsdprun::UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ::inotify_add_watch(changes.get(), folder_.c_str(), IN_MOVED_TO);
    while (!std::filesystem::exists(folder_ / name(key))) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd waiting{changes.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
        throw Error("no key " + key);
      }
      char events[4096];
      (void)!::read(changes.get(), events, sizeof events);
    }
    std::ifstream in(folder_ / name(key));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

 private:
  static std::string name(std::string key) {
    std::replace(key.begin(), key.end(), '/', '_');
    return key;
  }
  const std::filesystem::path folder_;
};

/// Ranks are child processes, which meet in a folder.
class ProcessesTest : public ::testing::Test {
 protected:
  ProcessesTest() {
    char path[] = "/tmp/fsdp_shm_world_XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~ProcessesTest() override { fsdprun::RemoveFolder(folder_); }

  // Runs `body()` in a child process; its result is the exit status.
  template <typename Body>
  pid_t spawn(Body body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int status = 99;
      try {
        status = body();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
      ::_exit(status);
    }
    return pid;
  }
  static int exit_status(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::filesystem::path folder_;
};

}  // namespace fsdp::shm::testing
