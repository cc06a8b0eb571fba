#include "fsdp_runtime/store/store_client.h"

#include <unistd.h>

#include <algorithm>

#include "fsdp_runtime/store/store_connection.h"

namespace fsdp {
namespace {

// The first byte of a request. The numbers are c10d::TCPStore's.
enum class Op : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
};
constexpr uint32_t kMagic = 0x3C85F7CE;
// How long a server that was reachable may take to answer what it can answer at once.
constexpr std::chrono::milliseconds kAnswerMax{2000};
constexpr uint8_t kKeysAreReady = 0;  // reply to kCheck
constexpr uint8_t kStopWaiting = 0;   // reply to kWait
constexpr uint8_t kWaitCanceled = 1;  // reply to kCancelWait

void put(StoreConnection& connection, Op op) { connection.put_byte(static_cast<uint8_t>(op)); }

// Python's clients see user keys under this prefix, beside the store's own.
std::string wire_key(const std::string& key) { return "/" + key; }

void put_keys(StoreConnection& connection, const std::vector<std::string>& keys) {
  connection.put_u64(keys.size());
  for (const std::string& key : keys) {
    connection.put_string(wire_key(key));
  }
}

/// The deadline of a wait has passed, and the connection is in step again.
class WaitExpired : public std::exception {};

// Takes the wait that is under way back.
[[noreturn]] void cancel_wait(StoreConnection& connection) {
  connection.set_deadline(std::chrono::steady_clock::now() + kAnswerMax);
  try {
    put(connection, Op::kCancelWait);
    connection.flush();
    uint8_t reply = connection.take_byte();
    if (reply == kStopWaiting) {
      reply = connection.take_byte();  // that was for the wait: the keys came at the last moment
    }
    if (reply != kWaitCanceled) {
      throw StoreError("unexpected reply " + std::to_string(reply) + " to the end of a wait");
    }
  } catch (const StoreTimeout& error) {
    throw StoreSilence(error.what());
  }
  throw WaitExpired();
}

// What `take` takes, which is there: it has this long to come, however little is left of the wait
// for it, and is not waited for any more.
template <typename Take>
auto take_values(StoreConnection& connection, StoreClient::TimePoint deadline, const Take& take) {
  connection.set_deadline(std::max(deadline, std::chrono::steady_clock::now() + kAnswerMax));
  try {
    return take();
  } catch (const StoreTimeout& error) {
    throw StoreSilence(error.what());
  }
}

void await_keys(StoreConnection& connection, const std::vector<std::string>& keys) {
  put(connection, Op::kWait);
  put_keys(connection, keys);
  connection.flush();
  uint8_t reply = kStopWaiting;
  try {
    reply = connection.take_byte();
  } catch (const StoreTimeout&) {
    cancel_wait(connection);
  }
  if (reply != kStopWaiting) {
    throw StoreError("unexpected reply " + std::to_string(reply) + " to a wait");
  }
}

std::string joined(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) {
    text += (text.empty() ? "" : ", ") + key;
  }
  return text;
}

}  // namespace

std::unique_ptr<StoreConnection> StoreClient::dial(TimePoint deadline) {
  try {
    auto connection = std::make_unique<StoreConnection>(host_, port_, deadline);
    const auto nonce = static_cast<uint32_t>(::getpid());
    put(*connection, Op::kValidate);
    connection->put_u32(kMagic);
    put(*connection, Op::kPing);
    connection->put_u32(nonce);
    connection->flush();
    if (connection->take_u32() != nonce) {
      throw StoreError("it does not speak the store's protocol");
    }
    was_connected_ = true;
    return connection;
  } catch (const StoreTimeout& error) {
    throw StoreSilence(error.what());
  }
}

// Runs `body` on an open connection, and keeps the connection only if it is in step afterwards,
// which it is not behind a partly read reply.
template <typename Call>
auto StoreClient::call(const char* operation, const std::string& key, TimePoint deadline,
                       Call&& body) {
  std::lock_guard lock(mu_);
  std::unique_ptr<StoreConnection> connection = std::move(connection_);
  try {
    if (connection == nullptr) {
      // A short wait must not take a slow dial for a server that is gone, nor a long one wait for
      // one that is.
      connection = dial(was_connected_ ? std::chrono::steady_clock::now() + kAnswerMax : deadline);
    }
    connection->set_deadline(deadline);
    auto result = body(*connection);
    connection_ = std::move(connection);
    return result;
  } catch (const WaitExpired&) {
    connection_ = std::move(connection);
    throw StoreTimeout(described(operation, key) + "no answer in time");
  } catch (const StoreSilence& error) {
    throw StoreSilence(described(operation, key) + error.what());
  } catch (const StoreTimeout& error) {
    throw StoreTimeout(described(operation, key) + error.what());
  } catch (const std::exception& error) {
    throw StoreError(described(operation, key) + error.what());
  }
}

std::string StoreClient::described(const char* operation, const std::string& key) const {
  return "store at " + host_ + ":" + std::to_string(port_) + ", " + operation +
         (key.empty() ? "" : " '" + key + "'") + ": ";
}

StoreClient::StoreClient(std::string host, int port, std::chrono::milliseconds timeout)
    : StoreClient(std::move(host), port, timeout, timeout) {}

StoreClient::StoreClient(std::string host, int port, std::chrono::milliseconds connect_timeout,
                         std::chrono::milliseconds call_timeout)
    : host_(std::move(host)), port_(port), timeout_(call_timeout) {
  call("connecting", "", std::chrono::steady_clock::now() + connect_timeout,
       [](StoreConnection&) { return 0; });
}

StoreClient::~StoreClient() = default;

void StoreClient::set(const std::string& key, std::string_view value) {
  call("setting", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kSet);
    connection.put_string(wire_key(key));
    connection.put_string(value);
    connection.flush();
    return 0;
  });
}

void StoreClient::set_acknowledged(const std::string& key, std::string_view value) {
  call("setting", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kSet);
    connection.put_string(wire_key(key));
    connection.put_string(value);
    // Is answered after the other was done, which is not answered itself, and so has the time of a
    // large value.
    put(connection, Op::kCheck);
    put_keys(connection, {key});
    connection.flush();
    return connection.take_byte();
  });
}

std::string StoreClient::get(const std::string& key, TimePoint deadline) {
  return call("getting", key, deadline, [&](StoreConnection& connection) {
    await_keys(connection, {key});
    return take_values(connection, deadline, [&] {
      put(connection, Op::kGet);
      connection.put_string(wire_key(key));
      connection.flush();
      return connection.take_string();
    });
  });
}

void StoreClient::wait(const std::vector<std::string>& keys, TimePoint deadline) {
  call("waiting for", joined(keys), deadline, [&](StoreConnection& connection) {
    await_keys(connection, keys);
    return 0;
  });
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  return call("checking", joined(keys), deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kCheck);
    put_keys(connection, keys);
    connection.flush();
    return connection.take_byte() == kKeysAreReady;
  });
}

int64_t StoreClient::add(const std::string& key, int64_t amount) {
  return call("adding to", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kAdd);
    connection.put_string(wire_key(key));
    connection.put_i64(amount);
    connection.flush();
    return connection.take_i64();
  });
}

std::string StoreClient::compare_set(const std::string& key, std::string_view expected,
                                     std::string_view desired) {
  return call("comparing and setting", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kCompareSet);
    connection.put_string(wire_key(key));
    connection.put_string(expected);
    connection.put_string(desired);
    connection.flush();
    return connection.take_string();
  });
}

bool StoreClient::delete_key(const std::string& key) {
  return call("deleting", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kDeleteKey);
    connection.put_string(wire_key(key));
    connection.flush();
    return connection.take_i64() == 1;
  });
}

void StoreClient::delete_keys(const std::vector<std::string>& keys) {
  call("deleting", joined(keys), deadline(), [&](StoreConnection& connection) {
    for (const std::string& key : keys) {
      put(connection, Op::kDeleteKey);
      connection.put_string(wire_key(key));
    }
    connection.flush();
    for (size_t i = 0; i < keys.size(); ++i) {
      connection.take_i64();
    }
    return 0;
  });
}

int64_t StoreClient::num_keys() {
  return call("counting keys", "", deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kGetNumKeys);
    connection.flush();
    return connection.take_i64();
  });
}

void StoreClient::append(const std::string& key, std::string_view value) {
  call("appending to", key, deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kAppend);
    connection.put_string(wire_key(key));
    connection.put_string(value);
    connection.flush();
    return 0;
  });
}

std::vector<std::string> StoreClient::multi_get(const std::vector<std::string>& keys,
                                                TimePoint deadline) {
  return call("getting", joined(keys), deadline, [&](StoreConnection& connection) {
    await_keys(connection, keys);
    return take_values(connection, deadline, [&] {
      put(connection, Op::kMultiGet);
      put_keys(connection, keys);
      connection.flush();
      std::vector<std::string> values;
      for (size_t i = 0; i < keys.size(); ++i) {
        values.push_back(connection.take_string());
      }
      return values;
    });
  });
}

void StoreClient::multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    throw StoreError("multi_set: " + std::to_string(keys.size()) + " keys but " +
                     std::to_string(values.size()) + " values");
  }
  call("setting", joined(keys), deadline(), [&](StoreConnection& connection) {
    put(connection, Op::kMultiSet);
    connection.put_u64(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      connection.put_string(wire_key(keys[i]));
      connection.put_string(values[i]);
    }
    connection.flush();
    return 0;
  });
}

std::string StoreClient::local_address() {
  return call("reading the local address", "", deadline(),
              [](StoreConnection& connection) { return connection.local_address(); });
}

}  // namespace fsdp
