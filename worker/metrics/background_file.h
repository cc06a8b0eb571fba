#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// Appends to a file from a thread of its own, so that a file system that is slow, full or hung
/// costs the caller no time. What cannot be written is kept, up to a limit, and tried again with
/// what comes next. Thread: one, but for `append`.
class BackgroundFile {
 public:
  using Clock = std::chrono::steady_clock;
  /// Appends all of `bytes`, or nothing; returns errno, or 0. Called from the thread, one call at a
  /// time; it may never return.
  using Append = std::function<int(std::string_view bytes)>;

  struct Limits {
    size_t kept_bytes = size_t{16} << 20;
    /// So long may one append take until it is a fault.
    Clock::duration hung_after = std::chrono::seconds(30);
    /// So long the end waits for what is not written yet.
    Clock::duration end_max = std::chrono::seconds(2);
  };

  /// `path`: in faults.
  BackgroundFile(std::string path, Append append, Limits limits);
  /// As End().
  ~BackgroundFile();
  BackgroundFile(const BackgroundFile&) = delete;
  BackgroundFile& operator=(const BackgroundFile&) = delete;

  /// Does not wait for the file. Beyond `kept_bytes` records are dropped.
  void Add(std::string_view record);
  /// Nothing is added any more. Waits for what is not written yet, for `end_max` at most, and
  /// leaves a thread that hangs behind. Returns what is wrong then, and so is lost, as one line.
  std::optional<std::string> End();
  /// What is wrong with the file as of `now`, as one line; nullopt: nothing that is known.
  std::optional<std::string> Fault(Clock::time_point now) const;

 private:
  struct State;

  /// "cannot write PATH: FAULT (3 records are lost)".
  std::string Describe(const std::string& fault) const;

  std::string path_;
  Limits limits_;
  /// Shared with the thread, which may outlive this object.
  std::shared_ptr<State> state_;
  bool is_over_ = false;
};

/// Appends to a new file below a folder that is made with it; both when the first bytes come. An
/// append that fails leaves no part of itself. Thread: one.
class NewAppendedFile {
 public:
  explicit NewAppendedFile(std::string path);
  ~NewAppendedFile();
  NewAppendedFile(const NewAppendedFile&) = delete;
  NewAppendedFile& operator=(const NewAppendedFile&) = delete;

  /// As BackgroundFile::Append.
  int Write(std::string_view bytes);

 private:
  int Open();

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace fsdprun::worker
