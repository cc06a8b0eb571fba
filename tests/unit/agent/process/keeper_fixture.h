#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "agent/process/keeper_client.h"
#include "agent/process/process_scan.h"
#include "base/event_loop.h"

namespace fsdprun {

/// A real keeper with real workers. Everything it reports is kept; tests wait for reports under a
/// deadline.
class KeeperFixture : public testing::Test {
 protected:
  static constexpr auto kPatience = std::chrono::seconds(20);

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

  KeeperFixture()
      : folder_(testing::TempDir() + "keeper_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~KeeperFixture() override {
    client_.reset();
    RunUntil([] { return KillStrays({}) == 0; });
    std::filesystem::remove_all(folder_);
  }

  void StartKeeper(const std::string& path = FSDPRUN_KEEPER_BINARY) {
    KeeperCallbacks on;
    on.on_hello = [this](const auto& r) { hellos_.push_back(r); };
    on.on_spawned = [this](const auto& r) { spawned_[r.local_rank] = r; };
    on.on_spawn_failed = [this](const auto& r) { spawn_failed_.push_back(r); };
    on.on_exited = [this](const auto& r) { exited_[r.local_rank] = r; };
    on.on_log_grew = [this](const auto& r) { log_size_[{r.local_rank, r.stream}] = r.size_bytes; };
    on.on_log_data = [this](const auto& r) { log_data_[{r.local_rank, r.stream}] += r.data; };
    on.on_log_degraded = [this](const auto& r) { degraded_.push_back(r); };
    on.on_control_record = [this](const auto& r) { records_[r.local_rank].push_back(r.line); };
    on.on_note = [this](const auto& r) { notes_.push_back(r.text); };
    on.on_all_gone = [this] { ++all_gone_; };
    on.on_lost = [this](const std::string& reason) { lost_.push_back(reason); };
    on.on_ended = [this] { ++ended_; };
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

  /// Runs the loop until `condition` holds; false after kPatience.
  bool RunUntil(const std::function<bool()>& condition) {
    const MonoTime deadline = MonoNow() + kPatience;
    bool holds = false;
    std::function<void()> check = [&] {
      holds = condition();
      if (holds || MonoNow() >= deadline) {
        loop_.Stop();
      } else {
        loop_.At(MonoNow() + std::chrono::milliseconds(1), [&] { check(); });
      }
    };
    loop_.Post([&] { check(); });
    loop_.Run();
    return holds;
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
    std::vector<pid_t> pids;
    RunUntil([&] {
      const std::string text = ReadFile(folder_ + "/" + name);
      if (static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) < count) {
        return false;
      }
      std::stringstream in(text);
      for (pid_t pid = 0; in >> pid;) {
        pids.push_back(pid);
      }
      return true;
    });
    return pids;
  }
  static bool IsAlive(pid_t pid) {
    ProcessInfo info;
    return ReadProcess(pid, info) && !info.IsDead();
  }
  bool RunUntilDead(const std::vector<pid_t>& pids) {
    return RunUntil([&] { return std::none_of(pids.begin(), pids.end(), IsAlive); });
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
};

}  // namespace fsdprun
