// The effect of each client operation on the table, and its reply.

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/store/store_server_internal.h"
#include "base/check.h"

namespace fsdprun {
namespace {

constexpr auto kEveryone = std::numeric_limits<size_t>::max();
constexpr uint8_t kReady = 0;
constexpr uint8_t kNotReady = 1;
constexpr uint8_t kStopWaiting = 0;
constexpr uint8_t kWaitCanceled = 1;

template <class Integer>
void PutInt(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(std::string& out, std::string_view text) {
  PutInt(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

}  // namespace

void StoreServer::Apply(Connection& connection, StoreRequest& request) {
  if (!connection.is_validated) {
    connection.is_validated =
        request.op == StoreOp::kValidate && request.number == kStoreValidationWord;
    loop_.Cancel(std::exchange(connection.handshake_timer, 0));
    if (!connection.is_validated) {
      Refuse(connection, "it did not start with the store's handshake");
    }
    return;
  }
  switch (request.op) {
    case StoreOp::kPing:
      return PutInt(connection.replies, static_cast<uint32_t>(request.number));
    case StoreOp::kValidate:
      return Refuse(connection, "it sent the handshake twice");
    case StoreOp::kKeyCount:
      return PutInt(connection.replies, static_cast<int64_t>(table_.KeyCount()));
    case StoreOp::kListKeys:
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kCancelWait:
    case StoreOp::kMultiGet:
    case StoreOp::kMultiSet:
      return ApplyToKeys(connection, request);
    case StoreOp::kQueuePush:
    case StoreOp::kQueuePop:
    case StoreOp::kQueueLength:
      return ApplyToQueue(connection, request);
    default:
      return ApplyToValue(connection, request);
  }
}

void StoreServer::ApplyToValue(Connection& connection, StoreRequest& request) {
  const std::string& key = request.keys[0];
  switch (request.op) {
    case StoreOp::kSet:
      table_.Set(key, std::move(request.values[0]));
      return Wake(key, kEveryone);
    case StoreOp::kAppend:
      table_.Append(key, request.values[0]);
      return Wake(key, kEveryone);
    case StoreOp::kCompareSet:
      PutText(connection.replies, table_.CompareSet(key, request.values[0], request.values[1]));
      return table_.Exists(key) ? Wake(key, kEveryone) : void();
    case StoreOp::kAdd: {
      const std::optional<int64_t> sum = table_.Add(key, request.number);
      if (!sum) {
        return Refuse(connection, "it adds to a value that is not a number");
      }
      PutInt(connection.replies, *sum);
      return Wake(key, kEveryone);
    }
    case StoreOp::kGet: {
      // PyTorch's server answers a missing key with an empty value; its clients wait first.
      const std::string* value = table_.Find(key);
      return PutText(connection.replies, value ? std::string_view(*value) : std::string_view());
    }
    case StoreOp::kDelete:
      return PutInt(connection.replies, static_cast<int64_t>(table_.Delete(key)));
    default:
      FSDPRUN_CHECK(false, "an operation on a value is missing here");
  }
}

void StoreServer::ApplyToKeys(Connection& connection, StoreRequest& request) {
  switch (request.op) {
    case StoreOp::kCheck:
      return PutInt(connection.replies, table_.ExistAll(request.keys) ? kReady : kNotReady);
    case StoreOp::kWait:
      if (table_.ExistAll(request.keys)) {
        return PutInt(connection.replies, kStopWaiting);
      }
      table_.AddWaiter(connection.id, request.keys);
      if (table_.AwaitedBytes() > limits_.max_awaited_bytes) {
        Refuse(connection, absl::StrCat("clients wait for keys of ", table_.AwaitedBytes(),
                                        " bytes, the limit is ", limits_.max_awaited_bytes));
      }
      return;
    case StoreOp::kCancelWait:
      table_.RemoveWaiter(connection.id);
      return PutInt(connection.replies, kWaitCanceled);
    case StoreOp::kMultiGet:
      for (const std::string& key : request.keys) {
        const std::string* value = table_.Find(key);
        PutText(connection.replies, value ? std::string_view(*value) : std::string_view());
        if (connection.PendingReplyBytes() > limits_.max_pending_reply_bytes) {
          return Refuse(connection, absl::StrCat("the values it requested exceed ",
                                                 limits_.max_pending_reply_bytes, " bytes"));
        }
      }
      return;
    case StoreOp::kMultiSet:
      for (size_t i = 0; i < request.keys.size(); ++i) {
        table_.Set(request.keys[i], std::move(request.values[i]));
        Wake(request.keys[i], kEveryone);
      }
      return;
    case StoreOp::kListKeys: {
      PutInt(connection.replies, static_cast<int64_t>(table_.KeyCount()));
      for (const std::string& key : table_.Keys()) {
        PutText(connection.replies, key);
      }
      return;
    }
    default:
      FSDPRUN_CHECK(false, "an operation on several keys is missing here");
  }
}

void StoreServer::ApplyToQueue(Connection& connection, StoreRequest& request) {
  const std::string& key = request.keys[0];
  switch (request.op) {
    case StoreOp::kQueuePush:
      table_.Push(key, std::move(request.values[0]));
      // One item serves one client.
      return Wake(key, 1);
    case StoreOp::kQueueLength:
      return PutInt(connection.replies, static_cast<int64_t>(table_.QueueLength(key)));
    case StoreOp::kQueuePop: {
      PutInt(connection.replies, static_cast<int64_t>(table_.QueueLength(key)));
      if (const std::optional<std::string> value = table_.Pop(key)) {
        PutText(connection.replies, *value);
      }
      return;
    }
    default:
      FSDPRUN_CHECK(false, "an operation on a queue is missing here");
  }
}

void StoreServer::Wake(const std::string& key, size_t at_most) {
  for (const uint64_t id : table_.TakeSatisfied(key, at_most)) {
    Connection& waiter = *connections_.at(id);
    PutInt(waiter.replies, kStopWaiting);
    // A broken waiter is dropped by its own events, never while another client's request is being
    // served.
    if (waiter.PendingReplyBytes() == sizeof(kStopWaiting)) {
      [[maybe_unused]] const bool is_sent = SendReplies(waiter);
    }
  }
}

}  // namespace fsdprun
