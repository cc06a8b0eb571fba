#pragma once

// Shared by the translation units of NodeMachine only.

#include <utility>
#include <variant>

#include "agent/node/node_machine.h"

namespace fsdprun {

/// The effects that one Step collects.
struct NodeMachine::Out {
  node::Effects& effects;
  MonoTime now;
};

/// Drops the message if there is no stream: it is repeated on the next one. Builds the message in
/// place, because this is the path of every heartbeat of thousands of simulated nodes.
template <class Message>
void NodeMachine::SendNow(Message&& message, Generation g, Out& out) {
  if (!contact_.is_up()) {
    return;
  }
  FromAgent& envelope = out.effects.messages.emplace_back();
  envelope.incarnation = spec_.node.incarnation;
  envelope.generation = g;
  envelope.message = std::forward<Message>(message);
}

}  // namespace fsdprun
