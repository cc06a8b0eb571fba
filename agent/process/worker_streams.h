#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/process/output_tail.h"

namespace fsdprun::keeper {

/// Closes `fd` and makes it -1.
void CloseFd(int& fd);

/// One output stream of a worker: a pipe that is copied to a log file, or forwarded to the agent
/// when the file cannot be written.
class LogStream {
 public:
  /// `tail_bytes`: how much of its end is kept in memory.
  explicit LogStream(size_t tail_bytes) : tail_(tail_bytes) {}
  ~LogStream();
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;

  /// Makes the pipe and creates the file; returns the write end for the worker, or -1 with errno. A
  /// file that cannot be created degrades the stream, it does not fail it.
  int Open(const std::string& path);

  /// Reads once into `buffer` and appends it to the file. Returns the bytes that could not be
  /// written, valid until the next call. The file is not retried after the first error, so that it
  /// holds a prefix of the stream.
  std::string_view ReadOnce(char* buffer, size_t size);

  void Close();

  int pipe() const { return pipe_; }
  bool is_open() const { return pipe_ >= 0; }
  /// Nothing is in the pipe right now (as of the last ReadOnce).
  bool is_drained() const { return pipe_ < 0 || is_empty_; }
  /// errno of the file; 0 while it works.
  int file_error() const { return file_error_; }
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  /// The end of everything read, whether or not it reached the file.
  const OutputTail& tail() const { return tail_; }

  /// Reports that are not yet queued to the agent.
  bool growth_pending = false;
  bool degradation_pending = false;

 private:
  size_t Store(const char* data, size_t size);
  void Degrade(int error);

  int pipe_ = -1;
  int file_ = -1;
  std::string path_;
  uint64_t size_bytes_ = 0;
  int file_error_ = 0;
  bool is_empty_ = true;
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
