#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "agent/rpc/coordinator_link.h"
#include "base/event_loop.h"

namespace fsdprun {

/// The link of the agent in the coordinator's process: plain calls, but Open() is answered
/// asynchronously, as over the network. Thread: loop thread only.
class LocalLink : public CoordinatorLink {
 public:
  struct Coordinator {
    std::function<void(const FromAgent&)> on_message;
    std::function<void(Incarnation, const v1::FromNodeAside&)> on_aside;
  };

  LocalLink(EventLoop& loop, Coordinator coordinator);
  ~LocalLink() override;
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;

  void SetCallbacks(Callbacks callbacks) override;
  void Open(int patience) override;
  void Send(const FromAgent& message) override;
  void SendAside(const v1::FromNodeAside& aside) override;
  size_t unwritten() const override { return 0; }
  void Close() override;

  /// True if the message was for the agent at this link.
  bool Deliver(const ToAgent& message);
  /// The same; the agent hears of it later, when this has returned.
  bool DeliverAside(Incarnation agent, const v1::ToNodeAside& aside);

 private:
  bool IsFor(Incarnation agent) const { return is_open_ && agent == agent_; }
  void PostIfOpen(std::function<void()> closure);

  EventLoop& loop_;
  const Coordinator coordinator_;
  Callbacks callbacks_;
  bool is_open_ = false;
  Incarnation agent_;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
