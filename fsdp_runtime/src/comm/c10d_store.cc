#include "fsdp_runtime/src/comm/c10d_store.h"

#include <string_view>
#include <utility>

namespace fsdp {
namespace {

std::string_view text(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> bytes(const std::string& value) { return {value.begin(), value.end()}; }

}  // namespace

ClientStore::ClientStore(std::shared_ptr<StoreClient> client, std::string prefix)
    : c10d::Store(client->timeout()), client_(std::move(client)), prefix_(std::move(prefix)) {}

c10::intrusive_ptr<c10d::Store> ClientStore::clone() {
  // A separate connection: a wait on one copy must not block the other.
  return c10::make_intrusive<ClientStore>(
      std::make_shared<StoreClient>(client_->host(), client_->port(), client_->timeout()), prefix_);
}

std::vector<std::string> ClientStore::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    result.push_back(full(key));
  }
  return result;
}

StoreClient::TimePoint ClientStore::deadline() const {
  return std::chrono::steady_clock::now() + getTimeout();
}

void ClientStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  client_->set(full(key), text(value));
}

std::vector<uint8_t> ClientStore::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return bytes(client_->compare_set(full(key), text(expected), text(desired)));
}

std::vector<uint8_t> ClientStore::get(const std::string& key) {
  return bytes(client_->get(full(key), deadline()));
}

int64_t ClientStore::add(const std::string& key, int64_t value) {
  return client_->add(full(key), value);
}

bool ClientStore::deleteKey(const std::string& key) { return client_->delete_key(full(key)); }

bool ClientStore::check(const std::vector<std::string>& keys) { return client_->check(full(keys)); }

int64_t ClientStore::getNumKeys() { return client_->num_keys(); }

void ClientStore::wait(const std::vector<std::string>& keys) {
  client_->wait(full(keys), deadline());
}

void ClientStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  client_->wait(full(keys), std::chrono::steady_clock::now() + timeout);
}

void ClientStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  client_->append(full(key), text(value));
}

std::vector<std::vector<uint8_t>> ClientStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> result;
  for (const std::string& value : client_->multi_get(full(keys), deadline())) {
    result.push_back(bytes(value));
  }
  return result;
}

void ClientStore::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& value : values) {
    texts.emplace_back(text(value));
  }
  client_->multi_set(full(keys), texts);
}

}  // namespace fsdp
