#include "agent/store/store_thread.h"

#include <utility>

namespace fsdprun {
namespace {

StoreServer::ForeignConnection OnLoop(EventLoop& loop, std::shared_ptr<bool> is_live,
                                      StoreServer::ForeignConnection on_foreign) {
  if (on_foreign == nullptr) {
    return nullptr;
  }
  const auto take = std::make_shared<StoreServer::ForeignConnection>(std::move(on_foreign));
  return [&loop, live = std::move(is_live), take](UniqueFd connection) {
    loop.Post([live, take, fd = std::move(connection)]() mutable {
      if (*live) {
        (*take)(std::move(fd));
      }
    });
  };
}

}  // namespace

StoreThread::StoreThread(EventLoop& loop, const StoreServer::Limits& limits,
                         StoreServer::ForeignConnection on_foreign)
    : is_live_(std::make_shared<bool>(true)),
      server_(store_loop_, limits, OnLoop(loop, is_live_, std::move(on_foreign))),
      thread_([this] { store_loop_.Run(); }) {}

StoreThread::~StoreThread() {
  *is_live_ = false;
  store_loop_.Stop();
  thread_.join();
}

absl::StatusOr<int> StoreThread::Listen(const std::string& host, int port) {
  absl::StatusOr<int> bound = absl::UnknownError("not done");
  Do([&] { bound = server_.Listen(host, port); });
  return bound;
}

absl::StatusOr<int> StoreThread::ListenOn(UniqueFd bound_socket) {
  absl::StatusOr<int> bound = absl::UnknownError("not done");
  Do([&] { bound = server_.ListenOn(std::move(bound_socket)); });
  return bound;
}

void StoreThread::Reset() {
  Do([this] { server_.Reset(); });
}

void StoreThread::ExpectClients(size_t count) {
  Do([this, count] { server_.ExpectClients(count); });
}

int StoreThread::port() {
  int port = 0;
  Do([&] { port = server_.port(); });
  return port;
}

void StoreThread::Do(const std::function<void()>& call) {
  {
    MutexLock lock(mu_);
    is_done_ = false;
  }
  store_loop_.Post([this, &call] {
    call();
    MutexLock lock(mu_);
    is_done_ = true;
    done_.NotifyAll();
  });
  MutexLock lock(mu_);
  done_.Wait(mu_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
}

}  // namespace fsdprun
