// A client's byte stream -> requests -> KeyValueTable. Properties: encoding a decoded request gives
// the bytes it was decoded from; limits reject exactly what exceeds them; the table agrees with a
// plain map.

#include <algorithm>
#include <map>
#include <string>

#include "agent/store/key_value_table.h"
#include "agent/store/store_protocol.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

constexpr StoreRequestLimits kTight{
    .max_key_bytes = 8, .max_value_bytes = 24, .max_keys = 3, .max_request_bytes = 64};

template <class Integer>
void PutInt(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(std::string& out, const std::string& text) {
  PutInt(out, uint64_t{text.size()});
  out += text;
}

/// The bytes that a client sends for `request`.
std::string Encode(const StoreRequest& request) {
  std::string out(1, static_cast<char>(request.op));
  switch (request.op) {
    case StoreOp::kValidate:
    case StoreOp::kPing:
      PutInt(out, static_cast<uint32_t>(request.number));
      return out;
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
    case StoreOp::kMultiSet:
      PutInt(out, uint64_t{request.keys.size()});
      break;
    default:
      break;
  }
  const bool has_pairs = request.op == StoreOp::kMultiSet;
  for (size_t i = 0; i < request.keys.size(); ++i) {
    PutText(out, request.keys[i]);
    if (has_pairs) {
      PutText(out, request.values[i]);
    }
  }
  for (size_t i = 0; !has_pairs && i < request.values.size(); ++i) {
    PutText(out, request.values[i]);
  }
  if (request.op == StoreOp::kAdd) {
    PutInt(out, request.number);
  }
  return out;
}

struct Parsed {
  StoreParse state = StoreParse::kInvalid;
  StoreRequest request;
  size_t consumed = 0;
  size_t needed = 0;
};

Parsed Parse(std::string_view bytes, const StoreRequestLimits& limits) {
  Parsed parsed;
  {
    const fuzz::MemoryBound bound((16 << 10) + 32 * bytes.size());
    parsed.state = ParseStoreRequest(bytes, limits, parsed.request, parsed.consumed, parsed.needed);
  }
  if (parsed.state == StoreParse::kComplete) {
    FSDPRUN_CHECK(parsed.consumed > 0 && parsed.consumed <= bytes.size(),
                  "consumed more than there is");
    FSDPRUN_CHECK(Encode(parsed.request) == bytes.substr(0, parsed.consumed),
                  "request differs after a round trip");
  } else if (parsed.state == StoreParse::kIncomplete) {
    FSDPRUN_CHECK(parsed.needed > bytes.size(), "incomplete, but enough bytes");
  }
  return parsed;
}

bool IsWithinTightLimits(const Parsed& parsed) {
  const auto fits = [](const std::vector<std::string>& texts, size_t limit) {
    return std::all_of(texts.begin(), texts.end(),
                       [limit](const std::string& text) { return text.size() <= limit; });
  };
  return fits(parsed.request.keys, kTight.max_key_bytes) &&
         fits(parsed.request.values, kTight.max_value_bytes) &&
         parsed.request.keys.size() <= kTight.max_keys &&
         parsed.consumed <= kTight.max_request_bytes;
}

/// Tighter limits reject exactly what exceeds them; a prefix of a request is incomplete.
void CheckLimitsAndPrefixes(std::string_view bytes, const Parsed& parsed) {
  const Parsed tight = Parse(bytes, kTight);
  if (parsed.state == StoreParse::kComplete) {
    FSDPRUN_CHECK((tight.state == StoreParse::kComplete) == IsWithinTightLimits(parsed),
                  "limits not applied exactly");
    for (const size_t size : {size_t{0}, parsed.consumed / 2, parsed.consumed - 1}) {
      FSDPRUN_CHECK(Parse(bytes.substr(0, size), {}).state == StoreParse::kIncomplete,
                    "prefix of a request is not incomplete");
    }
  } else {
    FSDPRUN_CHECK(tight.state != StoreParse::kComplete, "tighter limits accept more");
  }
}

/// Applies requests to a KeyValueTable and to a plain map.
class Tables {
 public:
  void Apply(const StoreRequest& request) {
    for (size_t i = 0; i < request.keys.size(); ++i) {
      ApplyToKey(request, request.keys[i], i);
    }
    if (request.op == StoreOp::kWait && !table_.ExistAll(request.keys)) {
      table_.AddWaiter(kWaiter, request.keys);
    } else if (request.op == StoreOp::kCancelWait) {
      table_.RemoveWaiter(kWaiter);
    }
  }

  void Check() {
    size_t bytes = queue_bytes_;
    for (const auto& [key, value] : plain_) {
      const std::string* found = table_.Find(key);
      FSDPRUN_CHECK(found != nullptr && *found == value, "wrong value");
      bytes += key.size() + value.size();
    }
    FSDPRUN_CHECK(table_.KeyCount() == plain_.size(), "wrong number of keys");
    FSDPRUN_CHECK(table_.SizeBytes() == bytes, "wrong size in bytes");
  }

 private:
  static constexpr KeyValueTable::ClientId kWaiter = 1;

  void ApplyToKey(const StoreRequest& request, const std::string& key, size_t i) {
    switch (request.op) {
      case StoreOp::kSet:
      case StoreOp::kMultiSet:
        table_.Set(key, request.values[i]);
        plain_[key] = request.values[i];
        return Notify(key);
      case StoreOp::kAppend:
        table_.Append(key, request.values[0]);
        plain_[key] += request.values[0];
        return Notify(key);
      case StoreOp::kCompareSet:
        if (table_.CompareSet(key, request.values[0], request.values[1]) == request.values[1] &&
            table_.Exists(key) && table_.Find(key) != nullptr) {
          plain_[key] = *table_.Find(key);
        }
        return;
      case StoreOp::kAdd:
        if (const auto sum = table_.Add(key, request.number)) {
          plain_[key] = std::to_string(*sum);
          Notify(key);
        }
        return;
      case StoreOp::kDelete:
        FSDPRUN_CHECK(table_.Delete(key) == (plain_.erase(key) == 1), "wrong result of a deletion");
        return;
      case StoreOp::kQueuePush:
        table_.Push(key, request.values[0]);
        queue_bytes_ += key.size() + request.values[0].size();
        return Notify(key);
      case StoreOp::kQueuePop:
        if (const auto value = table_.Pop(key)) {
          queue_bytes_ -= key.size() + value->size();
        }
        return;
      default:
        return;
    }
  }
  void Notify(const std::string& key) {
    for (const KeyValueTable::ClientId client : table_.TakeSatisfied(key, 1)) {
      FSDPRUN_CHECK(client == kWaiter && !table_.IsWaiting(client), "notified client still waits");
    }
  }

  KeyValueTable table_;
  std::map<std::string, std::string> plain_;
  size_t queue_bytes_ = 0;
};

void Fuzz(std::string_view stream) {
  Tables tables;
  for (;;) {
    const Parsed parsed = Parse(stream, {});
    CheckLimitsAndPrefixes(stream, parsed);
    if (parsed.state != StoreParse::kComplete) {
      break;
    }
    tables.Apply(parsed.request);
    stream.remove_prefix(parsed.consumed);
  }
  tables.Check();
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
