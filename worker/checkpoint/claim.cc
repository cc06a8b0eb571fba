#include "worker/checkpoint/claim.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

namespace fsdprun::worker::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kClaimBytesMax = 64 << 10;
constexpr int kPulsesPerTimeout = 30;
constexpr auto kPulseIntervalMin = std::chrono::milliseconds(1);

/// The boot of this machine and the namespace of its process ids.
std::string PidSpace() {
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return space.empty() || boot.empty() ? std::string() : boot + " " + space;
}

bool IsDead(const Claim& claim) {
  return claim.pid > 0 && !claim.pid_space.empty() && claim.pid_space == PidSpace() &&
         kill(static_cast<pid_t>(claim.pid), 0) != 0 && errno == ESRCH;
}

}  // namespace

std::string RandomId() {
  std::random_device entropy;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", entropy(), entropy());
  return text;
}

Claim MakeClaim(const std::string& job_id, uint64_t generation) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return {job_id, generation, RandomId(), host, getpid(), PidSpace()};
}

std::string EncodeClaim(const Claim& claim) {
  const json value = {{"job_id", claim.job_id}, {"generation", claim.generation},
                      {"claim", claim.id},      {"host", claim.host},
                      {"pid", claim.pid},       {"pid_space", claim.pid_space}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string Describe(const Claim& claim) {
  std::string text = claim.job_id.empty() ? "a start without a job id"
                                          : "job '" + claim.job_id + "', generation " +
                                                std::to_string(claim.generation);
  if (claim.pid > 0) {
    text += ", process " + std::to_string(claim.pid) + " on host " + claim.host;
  }
  return text;
}

std::string ClaimPath(const std::string& directory) { return directory + "/.claim"; }

std::optional<ClaimSight> LookAtClaim(const std::string& directory) {
  if (!FileExists(ClaimPath(directory))) {
    return std::nullopt;
  }
  const InputFile file(ClaimPath(directory));
  const json value = json::parse(ReadWholeFile(file, kClaimBytesMax), nullptr, false);
  try {
    ClaimSight sight;
    sight.claim = {value.at("job_id").get<std::string>(), value.at("generation").get<uint64_t>(),
                   value.at("claim").get<std::string>(),  value.value("host", std::string()),
                   value.value("pid", int64_t{0}),        value.value("pid_space", std::string())};
    sight.pulse = file.modified_ns();
    sight.is_dead = IsDead(sight.claim);
    return sight;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

void CheckClaim(const std::string& directory, const Claim& claim, const std::string& action) {
  const std::optional<ClaimSight> current = LookAtClaim(directory);
  if (!current || current->claim.id != claim.id) {
    throw CheckpointError("cannot " + action + " in " + directory + ": " +
                          (current ? Describe(current->claim) + " has claimed it since"
                                   : "its claim file has been removed or damaged") +
                          "; this process (" + Describe(claim) + ") is stale and should end");
  }
}

ClaimVerdict ClaimWatch::Judge(const std::optional<ClaimSight>& sight, Time now) {
  if (!sight) {
    return ClaimVerdict::kTake;
  }
  if (!mine_.job_id.empty() && sight->claim.job_id == mine_.job_id) {
    return sight->claim.generation > mine_.generation ? ClaimVerdict::kStale : ClaimVerdict::kTake;
  }
  if (takes_over_ || sight->pulse == 0 || sight->is_dead) {
    return ClaimVerdict::kTake;
  }
  if (!first_) {
    first_ = sight;
    since_ = now;
    return ClaimVerdict::kWait;
  }
  if (sight->claim.id != first_->claim.id || sight->pulse != first_->pulse) {
    return ClaimVerdict::kHeld;
  }
  return now - since_ >= timeout_ ? ClaimVerdict::kTake : ClaimVerdict::kWait;
}

std::chrono::milliseconds PulseInterval(std::chrono::milliseconds timeout) {
  return std::max(kPulseIntervalMin, timeout / kPulsesPerTimeout);
}

/// Outlives the object if a call of the thread does not return.
struct ClaimPulse::Shared {
  Shared(std::shared_ptr<FileSystem> given, FileDescriptor claim_file)
      : file_system(std::move(given)), file(std::move(claim_file)) {}

  void Run(std::chrono::milliseconds interval) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!changed.wait_for(lock, interval, [this] { return is_ending; })) {
      lock.unlock();
      file_system->SetPulse(file, FileSystem::Pulse::kBeat);  // the next one may succeed
      lock.lock();
    }
    lock.unlock();
    file_system->SetPulse(file, FileSystem::Pulse::kNone);
    lock.lock();
    is_released = true;
    changed.notify_all();
  }

  const std::shared_ptr<FileSystem> file_system;
  const FileDescriptor file;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_ending = false;    // guarded by mutex
  bool is_released = false;  // guarded by mutex
};

ClaimPulse::ClaimPulse(std::shared_ptr<FileSystem> file_system, FileDescriptor claim_file,
                       std::chrono::milliseconds interval,
                       std::chrono::milliseconds release_timeout)
    : shared_(std::make_shared<Shared>(std::move(file_system), std::move(claim_file))),
      release_timeout_(release_timeout) {
  std::thread([shared = shared_, interval] { shared->Run(interval); }).detach();
}

ClaimPulse::~ClaimPulse() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, release_timeout_, [this] { return shared_->is_released; });
}

}  // namespace fsdprun::worker::checkpoint
