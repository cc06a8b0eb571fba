#include "worker/metrics/background_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace fsdprun::worker {

struct BackgroundFile::State {
  std::mutex mu;
  std::condition_variable changed;
  // All below is guarded by mu.
  std::string pending;
  /// Something was added since the last attempt.
  bool is_new = false;
  bool is_ending = false;
  bool has_ended = false;
  int error = 0;  // of the last attempt
  int64_t dropped = 0;
  size_t writing_bytes = 0;
  std::optional<Clock::time_point> writing_since;

  /// Of the thread.
  void Run(const Append& append);
  /// One attempt to write all that is there. Called with mu held, which it gives up meanwhile.
  void Attempt(const Append& append, std::unique_lock<std::mutex>& lock);
};

void BackgroundFile::State::Attempt(const Append& append, std::unique_lock<std::mutex>& lock) {
  std::string taken = std::exchange(pending, {});
  is_new = false;
  writing_bytes = taken.size();
  writing_since = Clock::now();
  lock.unlock();
  const int result = taken.empty() ? 0 : append(taken);
  lock.lock();
  writing_since.reset();
  writing_bytes = 0;
  error = result;
  if (result != 0) {
    pending.insert(0, taken);
  }
}

void BackgroundFile::State::Run(const Append& append) {
  std::unique_lock lock(mu);
  while (true) {
    changed.wait(lock, [this] { return is_new || is_ending; });
    const bool is_last = is_ending;
    Attempt(append, lock);
    if (is_last) {
      break;
    }
  }
  has_ended = true;
  changed.notify_all();
}

BackgroundFile::BackgroundFile(std::string path, Append append, Limits limits)
    : path_(std::move(path)), limits_(limits), state_(std::make_shared<State>()) {
  // Detached, because nobody can end a thread whose write never returns; what it uses is its own.
  std::thread([state = state_, append = std::move(append)] { state->Run(append); }).detach();
}

BackgroundFile::~BackgroundFile() {
  if (!is_over_) {
    End();
  }
}

std::optional<std::string> BackgroundFile::End() {
  is_over_ = true;
  std::unique_lock lock(state_->mu);
  state_->is_ending = true;
  state_->changed.notify_all();
  if (!state_->changed.wait_for(lock, limits_.end_max, [this] { return state_->has_ended; })) {
    return Describe("its last records were not written in time; is the file system slow or hung?");
  }
  return state_->error != 0 ? std::optional(Describe(std::strerror(state_->error))) : std::nullopt;
}

std::string BackgroundFile::Describe(const std::string& fault) const {
  const std::string lost =
      state_->dropped > 0 ? " (" + std::to_string(state_->dropped) + " records are lost)" : "";
  return "cannot write " + path_ + ": " + fault + lost;
}

void BackgroundFile::Add(std::string_view record) {
  const std::lock_guard lock(state_->mu);
  if (state_->pending.size() + state_->writing_bytes + record.size() > limits_.kept_bytes) {
    ++state_->dropped;
    return;
  }
  state_->pending.append(record);
  state_->is_new = true;
  state_->changed.notify_all();
}

std::optional<std::string> BackgroundFile::Fault(Clock::time_point now) const {
  const std::lock_guard lock(state_->mu);
  std::string fault;
  if (state_->writing_since && now - *state_->writing_since > limits_.hung_after) {
    const auto time =
        std::chrono::duration_cast<std::chrono::seconds>(now - *state_->writing_since);
    fault = "no answer for " + std::to_string(time.count()) + " s; is the file system hung?";
  } else if (state_->error != 0) {
    fault = std::strerror(state_->error);
  } else {
    return std::nullopt;
  }
  return Describe(fault);
}

NewAppendedFile::NewAppendedFile(std::string path) : path_(std::move(path)) {}

NewAppendedFile::~NewAppendedFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

int NewAppendedFile::Open() {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  if (error) {
    return error.value();
  }
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return fd_ < 0 ? errno : 0;
}

int NewAppendedFile::Write(std::string_view bytes) {
  if (fd_ < 0) {
    if (const int error = Open(); error != 0) {
      return error;
    }
  }
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = pwrite(fd_, bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(size_ + static_cast<int64_t>(done)));
    if (count < 0 && errno != EINTR) {
      const int error = errno;
      // If it stays, the next attempt writes over it.
      [[maybe_unused]] const int cut = ftruncate(fd_, static_cast<off_t>(size_));
      return error;
    }
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(bytes.size());
  return 0;
}

}  // namespace fsdprun::worker
