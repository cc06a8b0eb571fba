#include "launcher/control/node_answers.h"

#include <limits>
#include <memory>
#include <set>

#include "launcher/control/node_choice.h"

namespace fsdprun {

void NodeAnswers::Ask(const Caller& caller, const v1::NodesQuestion& question) {
  Call call{.question = question, .follows = question.has_logs() && question.logs().follow()};
  const auto nodes = question.what_case() == v1::NodesQuestion::WHAT_NOT_SET
                         ? absl::InvalidArgumentError("the question asks nodes for nothing")
                         : Meant(call);
  if (!nodes.ok()) {
    caller.first->Refuse(caller.second, nodes.status());
    return;
  }
  if (nodes->empty() && !call.follows) {
    caller.first->Refuse(caller.second, absl::FailedPreconditionError(
                                            "no worker runs: " + std::string(machine_.reason())));
    return;
  }
  seen_ = machine_.generation();
  Call& open = calls_[caller] = std::move(call);
  for (const job::Node* node : *nodes) {
    AskNode(caller, open, *node, /*is_newcomer=*/false);
  }
  Continue(caller);
}

/// Who follows is told of ranks that other nodes have in another world.
absl::StatusOr<std::vector<const job::Node*>> NodeAnswers::Meant(const Call& call) const {
  const v1::NodesQuestion& question = call.question;
  std::vector<int> ranks;
  if (!call.follows) {
    ranks.assign(question.ranks().begin(), question.ranks().end());
  }
  return ChooseMembers(machine_, {question.nodes().begin(), question.nodes().end()}, ranks);
}

v1::ToNodeAside NodeAnswers::ForNode(const v1::NodesQuestion& question, bool is_newcomer) {
  v1::ToNodeAside aside;
  switch (question.what_case()) {
    case v1::NodesQuestion::kLogs:
      *aside.mutable_logs() = question.logs();
      *aside.mutable_logs()->mutable_ranks() = question.ranks();
      if (is_newcomer) {  // Its workers have just begun: all that they have written is new.
        aside.mutable_logs()->set_tail_lines(std::numeric_limits<int32_t>::max());
      }
      break;
    case v1::NodesQuestion::kStacks:
      *aside.mutable_stacks()->mutable_ranks() = question.ranks();
      break;
    case v1::NodesQuestion::kSave:
      aside.mutable_save();
      break;
    case v1::NodesQuestion::WHAT_NOT_SET:
      break;
  }
  return aside;
}

void NodeAnswers::AskNode(const Caller& caller, Call& call, const job::Node& node,
                          bool is_newcomer) {
  if (!node.connected) {
    v1::NodeAnswer answer;
    answer.set_refusal("it is not connected now; ask again");
    return Queue(call, Asked{node.info.incarnation, node.info.name, node.group_rank}, answer);
  }
  // The answer comes later, when the id is known.
  const auto id = std::make_shared<NodeAsides::Id>(0);
  *id = asides_.Ask(
      node.info.incarnation, ForNode(call.question, is_newcomer),
      [this, caller, id](const v1::NodeAnswer& answer) { OnAnswer(caller, *id, answer); });
  call.open.emplace(*id, Asked{node.info.incarnation, node.info.name, node.group_rank});
}

void NodeAnswers::Stepped() {
  if (calls_.empty()) {
    return;
  }
  const bool is_over = machine_.phase() == job::Phase::kFinished;
  if (machine_.generation() == seen_ && !is_over) {
    return;
  }
  seen_ = machine_.generation();
  std::vector<Caller> callers;
  for (auto& [caller, call] : calls_) {
    callers.push_back(caller);
    const auto nodes = Meant(call);
    if (!call.follows || !nodes.ok() || is_over) {
      continue;
    }
    std::set<Incarnation> asked;
    for (const auto& [id, open] : call.open) {
      asked.insert(open.agent);
    }
    for (const job::Node* node : *nodes) {
      if (asked.count(node->info.incarnation) == 0) {
        AskNode(caller, call, *node, /*is_newcomer=*/true);
      }
    }
  }
  for (const Caller& caller : callers) {
    Continue(caller);
  }
}

void NodeAnswers::OnAnswer(const Caller& caller, NodeAsides::Id id, const v1::NodeAnswer& answer) {
  const auto it = calls_.find(caller);
  if (it == calls_.end()) {
    return;
  }
  Call& call = it->second;
  const auto open = call.open.find(id);
  if (open == call.open.end()) {
    return;
  }
  Queue(call, open->second, answer);
  if (answer.is_last()) {
    call.open.erase(open);
  }
  Continue(caller);
}

void NodeAnswers::Queue(Call& call, const Asked& asked, const v1::NodeAnswer& answer) {
  v1::ControlAnswer out;
  out.mutable_from_node()->set_node(asked.node);
  out.mutable_from_node()->set_group_rank(asked.group_rank);
  *out.mutable_from_node()->mutable_answer() = answer;
  if (answer.has_logs()) {
    if (call.queued_bytes > kQueuedBytesMax) {
      call.has_gap = true;
      return;
    }
    v1::LogLines& lines = *out.mutable_from_node()->mutable_answer()->mutable_logs();
    lines.set_has_gap(lines.has_gap() || std::exchange(call.has_gap, false));
  }
  call.queued_bytes += out.ByteSizeLong();
  call.queue.push_back(std::move(out));
}

void NodeAnswers::Continue(const Caller& caller) {
  const auto it = calls_.find(caller);
  if (it == calls_.end() || it->second.is_writing) {
    return;
  }
  Call& call = it->second;
  if (!call.queue.empty()) {
    v1::ControlAnswer next = std::move(call.queue.front());
    call.queue.pop_front();
    call.queued_bytes -= next.ByteSizeLong();
    call.is_writing = true;
    caller.first->Send(caller.second, std::move(next));
    return;
  }
  const bool is_over = machine_.phase() == job::Phase::kFinished;
  if (is_over || (call.open.empty() && !call.follows)) {
    DropQuestions(call);
    calls_.erase(it);
    caller.first->Finish(caller.second);
  }
}

void NodeAnswers::Written(const Caller& caller) {
  if (const auto it = calls_.find(caller); it != calls_.end()) {
    it->second.is_writing = false;
    Continue(caller);
  }
}

void NodeAnswers::Lose(const Caller& caller) {
  if (const auto it = calls_.find(caller); it != calls_.end()) {
    DropQuestions(it->second);
    calls_.erase(it);
  }
}

void NodeAnswers::Close(const absl::Status& why) {
  for (auto& [caller, call] : std::exchange(calls_, {})) {
    caller.first->Refuse(caller.second, why);
  }
}

void NodeAnswers::DropQuestions(Call& call) {
  for (const auto& [id, asked] : std::exchange(call.open, {})) {
    asides_.Drop(id);
  }
}

}  // namespace fsdprun
