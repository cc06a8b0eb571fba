#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "agent/process/keeper_client.h"
#include "agent/process/orphans.h"
#include "agent/process/process_scan.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// A real keeper with real workers. Everything it reports is kept; tests wait for reports under a
/// deadline.
class KeeperFixture : public testing::Test {
 protected:
  /// What a promised time is multiplied with on this build and machine: FSDPRUN_TIME_FACTOR, or a
  /// guess.
  static double TimeFactor() {
    if (const char* given = ::getenv("FSDPRUN_TIME_FACTOR")) {
      return ::atof(given);
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 10;
#else
    return 2;
#endif
  }

  /// How long a wait for something that must come lasts.
  static Duration Patience() {
    return std::chrono::seconds(static_cast<int>(std::max(20.0, 10 * TimeFactor())));
  }

  KeeperFixture()
      : folder_(testing::TempDir() + "keeper_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~KeeperFixture() override {
    client_.reset();
    RunUntilNoOrphanIsLeft({});
    std::filesystem::remove_all(folder_);
  }

  void StartKeeper(const std::string& path = FSDPRUN_KEEPER_BINARY) {
    KeeperCallbacks on;
    const auto noticed = [this](auto keep) {
      return [this, keep](const auto&... report) {
        keep(report...);
        Notice();
      };
    };
    on.on_hello = noticed([this](const auto& r) { hellos_.push_back(r); });
    on.on_spawned = noticed([this](const auto& r) { spawned_[r.local_rank] = r; });
    on.on_spawn_failed = noticed([this](const auto& r) { spawn_failed_.push_back(r); });
    on.on_exited = noticed([this](const auto& r) { exited_[r.local_rank] = r; });
    on.on_log_grew = noticed([this](const auto& r) {
      log_size_[{r.local_rank, r.stream}] = r.size_bytes;
    });
    on.on_log_data = noticed([this](const auto& r) {
      log_data_[{r.local_rank, r.stream}] += r.data;
    });
    on.on_log_degraded = noticed([this](const auto& r) { degraded_.push_back(r); });
    on.on_control_record =
        noticed([this](const auto& r) { records_[r.local_rank].push_back(r.line); });
    on.on_note = noticed([this](const auto& r) { notes_.push_back(r.text); });
    on.on_all_gone = noticed([this] { ++all_gone_; });
    on.on_lost = noticed([this](const std::string& reason) { lost_.push_back(reason); });
    on.on_ended = noticed([this] { ++ended_; });
    client_ = std::make_unique<KeeperClient>(loop_, on);
    const absl::Status status = client_->Start(path);
    ASSERT_TRUE(status.ok()) << status;
  }

  WorkerSpec Shell(int local_rank, const std::string& script) const {
    WorkerSpec spec{.local_rank = local_rank, .argv = {"sh", "-c", script}};
    spec.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"FOLDER", folder_}};
    spec.stdout_path = LogPath(local_rank, "out");
    spec.stderr_path = LogPath(local_rank, "err");
    return spec;
  }
  std::string LogPath(int local_rank, const std::string& stream) const {
    return folder_ + "/" + std::to_string(local_rank) + "." + stream;
  }
  void Spawn(const WorkerSpec& spec) {
    const absl::Status status = client_->Spawn(spec);
    ASSERT_TRUE(status.ok()) << status;
  }

  /// Runs the loop until `condition` holds; false after Patience(). It is asked at the beginning
  /// and after every Notice(), which every report of the keeper gives.
  bool RunUntil(const std::function<bool()>& condition) {
    bool holds = false;
    bool is_over = false;
    const auto end = [&] {
      if (!std::exchange(is_over, true)) {
        loop_.Stop();
      }
    };
    check_ = [&] {
      if (!is_over && condition()) {
        holds = true;
        end();
      }
    };
    Notice();
    const EventLoop::TimerId deadline = loop_.At(MonoNow() + Patience(), end);
    loop_.Run();
    loop_.Cancel(deadline);
    check_ = nullptr;
    return holds;
  }
  /// What a condition depends on may have changed.
  void Notice() {
    loop_.Post([this] {
      if (check_) {
        check_();
      }
    });
  }
  bool RunUntilExited(int local_rank) {
    return RunUntil([&] { return exited_.count(local_rank) > 0; });
  }

  static std::string ReadFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  /// Waits until a worker's script has written whole lines into `name`, and returns the numbers in
  /// them.
  std::vector<pid_t> ReadPids(const std::string& name, size_t count) {
    const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    EXPECT_GE(::inotify_add_watch(changes.get(), folder_.c_str(), IN_CREATE | IN_MODIFY), 0);
    loop_.Watch(changes.get(), EPOLLIN, [&](uint32_t) {
      char events[4096];
      while (::read(changes.get(), events, sizeof(events)) > 0) {
      }
      Notice();
    });
    std::string text;
    const bool is_there = RunUntil([&] {
      text = ReadFile(folder_ + "/" + name);
      return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
    });
    loop_.Unwatch(changes.get());
    std::vector<pid_t> pids;
    std::stringstream in(is_there ? text : "");
    for (pid_t pid = 0; in >> pid;) {
      pids.push_back(pid);
    }
    return pids;
  }
  static bool IsAlive(pid_t pid) {
    ProcessInfo info;
    return ReadProcess(pid, info) && !info.IsDead();
  }
  bool RunUntilDead(const std::vector<pid_t>& pids) {
    std::vector<UniqueFd> pidfds;
    for (const pid_t pid : pids) {
      UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!pidfd.valid()) {
        continue;  // Nothing is left of it.
      }
      loop_.Watch(pidfd.get(), EPOLLIN, [this, fd = pidfd.get()](uint32_t) {
        loop_.Unwatch(fd);
        Notice();
      });
      pidfds.push_back(std::move(pidfd));
    }
    const bool all_dead = RunUntil([&] { return std::none_of(pids.begin(), pids.end(), IsAlive); });
    for (const UniqueFd& pidfd : pidfds) {
      loop_.Unwatch(pidfd.get());
    }
    return all_dead;
  }
  /// Nobody tells of strays: they are looked for again every millisecond.
  bool RunUntilNoOrphanIsLeft(const std::set<pid_t>& spared) {
    EventLoop::TimerId timer = 0;
    const bool none_left = RunUntil([&] {
      timer = loop_.At(MonoNow() + std::chrono::milliseconds(1), [this] { Notice(); });
      return KillOrphans(spared) == 0;
    });
    loop_.Cancel(timer);
    return none_left;
  }

  const std::string folder_;
  EventLoop loop_;
  std::unique_ptr<KeeperClient> client_;

  std::vector<keeper::HelloReport> hellos_;
  std::map<int, keeper::SpawnedReport> spawned_;
  std::vector<keeper::SpawnFailedReport> spawn_failed_;
  std::map<int, keeper::ExitedReport> exited_;
  std::map<std::pair<int, keeper::Stream>, uint64_t> log_size_;
  std::map<std::pair<int, keeper::Stream>, std::string> log_data_;
  std::vector<keeper::LogDegradedReport> degraded_;
  std::map<int, std::vector<std::string>> records_;
  std::vector<std::string> notes_;
  int all_gone_ = 0;
  int ended_ = 0;
  std::vector<std::string> lost_;

 private:
  /// Set while RunUntil() waits.
  std::function<void()> check_;
};

}  // namespace fsdprun
