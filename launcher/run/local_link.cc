#include "launcher/run/local_link.h"

#include <utility>

namespace fsdprun {

LocalLink::LocalLink(EventLoop& loop, Coordinator coordinator)
    : loop_(loop), coordinator_(std::move(coordinator)) {}

LocalLink::~LocalLink() { *is_live_ = false; }

void LocalLink::SetCallbacks(Callbacks callbacks) { callbacks_ = std::move(callbacks); }

void LocalLink::Open(int /*patience*/) {
  is_open_ = true;
  PostIfOpen([this] { callbacks_.on_up(); });
}

void LocalLink::Send(const FromAgent& message) {
  if (is_open_) {
    agent_ = message.incarnation;
    coordinator_.on_message(message);
  }
}

void LocalLink::SendAside(const v1::FromNodeAside& aside) {
  if (is_open_) {
    coordinator_.on_aside(agent_, aside);
  }
}

void LocalLink::Close() { is_open_ = false; }

bool LocalLink::Deliver(const ToAgent& message) {
  if (!IsFor(message.incarnation)) {
    return false;
  }
  callbacks_.on_message(message);
  return true;
}

bool LocalLink::DeliverAside(Incarnation agent, const v1::ToNodeAside& aside) {
  if (!IsFor(agent)) {
    return false;
  }
  PostIfOpen([this, aside] {
    if (callbacks_.on_aside) {
      callbacks_.on_aside(aside);
    }
  });
  return true;
}

void LocalLink::PostIfOpen(std::function<void()> closure) {
  loop_.Post([this, live = is_live_, closure = std::move(closure)] {
    if (*live && is_open_) {
      closure();
    }
  });
}

}  // namespace fsdprun
