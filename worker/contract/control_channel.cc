#include "worker/contract/control_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "proto/worker_contract.h"

namespace fsdprun::worker {
namespace {

using Json = nlohmann::json;

Json Record(std::string_view type) {
  return Json{{"v", contract::kControlVersion}, {"type", std::string(type)}};
}

std::string Dump(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// The record with as much of `text` under `key` as fits. Escapes can make the encoded text six
/// times longer, so the text is halved until it fits.
std::string DumpWithText(Json record, const char* key, std::string_view text) {
  text = text.substr(0, contract::kMaxRecordBytes);
  for (;;) {
    record[key] = std::string(text);
    std::string line = Dump(record);
    if (line.size() <= static_cast<size_t>(contract::kMaxRecordBytes) || text.empty()) {
      return line;
    }
    text = text.substr(0, text.size() / 2);
  }
}

}  // namespace

ControlChannel::ControlChannel(int fd) : fd_(fd) {
  if (fd_ >= 0) {
    // A descriptor that is not a Unix socket belongs to something else and must not be closed.
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::getsockopt(fd_, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) {
      fd_ = -1;
      return;
    }
    // Children of the worker must not hold the agent's socket open.
    ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  }
}

ControlChannel::~ControlChannel() { CloseFd(); }

bool ControlChannel::SendHello(int rank, uint64_t generation) {
  Json record = Record(contract::kRecordHello);
  record["rank"] = rank;
  record["generation"] = generation;
  record["pid"] = ::getpid();
  return SendLine(Dump(record));
}

bool ControlChannel::SendProgress(int64_t step, int64_t total, std::string_view text) {
  Json record = Record(contract::kRecordProgress);
  record["step"] = step;
  record["total"] = total;
  return SendLine(text.empty() ? Dump(record) : DumpWithText(std::move(record), "text", text));
}

bool ControlChannel::SendCheckpoint(int64_t step, std::string_view path) {
  Json record = Record(contract::kRecordCheckpoint);
  record["step"] = step;
  return SendLine(DumpWithText(std::move(record), "path", path));
}

bool ControlChannel::SendNoCheckpoint(int64_t step, std::string_view error) {
  Json record = Record(contract::kRecordCheckpoint);
  record["step"] = step;
  return SendLine(DumpWithText(std::move(record), "error", error));
}

bool ControlChannel::SendDone() { return SendLine(Dump(Record(contract::kRecordDone))); }

bool ControlChannel::SendLine(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto send = [this](const std::string& bytes) -> ssize_t {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      CloseFd();
    }
    return std::max<ssize_t>(n, 0);
  };
  if (fd_ >= 0 && !unsent_.empty()) {
    unsent_.erase(0, static_cast<size_t>(send(unsent_)));
  }
  if (fd_ < 0 || !unsent_.empty()) {
    return false;
  }
  const auto sent = static_cast<size_t>(send(line));
  if (sent > 0) {
    unsent_ = line.substr(sent);
  }
  return sent > 0;
}

bool ControlChannel::TakeSave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(wants_save_, false);
}

bool ControlChannel::is_open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fd_ >= 0;
}

std::optional<StopRequest> ControlChannel::PollStop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  char buffer[4096];
  while (fd_ >= 0) {
    const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      CloseFd();
    }
    if (got <= 0) {
      break;
    }
    incoming_.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = incoming_.find('\n')) != std::string::npos;
         incoming_.erase(0, end + 1)) {
      if (!skips_to_newline_) {
        ParseLine(std::string_view(incoming_).substr(0, end));
      }
      skips_to_newline_ = false;
    }
    if (incoming_.size() > static_cast<size_t>(contract::kMaxRecordBytes)) {
      skips_to_newline_ = true;
      incoming_.clear();
    }
  }
  return stop_;
}

void ControlChannel::ParseLine(std::string_view line) {
  const Json record = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("type") || !record["type"].is_string()) {
    return;
  }
  const std::string& type = record["type"].get_ref<const std::string&>();
  if (type == contract::kRecordSave) {
    wants_save_ = true;
  }
  if (type != contract::kRecordStop) {
    return;
  }
  StopRequest request;
  if (const auto grace = record.find("grace_ms");
      grace != record.end() && grace->is_number_integer()) {
    request.grace_ms = std::max<int64_t>(grace->get<int64_t>(), 0);
  }
  stop_ = request;
}

void ControlChannel::CloseFd() {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

}  // namespace fsdprun::worker
