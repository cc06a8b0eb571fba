#include "agent/local/node_desk.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"

namespace fsdprun {
namespace {

template <class Ranks>
std::vector<int> ToVector(const Ranks& ranks) {
  return std::vector<int>(ranks.begin(), ranks.end());
}

/// From 0 to 1.
double RandomShare() {
  std::random_device random;
  return static_cast<double>(random()) / static_cast<double>(std::random_device::max());
}

}  // namespace

NodeDesk::NodeDesk(EventLoop& loop, std::function<StackReader::Programs()> find_programs,
                   Hooks hooks)
    : loop_(loop),
      hooks_(std::move(hooks)),
      stacks_(loop, std::move(find_programs)),
      vitals_(loop, RandomShare(), [this] { TellVitals(); }) {}

NodeDesk::~NodeDesk() { *is_live_ = false; }

void NodeDesk::Hear(const v1::ToNodeAside& aside) {
  const uint64_t id = aside.id();
  if (aside.has_unwanted()) {
    // Not at once: its own answer may be what is being given.
    auto question = std::make_shared<decltype(questions_)::node_type>(questions_.extract(id));
    loop_.Post([question] {});
    return;
  }
  if (aside.has_vitals()) {
    return vitals_.Want(Duration(aside.vitals().every_ns()));
  }
  if (IsWanted(id)) {
    return;
  }
  if (questions_.size() >= kQuestionsMax) {
    Refuse(id, "too much is asked of this node at once");
    return;
  }
  switch (aside.what_case()) {
    case v1::ToNodeAside::kLogs:
      return AnswerLogs(id, aside.logs());
    case v1::ToNodeAside::kStacks:
      return AnswerStacks(id, aside.stacks());
    case v1::ToNodeAside::kSave:
      return AnswerSave(id);
    default:
      Refuse(id,
             "the node's agent does not know the question; install the same release everywhere");
  }
}

void NodeDesk::StreamLost() {
  questions_.clear();
  vitals_.Want(Duration::zero());
}

void NodeDesk::WorkersBegan() {
  for (auto& [id, question] : questions_) {
    if (question.tail != nullptr) {
      question.tail->Replace(LogsOf(id, question.ranks));
    }
  }
}

void NodeDesk::CheckpointTold(const ToldCheckpoint& told) {
  std::vector<uint64_t> waiting;
  for (const auto& [id, question] : questions_) {
    if (question.awaits_checkpoint) {
      waiting.push_back(id);
    }
  }
  for (const uint64_t id : waiting) {
    if (!told.error.empty()) {
      Refuse(id,
             absl::StrCat("rank ", told.rank, " has not saved step ", told.step, ": ", told.error));
      continue;
    }
    v1::NodeAnswer answer;
    answer.mutable_saved()->set_rank(told.rank);
    answer.mutable_saved()->set_step(told.step);
    answer.mutable_saved()->set_path(told.path);
    answer.set_is_last(true);
    Send(id, std::move(answer));
  }
}

void NodeDesk::TellTheRest() {
  const MonoTime deadline = MonoNow() + kLastWords;
  for (auto& [id, question] : questions_) {
    if (question.tail != nullptr) {
      question.tail->Drain(deadline);
    }
  }
}

void NodeDesk::AnswerLogs(uint64_t id, const v1::LogsQuestion& question) {
  Question& open = questions_[id];
  open.ranks = ToVector(question.ranks());
  LogTail::Hooks hooks;
  hooks.on_lines = [this, id](v1::LogLines lines) {
    v1::NodeAnswer answer;
    *answer.mutable_logs() = std::move(lines);
    Send(id, std::move(answer));
  };
  hooks.on_end = [this, id] {
    v1::NodeAnswer answer;
    answer.set_is_last(true);
    // Its tail is what calls this.
    loop_.Post([live = is_live_, this, id, answer] {
      if (*live) {
        Send(id, answer);
      }
    });
  };
  hooks.has_room = [this] { return hooks_.unwritten() <= kUnwrittenMax; };
  const int tail_lines = std::max(question.tail_lines(), 0);
  open.tail = std::make_unique<LogTail>(loop_, LogsOf(id, open.ranks), tail_lines,
                                        question.follow(), std::move(hooks));
}

void NodeDesk::AnswerStacks(uint64_t id, const v1::StacksQuestion& question) {
  const std::shared_ptr<std::atomic<bool>> is_wanted = questions_[id].is_wanted;
  std::vector<ReadWorker> wanted;
  for (const Worker& worker : WorkersOf(ToVector(question.ranks()))) {
    ProcessInfo process;
    if (worker.pid > 0 && ReadProcess(worker.pid, process)) {
      wanted.push_back({worker.rank, worker.pid, process.start_time_ticks});
    }
  }
  if (wanted.empty()) {
    return Refuse(id, "no such worker runs on this node");
  }
  stacks_.Read(
      wanted, is_wanted,
      [live = is_live_, this, id](v1::WorkerStacks stacks) {
        if (*live) {
          v1::NodeAnswer answer;
          *answer.mutable_stacks() = std::move(stacks);
          Send(id, std::move(answer));
        }
      },
      [live = is_live_, this, id] {
        if (*live) {
          v1::NodeAnswer answer;
          answer.set_is_last(true);
          Send(id, std::move(answer));
        }
      });
}

void NodeDesk::AnswerSave(uint64_t id) {
  const int told = hooks_.ask_to_save();
  if (told == 0) {
    return Refuse(id, "no worker runs on this node");
  }
  const std::vector<Worker> workers = hooks_.workers();
  const bool has_first = std::any_of(workers.begin(), workers.end(),
                                     [](const Worker& worker) { return worker.rank == 0; });
  questions_[id].awaits_checkpoint = has_first;  // Rank 0 tells of the checkpoint of all.
  v1::NodeAnswer answer;
  answer.mutable_save()->set_workers(told);
  answer.set_is_last(!has_first);
  Send(id, std::move(answer));
}

/// While the network does not keep up, older vitals are worth nothing: the next ones are told.
void NodeDesk::TellVitals() {
  if (hooks_.unwritten() > kUnwrittenMax) {
    return;
  }
  v1::FromNodeAside aside;
  *aside.mutable_vitals() = hooks_.read_vitals();
  hooks_.send(aside);
}

void NodeDesk::Refuse(uint64_t id, const std::string& why) {
  v1::NodeAnswer answer;
  answer.set_refusal(why);
  answer.set_is_last(true);
  questions_[id];
  Send(id, std::move(answer));
}

/// Nothing is said to a question that is wanted no more.
void NodeDesk::Send(uint64_t id, v1::NodeAnswer answer) {
  if (!IsWanted(id)) {
    return;
  }
  if (answer.is_last()) {
    questions_.erase(id);
  }
  answer.set_id(id);
  v1::FromNodeAside aside;
  *aside.mutable_answer() = std::move(answer);
  hooks_.send(aside);
}

std::vector<NodeDesk::Worker> NodeDesk::WorkersOf(const std::vector<int>& ranks) const {
  std::vector<Worker> workers = hooks_.workers();
  if (!ranks.empty()) {
    std::erase_if(workers, [&ranks](const Worker& worker) {
      return std::find(ranks.begin(), ranks.end(), worker.rank) == ranks.end();
    });
  }
  return workers;
}

/// Of what is not kept, says so.
std::vector<TailedLog> NodeDesk::LogsOf(uint64_t id, const std::vector<int>& ranks) {
  std::vector<TailedLog> logs;
  const uint64_t generation = hooks_.generation().value();
  for (const Worker& worker : WorkersOf(ranks)) {
    for (const bool is_stderr : {false, true}) {
      const std::string& path = is_stderr ? worker.stderr_path : worker.stdout_path;
      if (!path.empty()) {
        logs.push_back({worker.rank, is_stderr, path, generation});
        continue;
      }
      v1::NodeAnswer answer;
      answer.mutable_logs()->set_rank(worker.rank);
      answer.mutable_logs()->set_is_stderr(is_stderr);
      answer.mutable_logs()->set_generation(generation);
      answer.mutable_logs()->set_is_not_kept(true);
      Send(id, std::move(answer));
    }
  }
  return logs;
}

}  // namespace fsdprun
