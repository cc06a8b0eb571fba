#include "launcher/control/node_answers.h"

#include <limits>
#include <memory>
#include <set>

#include "launcher/control/node_choice.h"

namespace fsdprun {
namespace {

constexpr char kShownLater[] =
    "it is not connected now; what its workers write is shown again once it is";

}  // namespace

void NodeAnswers::Ask(const Caller& caller, const v1::NodesQuestion& question) {
  Call call{.question = question, .follows = question.has_logs() && question.logs().follow()};
  auto nodes = question.what_case() == v1::NodesQuestion::WHAT_NOT_SET
                   ? absl::InvalidArgumentError("the question asks nodes for nothing")
                   : Meant(call);
  if (nodes.ok() && call.follows && machine_.world().world_size() > 0) {
    const auto checked =
        ChooseMembers(machine_, {}, {question.ranks().begin(), question.ranks().end()});
    if (!checked.ok()) {
      nodes = checked.status();
    }
  }
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
    AskNode(caller, open, *node, AskedAs::kMeant);
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

v1::ToNodeAside NodeAnswers::ForNode(const v1::NodesQuestion& question, AskedAs as) {
  v1::ToNodeAside aside;
  switch (question.what_case()) {
    case v1::NodesQuestion::kLogs:
      *aside.mutable_logs() = question.logs();
      *aside.mutable_logs()->mutable_ranks() = question.ranks();
      if (as != AskedAs::kMeant) {
        aside.mutable_logs()->set_tail_lines(
            as == AskedAs::kNewcomer ? std::numeric_limits<int32_t>::max() : 0);
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

void NodeAnswers::AskNode(const Caller& caller, Call& call, const job::Node& node, AskedAs as) {
  if (!node.connected) {
    v1::NodeAnswer answer;
    answer.set_refusal(call.follows ? kShownLater : "it is not connected now; ask again");
    if (call.follows) {
      call.missed[node.info.incarnation] =
          as == AskedAs::kNewcomer ? AskedAs::kNewcomer : AskedAs::kReturned;
    }
    return Queue(call, Asked{node.info.incarnation, node.info.name, node.group_rank}, answer);
  }
  // The answer comes later, when the id is known.
  const auto id = std::make_shared<NodeAsides::Id>(0);
  *id = asides_.Ask(
      node.info.incarnation, ForNode(call.question, as),
      [this, caller, id](const v1::NodeAnswer& answer) { OnAnswer(caller, *id, answer); });
  call.open.emplace(*id, Asked{node.info.incarnation, node.info.name, node.group_rank});
}

void NodeAnswers::Stepped() {
  if (calls_.empty()) {
    return;
  }
  const bool is_over = machine_.phase() == job::Phase::kFinished;
  const bool is_new_world = machine_.generation() != seen_;
  seen_ = machine_.generation();
  std::vector<Caller> callers;
  for (auto& [caller, call] : calls_) {
    callers.push_back(caller);
    if (!call.follows || is_over) {
      continue;
    }
    if (is_new_world) {
      AskNewcomers(caller, call);
    } else if (!call.missed.empty()) {
      AskReturned(caller, call);
    }
  }
  for (const Caller& caller : callers) {
    Continue(caller);
  }
}

void NodeAnswers::AskNewcomers(const Caller& caller, Call& call) {
  call.missed.clear();
  const auto nodes = Meant(call);
  if (!nodes.ok()) {
    return;
  }
  std::set<Incarnation> asked;
  for (const auto& [id, open] : call.open) {
    asked.insert(open.agent);
  }
  for (const job::Node* node : *nodes) {
    if (asked.count(node->info.incarnation) == 0) {
      AskNode(caller, call, *node, AskedAs::kNewcomer);
    }
  }
}

void NodeAnswers::AskReturned(const Caller& caller, Call& call) {
  for (const auto& member : machine_.world().members()) {
    const auto missed = call.missed.find(member->incarnation);
    const job::Node* node = machine_.nodes().Find(member->incarnation);
    if (missed == call.missed.end() || node == nullptr || !node->connected) {
      continue;
    }
    const AskedAs as = missed->second;
    call.missed.erase(missed);
    for (int local = 0; as == AskedAs::kReturned && local < member->assignment.local_world_size;
         ++local) {
      const int rank = member->assignment.rank_offset + local;
      call.gaps[{rank, false}] = true;
      call.gaps[{rank, true}] = true;
    }
    AskNode(caller, call, *node, as);
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
  const bool is_missed = answer.is_away() && call.follows;
  if (is_missed) {
    call.missed[open->second.agent] = AskedAs::kReturned;
  }
  // That nodes leave a job that is over is nothing to tell who follows it.
  if (answer.refusal().empty() || !call.follows || !machine_.outcome().has_value()) {
    v1::NodeAnswer told = answer;
    if (is_missed) {
      told.set_refusal(kShownLater);
    }
    Queue(call, open->second, told);
  }
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
  const bool is_too_much = call.queued_bytes > kQueuedBytesMax;
  if (answer.has_logs()) {
    bool& has_gap = call.gaps[{answer.logs().rank(), answer.logs().is_stderr()}];
    if (is_too_much) {
      has_gap = true;
      return;
    }
    v1::LogLines& lines = *out.mutable_from_node()->mutable_answer()->mutable_logs();
    lines.set_has_gap(lines.has_gap() || std::exchange(has_gap, false));
  }
  if (answer.has_stacks() && is_too_much) {
    v1::WorkerStacks& stacks = *out.mutable_from_node()->mutable_answer()->mutable_stacks();
    stacks.clear_text();
    stacks.set_problem(
        "left out, because the reader is too slow; ask for fewer workers with --rank or --node");
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
