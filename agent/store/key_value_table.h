#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun {

/// The contents of a store: values, queues and waiters. Pure: no sockets, no clock.
class KeyValueTable {
 public:
  using ClientId = uint64_t;

  void Set(const std::string& key, std::string value);
  /// Null when missing. Queues are not values.
  const std::string* Find(const std::string& key) const;
  void Append(const std::string& key, std::string_view tail);
  /// Adds to a decimal counter. nullopt if the value is not a number or the sum overflows.
  std::optional<int64_t> Add(const std::string& key, int64_t amount);
  /// TCPStore's rule: a missing key is created only for an empty `expected`, otherwise `expected`
  /// is returned.
  std::string CompareSet(const std::string& key, const std::string& expected,
                         const std::string& desired);
  bool Delete(const std::string& key);

  void Push(const std::string& key, std::string value);
  std::optional<std::string> Pop(const std::string& key);
  size_t QueueLength(const std::string& key) const;

  /// True if `key` has a value or a non-empty queue.
  bool Exists(const std::string& key) const;
  bool ExistAll(const std::vector<std::string>& keys) const;
  /// Values only, as TCPStore counts and lists them.
  size_t KeyCount() const { return values_.size(); }
  std::vector<std::string> Keys() const;
  /// Bytes of all keys and values.
  size_t SizeBytes() const { return size_bytes_; }
  /// Bytes of the keys that clients wait for, each as often as somebody waits for it.
  size_t AwaitedBytes() const { return awaited_bytes_; }

  /// Registers `client` as waiting for `keys`, of which at least one is missing; replaces its
  /// earlier wait.
  void AddWaiter(ClientId client, const std::vector<std::string>& keys);
  void RemoveWaiter(ClientId client);
  bool IsWaiting(ClientId client) const { return waits_.count(client) > 0; }
  /// Marks `key` as present for at most `at_most` of the clients that wait for it, in order of
  /// their ids; returns those that no longer wait for anything.
  std::vector<ClientId> TakeSatisfied(const std::string& key, size_t at_most);

  /// Forgets everything, waiters too.
  void Clear();

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::map<std::string, std::set<ClientId>> waiters_by_key_;
  /// The keys that a client still misses.
  std::map<ClientId, std::set<std::string>> waits_;
  size_t size_bytes_ = 0;
  size_t awaited_bytes_ = 0;
};

}  // namespace fsdprun
