#include "formats/checkpoint/claim.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "proto/worker_contract.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kClaimBytesMax = 64 << 10;
constexpr int kPulsesPerTimeout = 30;
constexpr auto kPulseIntervalMin = std::chrono::milliseconds(1);
constexpr int kLooksPerTimeout = 120;
constexpr auto kLookIntervalMin = std::chrono::milliseconds(1);
constexpr int kLookIntervalsPerLook = 2;  // of silence that one look proves
constexpr char kKeeperName[] = "fsdp-keeper";

/// The boot of this machine and the namespace of its process ids.
std::string PidSpace() {
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return space.empty() || boot.empty() ? std::string() : boot + " " + space;
}

struct Process {
  std::string name;
  char state = 0;      // of /proc/<pid>/stat; 0: unknown
  int64_t parent = 0;  // 0: unknown
};

Process LookAtProcess(int64_t pid) {
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
  const size_t begin = text.find('(');
  const size_t end = text.rfind(')');
  Process process;
  if (begin != std::string::npos && end != std::string::npos && begin < end) {
    process.name = text.substr(begin + 1, end - begin - 1);
    std::istringstream(text.substr(end + 1)) >> process.state >> process.parent;
  }
  return process;
}

/// A zombie runs no more; whoever inherits it may take its time to collect it.
bool IsGone(int64_t pid) {
  if (pid <= 0) {
    return false;
  }
  const bool is_absent = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
  const char state = LookAtProcess(pid).state;
  return is_absent || state == 'Z' || state == 'X';
}

/// A launch with an id may start its process again as long as its launcher lives.
bool IsDead(const Claim& claim) {
  return !claim.pid_space.empty() && claim.pid_space == PidSpace() && IsGone(claim.pid) &&
         (claim.job_id.empty() || IsGone(claim.launcher_pid));
}

bool IsSameLaunch(const Claim& a, const Claim& b) {
  return !a.job_id.empty() && a.job_id == b.job_id;
}

/// Whether torchrun has started the process, or what has. Of a process that cannot be looked at:
/// no.
bool IsStartedByTorchrun(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  const std::string start = std::string(contract::kEnvRunId) + "=";
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with(start)) {
      return true;
    }
  }
  return false;
}

// Note [Who starts a process again]
// fsdprun's agent, which starts a new keeper if it loses that, and torchrun's agent, which is the
// nearest ancestor without the variables that torchrun gives. Scripts may stand between them and
// the training. A shell in which somebody has typed the command starts nothing again: that it lives
// says nothing about the launch.

/// 0 if there is none.
int64_t FindLauncher() {
  for (int64_t pid = getppid(); pid > 1;) {
    const Process process = LookAtProcess(pid);
    if (process.name == kKeeperName) {
      return process.parent;
    }
    pid = process.parent;
  }
  if (std::getenv(contract::kEnvRunId) == nullptr) {
    return 0;
  }
  int64_t pid = getppid();
  while (pid > 1 && IsStartedByTorchrun(pid)) {
    pid = LookAtProcess(pid).parent;
  }
  return pid;
}

/// NFS may go on showing a file that was replaced until its directory is opened.
void RefreshDirectory(const std::string& directory) {
  const FileDescriptor opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// Of whatever somebody has put there: 0 for what is none. To convert what does not fit would be
/// undefined.
int64_t WholeNumber(const json& value) {
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

}  // namespace

std::string RandomId() {
  std::random_device entropy;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", entropy(), entropy());
  return text;
}

Claim MakeClaim(const std::string& job_id, uint64_t generation, std::chrono::milliseconds timeout) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const int64_t launcher = job_id.empty() ? 0 : FindLauncher();
  return {job_id, generation, RandomId(), host, getpid(), PidSpace(), launcher, timeout.count()};
}

std::string EncodeClaim(const Claim& claim) {
  const json value = {{"job_id", claim.job_id},
                      {"generation", claim.generation},
                      {"claim", claim.id},
                      {"host", claim.host},
                      {"pid", claim.pid},
                      {"pid_space", claim.pid_space},
                      {"launcher_pid", claim.launcher_pid},
                      {"timeout_ms", claim.timeout_ms}};
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
  RefreshDirectory(directory);
  if (!FileExists(ClaimPath(directory))) {
    return std::nullopt;
  }
  const InputFile file(ClaimPath(directory));
  const json value = json::parse(ReadWholeFile(file, kClaimBytesMax), nullptr, false);
  try {
    if (!value.at("generation").is_number_unsigned()) {
      return std::nullopt;
    }
    ClaimSight sight;
    sight.claim = {value.at("job_id").get<std::string>(),
                   static_cast<uint64_t>(WholeNumber(value.at("generation"))),
                   value.at("claim").get<std::string>(),
                   value.value("host", std::string()),
                   WholeNumber(value.value("pid", json(0))),
                   value.value("pid_space", std::string()),
                   WholeNumber(value.value("launcher_pid", json(0))),
                   WholeNumber(value.value("timeout_ms", json(0)))};
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
                              "; this process (" + Describe(claim) + ") is stale and should end",
                          current && !IsSameLaunch(current->claim, claim) ? kClaimLost : 0);
  }
}

std::chrono::milliseconds LookInterval(std::chrono::milliseconds timeout) {
  return std::max(kLookIntervalMin, timeout / kLooksPerTimeout);
}

std::chrono::milliseconds ClaimWatch::TimeoutFor(const Claim& claim) const {
  const std::chrono::milliseconds holders(claim.timeout_ms);
  return std::max(timeout_, std::min<std::chrono::milliseconds>(holders, kClaimTimeoutMax));
}

ClaimVerdict ClaimWatch::Judge(const std::optional<ClaimSight>& sight, Time now) {
  if (!sight) {
    return ClaimVerdict::kTake;
  }
  if (IsSameLaunch(sight->claim, mine_)) {
    return sight->claim.generation > mine_.generation ? ClaimVerdict::kStale : ClaimVerdict::kTake;
  }
  if (takes_over_ || sight->pulse == 0 || sight->is_dead) {
    return ClaimVerdict::kTake;
  }
  if (!first_) {
    first_ = sight;
    last_look_ = now;
    return ClaimVerdict::kWait;
  }
  if (sight->claim.id != first_->claim.id || sight->pulse != first_->pulse) {
    return ClaimVerdict::kHeld;
  }
  const std::chrono::milliseconds timeout = TimeoutFor(sight->claim);
  silence_ += std::min<Time::duration>(now - std::exchange(last_look_, now),
                                       kLookIntervalsPerLook * LookInterval(timeout));
  return silence_ >= timeout ? ClaimVerdict::kTake : ClaimVerdict::kWait;
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
    do {
      lock.unlock();
      file_system->SetPulse(file, FileSystem::Pulse::kBeat);  // the next one may succeed
      lock.lock();
    } while (!changed.wait_for(lock, interval, [this] { return is_ending; }));
    if (!must_release) {
      return;
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
  // Guarded by mutex.
  bool is_ending = false;
  bool must_release = false;
  bool is_released = false;
};

ClaimPulse::ClaimPulse(std::shared_ptr<FileSystem> file_system, FileDescriptor claim_file,
                       std::chrono::milliseconds interval,
                       std::chrono::milliseconds release_timeout)
    : shared_(std::make_shared<Shared>(std::move(file_system), std::move(claim_file))),
      release_timeout_(release_timeout) {
  std::thread([shared = shared_, interval] { shared->Run(interval); }).detach();
}

ClaimPulse::~ClaimPulse() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->changed.notify_all();
}

void ClaimPulse::Release() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->must_release = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, release_timeout_, [this] { return shared_->is_released; });
}

std::unique_ptr<ClaimPulse> KeepClaim(const std::string& directory, const std::string& job_id) {
  try {
    const std::optional<ClaimSight> before = LookAtClaim(directory);
    if (!before || before->claim.job_id != job_id || before->pulse == 0) {
      return nullptr;
    }
    FileDescriptor file(open(ClaimPath(directory).c_str(), O_WRONLY | O_CLOEXEC));
    // What was opened is what was seen, unless it was replaced in between.
    const std::optional<ClaimSight> after = LookAtClaim(directory);
    if (file.get() < 0 || !after || after->claim.id != before->claim.id) {
      return nullptr;
    }
    const std::chrono::milliseconds timeout(before->claim.timeout_ms);
    return std::make_unique<ClaimPulse>(
        std::make_shared<FileSystem>(), std::move(file),
        PulseInterval(timeout.count() > 0 ? timeout : kClaimTimeout));
  } catch (const CheckpointError&) {
    return nullptr;
  }
}

}  // namespace fsdprun::checkpoint
