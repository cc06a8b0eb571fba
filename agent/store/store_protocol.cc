#include "agent/store/store_protocol.h"

#include <cstring>

namespace fsdprun {
namespace {

/// Walks over a request. Measuring first and copying afterwards avoids copying an incomplete
/// request each time another piece of it arrives.
class Cursor {
 public:
  Cursor(std::string_view bytes, const StoreRequestLimits& limits)
      : bytes_(bytes), limits_(limits) {}

  template <class Integer>
  bool Int(Integer& value) {
    if (!Has(sizeof(value))) {
      return false;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return true;
  }
  bool Text(size_t limit, std::vector<std::string>* out) {
    uint64_t size = 0;
    if (!Int(size)) {
      return false;
    }
    if (size > limit) {
      is_invalid_ = true;
      return false;
    }
    if (!Has(static_cast<size_t>(size))) {
      return false;
    }
    if (out != nullptr) {
      out->emplace_back(bytes_.substr(at_, static_cast<size_t>(size)));
    }
    at_ += static_cast<size_t>(size);
    return true;
  }
  bool Key(std::vector<std::string>* out) { return Text(limits_.max_key_bytes, out); }
  bool Value(std::vector<std::string>* out) { return Text(limits_.max_value_bytes, out); }
  bool Count(uint64_t& count) {
    if (!Int(count)) {
      return false;
    }
    is_invalid_ = count > limits_.max_keys;
    return !is_invalid_;
  }
  void Refuse() { is_invalid_ = true; }
  bool is_invalid() const { return is_invalid_; }
  size_t position() const { return at_; }
  size_t needed() const { return needed_; }

 private:
  bool Has(size_t size) {
    needed_ = at_ + size;
    is_invalid_ = is_invalid_ || needed_ > limits_.max_request_bytes;
    return !is_invalid_ && bytes_.size() >= needed_;
  }

  const std::string_view bytes_;
  const StoreRequestLimits& limits_;
  size_t at_ = 0;
  size_t needed_ = 0;
  bool is_invalid_ = false;
};

bool ReadPairs(Cursor& cursor, bool has_values, StoreRequest* out) {
  uint64_t count = 0;
  if (!cursor.Count(count)) {
    return false;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (!cursor.Key(out ? &out->keys : nullptr) ||
        (has_values && !cursor.Value(out ? &out->values : nullptr))) {
      return false;
    }
  }
  return true;
}

bool ReadWord(Cursor& cursor, StoreRequest* out) {
  uint32_t word = 0;
  if (!cursor.Int(word)) {
    return false;
  }
  if (out != nullptr) {
    out->number = word;
  }
  return true;
}

bool ReadAmount(Cursor& cursor, StoreRequest* out) {
  int64_t amount = 0;
  if (!cursor.Int(amount)) {
    return false;
  }
  if (out != nullptr) {
    out->number = amount;
  }
  return true;
}

/// Reads the arguments of `op`; into `out` unless it is null.
bool ReadArguments(Cursor& cursor, StoreOp op, StoreRequest* out) {
  std::vector<std::string>* keys = out ? &out->keys : nullptr;
  std::vector<std::string>* values = out ? &out->values : nullptr;
  switch (op) {
    case StoreOp::kValidate:
    case StoreOp::kPing:
      return ReadWord(cursor, out);
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kQueuePush:
      return cursor.Key(keys) && cursor.Value(values);
    case StoreOp::kCompareSet:
      return cursor.Key(keys) && cursor.Value(values) && cursor.Value(values);
    case StoreOp::kGet:
    case StoreOp::kDelete:
    case StoreOp::kQueuePop:
    case StoreOp::kQueueLength:
      return cursor.Key(keys);
    case StoreOp::kAdd:
      return cursor.Key(keys) && ReadAmount(cursor, out);
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
      return ReadPairs(cursor, /*has_values=*/false, out);
    case StoreOp::kMultiSet:
      return ReadPairs(cursor, /*has_values=*/true, out);
    case StoreOp::kKeyCount:
    case StoreOp::kCancelWait:
    case StoreOp::kListKeys:
      return true;
  }
  cursor.Refuse();
  return false;
}

}  // namespace

StoreParse ParseStoreRequest(std::string_view bytes, const StoreRequestLimits& limits,
                             StoreRequest& request, size_t& consumed, size_t& needed) {
  Cursor measure(bytes, limits);
  uint8_t op = 0;
  const bool is_complete =
      measure.Int(op) && ReadArguments(measure, static_cast<StoreOp>(op), nullptr);
  if (!is_complete) {
    needed = measure.needed();
    return measure.is_invalid() ? StoreParse::kInvalid : StoreParse::kIncomplete;
  }
  consumed = measure.position();
  request = StoreRequest{.op = static_cast<StoreOp>(op)};
  Cursor copy(bytes, limits);
  copy.Int(op);
  ReadArguments(copy, request.op, &request);
  return StoreParse::kComplete;
}

}  // namespace fsdprun
