#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/mapping.h"

namespace fsdp::testing {

/// As much of a store's server as the recorder of operations asks, without LibTorch.
class MemoryStore {
 public:
  MemoryStore() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_.get(), 64);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  /// The clients are gone by then.
  ~MemoryStore() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& each : connections_) {
      each.join();
    }
  }
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;
  int port() const { return port_; }
  /// From here on it takes what it is asked, and answers nothing, like a machine that is gone.
  void fall_silent() { is_silent_ = true; }
  /// Returns when it has left something unanswered.
  void wait_for_unanswered() { is_unanswered_.wait(false); }

 private:
  /// One client's requests and replies.
  struct Connection {
    shm::Fd fd;
    bool is_open = true;

    template <typename Number>
    Number take() {
      Number number{};
      take_bytes(&number, sizeof(number));
      return number;
    }
    std::string take_text() {
      std::string text(static_cast<size_t>(take<uint64_t>()), '\0');
      take_bytes(text.data(), text.size());
      return text;
    }
    std::vector<std::string> take_keys() {
      std::vector<std::string> keys(static_cast<size_t>(take<uint64_t>()));
      for (std::string& key : keys) {
        key = take_text();
      }
      return keys;
    }
    void take_bytes(void* data, size_t bytes) {
      is_open = is_open && (bytes == 0 || ::recv(fd.get(), data, bytes, MSG_WAITALL) ==
                                              static_cast<ssize_t>(bytes));
    }
    template <typename Number>
    void put(Number number) {
      (void)!::send(fd.get(), &number, sizeof(number), MSG_NOSIGNAL);
    }
    void put_text(const std::string& text) {
      put<uint64_t>(text.size());
      (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  };

  void accept_all() {
    while (true) {
      shm::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) {
        return;
      }
      connections_.emplace_back([this, connection = Connection{std::move(fd)}]() mutable {
        for (auto op = connection.take<uint8_t>(); connection.is_open;
             op = connection.take<uint8_t>()) {
          is_silent_ ? ignore(connection) : serve(connection, op);
        }
      });
    }
  }

  void ignore(Connection& connection) {
    is_unanswered_ = true;
    is_unanswered_.notify_all();
    while (connection.is_open) {
      connection.take<uint8_t>();
    }
  }

  // The numbers are those of c10d::TCPStore.
  void serve(Connection& connection, uint8_t op) {
    std::unique_lock lock(mu_, std::defer_lock);
    switch (op) {
      case 0:  // validate
        connection.take<uint32_t>();
        return;
      case 13:  // ping
        return connection.put(connection.take<uint32_t>());
      case 1: {  // set
        const std::string key = connection.take_text();
        std::string value = connection.take_text();
        lock.lock();
        values_[key] = std::move(value);
        return changed_.notify_all();
      }
      case 5: {  // check
        const std::vector<std::string> keys = connection.take_keys();
        lock.lock();
        return connection.put<uint8_t>(has_all(keys) ? 0 : 1);
      }
      case 6: {  // wait
        const std::vector<std::string> keys = connection.take_keys();
        lock.lock();
        changed_.wait(lock, [&] { return has_all(keys); });
        return connection.put<uint8_t>(0);
      }
      case 8: {  // delete
        const std::string key = connection.take_text();
        lock.lock();
        return connection.put<int64_t>(static_cast<int64_t>(values_.erase(key)));
      }
      case 3: {  // get
        const std::string key = connection.take_text();
        lock.lock();
        return connection.put_text(values_[key]);
      }
      case 10:  // get several
        for (const std::string& key : connection.take_keys()) {
          const std::lock_guard one(mu_);
          connection.put_text(values_[key]);
        }
        return;
      default:
        connection.is_open = false;
    }
  }

  bool has_all(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      if (!values_.contains(key)) {
        return false;
      }
    }
    return true;
  }

  const shm::Fd listener_;
  int port_ = 0;
  std::atomic<bool> is_silent_{false};
  std::atomic<bool> is_unanswered_{false};
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mu_
  std::vector<std::thread> connections_;       // the acceptor's, until it has ended
  std::thread acceptor_;
};

}  // namespace fsdp::testing
