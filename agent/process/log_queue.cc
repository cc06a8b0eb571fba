#include "agent/process/log_queue.h"

#include <cstring>

namespace fsdprun::keeper {
namespace {

/// The largest output of one request; what must fit for the workers to go on.
constexpr size_t kUsualPayloadBytes = 32u << 10;

}  // namespace

LogQueue::LogQueue() { bytes_.reserve(2 * kMaxBytes); }

bool LogQueue::HasRoom(size_t payload_bytes) const {
  return bytes_.size() - front_ + sizeof(LogRequest) + payload_bytes <= kMaxBytes;
}

void LogQueue::Add(const LogRequest& request, std::string_view payload) {
  if (front_ >= kMaxBytes) {  // Moving what is left from time to time keeps this cheap.
    bytes_.erase(0, front_);
    unsent_ -= front_;
    front_ = 0;
  }
  LogRequest sized = request;
  sized.size = static_cast<uint32_t>(payload.size());
  bytes_.append(reinterpret_cast<const char*>(&sized), sizeof(sized));
  bytes_.append(payload);
}

LogQueue::Entry LogQueue::At(size_t offset) const {
  Entry entry;
  std::memcpy(&entry.request, bytes_.data() + offset, sizeof(entry.request));
  entry.payload = std::string_view(bytes_).substr(offset + sizeof(LogRequest), entry.request.size);
  return entry;
}

std::string_view LogQueue::NextUnsent() const {
  return unsent_ == bytes_.size() ? std::string_view()
                                  : std::string_view(bytes_).substr(
                                        unsent_, sizeof(LogRequest) + At(unsent_).payload.size());
}

void LogQueue::MarkSent() { unsent_ += NextUnsent().size(); }

LogQueue::Entry LogQueue::Front() const { return At(front_); }

void LogQueue::Pop() {
  front_ += sizeof(LogRequest) + Front().payload.size();
  unsent_ = unsent_ < front_ ? front_ : unsent_;
  if (is_empty()) {
    bytes_.clear();
    front_ = 0;
    unsent_ = 0;
  }
  awaited_since_ns_.reset();  // An answer is a sign of life.
}

void LogQueue::Observe(bool is_awaited, int64_t now_ns) {
  if (is_empty() || (!is_awaited && HasRoom(kUsualPayloadBytes))) {
    awaited_since_ns_.reset();
  } else if (!awaited_since_ns_) {
    awaited_since_ns_ = now_ns;
  }
}

int64_t LogQueue::DeadlineNs() const {
  return awaited_since_ns_ ? *awaited_since_ns_ + kAnswerLimitNs : kNever;
}

void LogQueue::Extend(int64_t now_ns) { awaited_since_ns_ = now_ns; }

}  // namespace fsdprun::keeper
