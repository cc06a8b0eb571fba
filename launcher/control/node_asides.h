#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "fsdprun/v1/aside.pb.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// What the coordinator asks its agents beside the machines, and who waits for what they answer. A
/// question ends with its last answer, when nobody wants it any more, or with the agent's stream.
/// Thread: loop thread.
class NodeAsides {
 public:
  using Id = uint64_t;
  using OnAnswer = std::function<void(const v1::NodeAnswer& answer)>;
  /// Hands it to the agent; dropped if the agent has no stream.
  using Send = std::function<void(Incarnation agent, const v1::ToNodeAside& aside)>;
  /// What agents tell of their workers; see VitalsWanted.
  using OnVitals = std::function<void(Incarnation agent, const v1::NodeVitals& vitals)>;

  NodeAsides(Send send, OnVitals on_vitals)
      : send_(std::move(send)), on_vitals_(std::move(on_vitals)) {}
  NodeAsides(const NodeAsides&) = delete;
  NodeAsides& operator=(const NodeAsides&) = delete;

  /// `question` gets its id here. The answers come later; the last one `is_last`, and is a refusal
  /// if the agent's stream ends first. An `on_answer` may ask, or drop any question.
  Id Ask(Incarnation agent, v1::ToNodeAside question, OnAnswer on_answer);
  /// Nobody waits for it any more.
  void Drop(Id id);
  /// How often the agent is to tell its vitals, in nanoseconds; 0: no more. To be said again on
  /// each of its streams.
  void WantVitals(Incarnation agent, int64_t every_ns);

  /// An agent has said it. What is not asked is ignored.
  void Hear(Incarnation agent, const v1::FromNodeAside& aside);
  void StreamLost(Incarnation agent);

 private:
  struct Open {
    Incarnation agent;
    OnAnswer on_answer;
  };

  static Id FirstId();

  const Send send_;
  const OnVitals on_vitals_;
  /// Not those of the coordinator before this one: an agent may still have its questions.
  Id last_id_ = FirstId();
  std::map<Id, Open> open_;
};

}  // namespace fsdprun
