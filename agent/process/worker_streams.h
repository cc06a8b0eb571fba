#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/process/output_tail.h"

namespace fsdprun::keeper {

/// Closes `fd` and makes it -1.
void CloseFd(int& fd);

/// One output stream of a worker: a pipe whose bytes go to a log file, or to the agent when the
/// file cannot be written. Knows where they go; moving them is the keeper's.
class LogStream {
 public:
  /// `tail_bytes`: how much of its end is kept in memory.
  explicit LogStream(size_t tail_bytes) : tail_(tail_bytes) {}
  ~LogStream();
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;

  /// Makes the pipe; returns the write end for the worker, or -1 with errno.
  int MakePipe();
  /// Output is to go to the file `path`, which is not open yet.
  void SetPath(const std::string& path) { path_ = path; }
  /// The log writer has been asked to open it as `file`.
  void BeginFile(uint64_t file);

  /// Reads once into `buffer`; empty if nothing is there. Valid until the next call.
  std::string_view ReadOnce(char* buffer, size_t size);

  /// Bytes have been given to the log writer.
  void OnRequest() { ++unanswered_; }
  void OnAnswer(uint64_t written_bytes);
  /// The file is not used any more; why, for the agent. Its first call counts.
  void Degrade(int error, const std::string& why);

  void Close();

  int pipe() const { return pipe_; }
  bool is_open() const { return pipe_ >= 0; }
  /// Nothing is in the pipe right now (as of the last ReadOnce).
  bool is_drained() const { return pipe_ < 0 || is_empty_; }
  /// The log writer has answered everything.
  bool is_settled() const { return unanswered_ == 0; }
  /// The log writer has not answered yet whether it could open the file.
  bool is_opening() const { return is_opening_; }
  /// Output goes to a file; otherwise to the agent, once the stream is settled.
  bool has_file() const { return !path_.empty() && degradation_.empty(); }
  /// Nobody has asked for the file yet.
  bool is_unopened() const { return has_file() && file_ == 0; }
  uint64_t file() const { return file_; }
  int file_error() const { return file_error_; }
  /// Why the file is not used; empty while it is.
  const std::string& degradation() const { return degradation_; }
  const std::string& path() const { return path_; }
  /// What the log writer has put into the file.
  uint64_t size_bytes() const { return size_bytes_; }
  /// The end of everything read, whether or not it reached the file.
  const OutputTail& tail() const { return tail_; }

  /// The file has grown by more than the agent was told.
  bool growth_pending = false;

 private:
  int pipe_ = -1;
  std::string path_;
  uint64_t file_ = 0;
  uint64_t size_bytes_ = 0;
  int unanswered_ = 0;
  int file_error_ = 0;
  std::string degradation_;
  bool is_empty_ = true;
  bool is_opening_ = false;
  OutputTail tail_;
};

/// The keeper's end of a worker's control socket: splits the byte stream into lines of bounded
/// length.
class ControlSocket {
 public:
  ControlSocket() = default;
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  /// Returns the worker's end, or -1 with errno.
  int Open();
  /// Receives what has arrived; closes at end of file. Call TakeLine until it is false before the
  /// next Receive.
  void Receive();
  /// The next whole line without its newline; valid until the next Receive. False when there is
  /// none.
  bool TakeLine(std::string_view& line);
  /// True once after an over-long line was dropped.
  bool TakeOverflow();
  /// Queues one line. False when the worker has not read earlier ones.
  bool SendLine(std::string_view line);
  /// Sends the rest of a line that did not fit.
  void Flush();
  void Close();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  bool wants_to_write() const { return !unsent_.empty(); }

 private:
  int fd_ = -1;
  std::string incoming_;
  size_t taken_ = 0;
  std::string unsent_;
  bool skips_to_newline_ = false;
  bool overflowed_ = false;
};

}  // namespace fsdprun::keeper
