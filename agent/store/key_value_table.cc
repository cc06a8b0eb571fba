#include "agent/store/key_value_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fsdprun {

void KeyValueTable::Set(const std::string& key, std::string value) {
  const auto [it, is_new] = values_.try_emplace(key);
  size_bytes_ += value.size() + (is_new ? key.size() : 0);
  size_bytes_ -= it->second.size();
  it->second = std::move(value);
}

const std::string* KeyValueTable::Find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void KeyValueTable::Append(const std::string& key, std::string_view tail) {
  const auto [it, is_new] = values_.try_emplace(key);
  size_bytes_ += tail.size() + (is_new ? key.size() : 0);
  it->second += tail;
}

std::optional<int64_t> KeyValueTable::Add(const std::string& key, int64_t amount) {
  int64_t sum = 0;
  if (const std::string* value = Find(key)) {
    const auto result = std::from_chars(value->data(), value->data() + value->size(), sum);
    if (result.ec != std::errc() || result.ptr != value->data() + value->size()) {
      return std::nullopt;
    }
  }
  if (__builtin_add_overflow(sum, amount, &sum)) {
    return std::nullopt;
  }
  Set(key, std::to_string(sum));
  return sum;
}

std::string KeyValueTable::CompareSet(const std::string& key, const std::string& expected,
                                      const std::string& desired) {
  const std::string* value = Find(key);
  if (value == nullptr && !expected.empty()) {
    return expected;
  }
  if (value != nullptr && *value != expected) {
    return *value;
  }
  Set(key, desired);
  return desired;
}

bool KeyValueTable::Delete(const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return false;
  }
  size_bytes_ -= key.size() + it->second.size();
  values_.erase(it);
  return true;
}

void KeyValueTable::Push(const std::string& key, std::string value) {
  size_bytes_ += key.size() + value.size();
  queues_[key].push_back(std::move(value));
}

std::optional<std::string> KeyValueTable::Pop(const std::string& key) {
  const auto it = queues_.find(key);
  if (it == queues_.end()) {
    return std::nullopt;
  }
  std::string value = std::move(it->second.front());
  it->second.pop_front();
  size_bytes_ -= key.size() + value.size();
  if (it->second.empty()) {
    queues_.erase(it);
  }
  return value;
}

size_t KeyValueTable::QueueLength(const std::string& key) const {
  const auto it = queues_.find(key);
  return it == queues_.end() ? 0 : it->second.size();
}

bool KeyValueTable::Exists(const std::string& key) const {
  return values_.count(key) > 0 || queues_.count(key) > 0;
}

bool KeyValueTable::ExistAll(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return Exists(key); });
}

std::vector<std::string> KeyValueTable::Keys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) {
    keys.push_back(key);
  }
  return keys;
}

void KeyValueTable::AddWaiter(ClientId client, const std::vector<std::string>& keys) {
  RemoveWaiter(client);
  std::set<std::string>& missing = waits_[client];
  for (const std::string& key : keys) {
    if (!Exists(key)) {
      awaited_bytes_ += missing.insert(key).second ? key.size() : 0;
      waiters_by_key_[key].insert(client);
    }
  }
}

void KeyValueTable::RemoveWaiter(ClientId client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) {
    return;
  }
  for (const std::string& key : wait->second) {
    const auto waiters = waiters_by_key_.find(key);
    waiters->second.erase(client);
    awaited_bytes_ -= key.size();
    if (waiters->second.empty()) {
      waiters_by_key_.erase(waiters);
    }
  }
  waits_.erase(wait);
}

std::vector<KeyValueTable::ClientId> KeyValueTable::TakeSatisfied(const std::string& key,
                                                                  size_t at_most) {
  const auto waiters = waiters_by_key_.find(key);
  if (waiters == waiters_by_key_.end()) {
    return {};
  }
  std::vector<ClientId> reached;
  for (auto it = waiters->second.begin(); it != waiters->second.end() && reached.size() < at_most;
       ++it) {
    reached.push_back(*it);
  }
  std::vector<ClientId> satisfied;
  for (const ClientId client : reached) {
    waiters->second.erase(client);
    awaited_bytes_ -= key.size();
    std::set<std::string>& missing = waits_[client];
    missing.erase(key);
    if (missing.empty()) {
      waits_.erase(client);
      satisfied.push_back(client);
    }
  }
  if (waiters->second.empty()) {
    waiters_by_key_.erase(waiters);
  }
  return satisfied;
}

void KeyValueTable::Clear() { *this = KeyValueTable(); }

}  // namespace fsdprun
