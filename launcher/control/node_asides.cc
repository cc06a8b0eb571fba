#include "launcher/control/node_asides.h"

#include <random>
#include <vector>

namespace fsdprun {

NodeAsides::Id NodeAsides::FirstId() {
  std::random_device device;
  return static_cast<Id>(device()) << 24;
}

NodeAsides::Id NodeAsides::Ask(Incarnation agent, v1::ToNodeAside question, OnAnswer on_answer) {
  const Id id = ++last_id_;
  question.set_id(id);
  open_.emplace(id, Open{agent, std::move(on_answer)});
  send_(agent, question);
  return id;
}

void NodeAsides::Drop(Id id) {
  if (const auto open = open_.extract(id); !open.empty()) {
    v1::ToNodeAside unwanted;
    unwanted.set_id(id);
    unwanted.mutable_unwanted();
    send_(open.mapped().agent, unwanted);
  }
}

void NodeAsides::WantVitals(Incarnation agent, int64_t every_ns) {
  v1::ToNodeAside wanted;
  wanted.mutable_vitals()->set_every_ns(every_ns);
  send_(agent, wanted);
}

void NodeAsides::Hear(Incarnation agent, const v1::FromNodeAside& aside) {
  if (aside.has_vitals()) {
    if (on_vitals_) {
      on_vitals_(agent, aside.vitals());
    }
    return;
  }
  const v1::NodeAnswer& answer = aside.answer();
  const auto open = open_.find(answer.id());
  if (open == open_.end() || open->second.agent != agent) {
    return;
  }
  const OnAnswer on_answer = open->second.on_answer;
  if (answer.is_last()) {
    open_.erase(open);
  }
  on_answer(answer);
}

void NodeAsides::StreamLost(Incarnation agent) {
  std::vector<std::pair<Id, OnAnswer>> lost;
  for (const auto& [id, open] : open_) {
    if (open.agent == agent) {
      lost.emplace_back(id, open.on_answer);
    }
  }
  for (const auto& [id, on_answer] : lost) {
    if (open_.erase(id) > 0) {
      v1::NodeAnswer answer;
      answer.set_id(id);
      answer.set_refusal("the connection with the node broke; ask again");
      answer.set_is_last(true);
      answer.set_is_away(true);
      on_answer(answer);
    }
  }
}

}  // namespace fsdprun
