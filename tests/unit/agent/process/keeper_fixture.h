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
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {

/// A real keeper with real workers. Everything it reports is kept; tests wait for reports.
class KeeperFixture : public testing::Test {
 protected:
  KeeperFixture()
      : folder_(testing::TempDir() + "keeper_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~KeeperFixture() override {
    client_.reset();
    RunUntilNoOrphanIsLeft({});
    RemoveFolder(folder_);
  }

  void StartKeeper(const std::string& path = FSDPRUN_KEEPER_BINARY,
                   Duration hello_limit = KeeperClient::kHelloLimit) {
    MakeClient(hello_limit);
    const absl::Status status = client_->Start(path);
    ASSERT_TRUE(status.ok()) << status;
  }
  void MakeClient(Duration hello_limit = KeeperClient::kHelloLimit) {
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
    on.on_exited = noticed([this](const auto& r) {
      exited_[r.local_rank] = r;
      degraded_before_exit_[r.local_rank] = degraded_.size();
    });
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
    on.on_all_gone = noticed([this](const auto& r) {
      ++all_gone_;
      gone_life_ = r.life;
    });
    on.on_lost = noticed([this](const std::string& reason) { lost_.push_back(reason); });
    on.on_ended = noticed([this] { ++ended_; });
    on.on_shown_before = noticed([this](const auto& r) {
      shown_before_[{r.local_rank, r.stream}] = r.offset;
    });
    client_ = std::make_unique<KeeperClient>(loop_, on, hello_limit);
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
  /// The latest log writer; 0 if none was started.
  pid_t LogWriterPid() const {
    pid_t found = 0;
    for (const pid_t pid : client_->log_writers()) {
      found = IsAlive(pid) ? pid : found;
    }
    return found;
  }
  /// What has been shown of a stream: the file as far as it was reported, and what came after it.
  std::string Shown(int local_rank, keeper::Stream stream, const std::string& path) {
    const auto key = std::pair(local_rank, stream);
    return ReadFile(path).substr(0, log_size_[key]) + log_data_[key];
  }
  void Spawn(const WorkerSpec& spec) {
    const absl::Status status = client_->Spawn(spec);
    ASSERT_TRUE(status.ok()) << status;
  }

  /// Runs the loop until `condition` holds; false if it does not. Every report of the keeper makes
  /// it ask again.
  bool RunUntil(const std::function<bool()>& condition) { return waiter_.RunUntil(condition); }
  void Notice() { waiter_.Notice(); }
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
  bool RunUntilNoOrphanIsLeft(const std::set<pid_t>& spared) {
    return waiter_.PollUntil([&spared] { return KillOrphans(spared) == 0; });
  }

  const std::string folder_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<KeeperClient> client_;

  std::vector<keeper::HelloReport> hellos_;
  std::map<int, keeper::SpawnedReport> spawned_;
  std::vector<keeper::SpawnFailedReport> spawn_failed_;
  std::map<int, keeper::ExitedReport> exited_;
  /// Streams that had been degraded when a worker's exit was reported.
  std::map<int, size_t> degraded_before_exit_;
  std::map<std::pair<int, keeper::Stream>, uint64_t> log_size_;
  std::map<std::pair<int, keeper::Stream>, uint64_t> shown_before_;
  std::map<std::pair<int, keeper::Stream>, std::string> log_data_;
  std::vector<keeper::LogDegradedReport> degraded_;
  std::map<int, std::vector<std::string>> records_;
  std::vector<std::string> notes_;
  int all_gone_ = 0;
  uint64_t gone_life_ = 0;
  int ended_ = 0;
  std::vector<std::string> lost_;
};

}  // namespace fsdprun
