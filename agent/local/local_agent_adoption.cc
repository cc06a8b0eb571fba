// What an agent leaves to the next one, and how it goes on for the last. See Note [Adopting
// workers].
#include <chrono>
#include <memory>
#include <utility>

#include "agent/local/local_agent.h"
#include "base/log.h"

namespace fsdprun {
namespace {

/// Between two looks whether output is where it is kept.
constexpr Duration kKeptPause = std::chrono::milliseconds(10);
/// They are in memory, unless this machine has no place for that.
constexpr Duration kPagesLimit = std::chrono::milliseconds(100);

}  // namespace

void LocalAgent::Persist(const NodeRecord& record) {
  record_ = record;
  LeaveMemo();
}

/// The keeper's socket is as good as the keeper itself: what is in it is read even if this process
/// is killed now. Only if the keeper is stopped, and the socket is full, does it wait in this
/// process.
void LocalAgent::LeaveMemo() {
  if (options_.keeper_socket.path.empty() || keeper_ == nullptr || !record_.has_value()) {
    return;
  }
  const StoreProcess* const store = store_.process();
  const std::string memo =
      EncodeMemo({.node = *record_,
                  .dirs = options_.dirs,
                  .store = store != nullptr ? store->id() : StoreProcess::Id(),
                  .timer_file = options_.file_timer != nullptr ? options_.file_timer->path() : ""});
  if (keeper_->LeaveMemo(memo)) {
    return;
  }
  Log(LogLevel::kWarning,
      "what another agent would have to know of this node is too much to be "
      "kept; if this process is killed, the workers are lost");
  keeper_->LeaveMemo("");
}

void LocalAgent::Resume(AttachedKeeper keeper, const AgentMemo& memo) {
  Listen();
  was_admitted_ = memo.node.was_admitted;
  const std::optional<node::Leaving>& leaving = memo.node.leaving;
  was_released_ = leaving.has_value() && (leaving->is_released || leaving->signal != 0);
  assignment_ = memo.node.assignment;
  if (store_.process() != nullptr) {
    store_.process()->Adopt(memo.store);
  }
  FollowLease(memo.node.node_lease);
  const auto attached = std::make_shared<AttachedKeeper>(std::move(keeper));
  auto go_on = [this, attached, record = memo.node] {
    keeper_ = std::make_unique<KeeperClient>(loop_, MakeKeeperCallbacks());
    keeper_->Adopt(std::move(*attached));
    if (keeper_lease_ > Duration::zero()) {
      keeper_->HoldLease(keeper_lease_);
    }
    Feed(node::Resume{record});
  };
  if (assignment_.generation != Generation() && !options_.dirs.vitals.empty()) {
    // Before what follows: a worker that has not been started yet is told of its page.
    GetPages(OpenWorkerPages);
    attempt_files_.Await(MonoNow() + kPagesLimit);
  }
  if (filtered_ != nullptr && assignment_.generation != Generation()) {
    MakeAttemptFiles(std::move(go_on));  // Filtered files are written from the beginning.
  } else {
    go_on();
  }
}

void LocalAgent::OnShown(int local_rank, keeper::Stream stream, uint64_t offset) {
  const uint64_t passed = hooks_.kept_output ? hooks_.kept_output(stream).passed : 0;
  shown_[static_cast<size_t>(stream)].push_back({local_rank, offset, life(), passed});
  NoteKept();
}

/// Whatever keeps it may be slow: it is not waited for.
void LocalAgent::NoteKept() {
  bool is_over = true;
  for (const keeper::Stream stream : {keeper::Stream::kStdout, keeper::Stream::kStderr}) {
    std::deque<Shown>& waiting = shown_[static_cast<size_t>(stream)];
    const uint64_t kept = hooks_.kept_output ? hooks_.kept_output(stream).kept : 0;
    for (; !waiting.empty() && waiting.front().passed <= kept; waiting.pop_front()) {
      const Shown& shown = waiting.front();
      if (shown.life == life() && keeper_ != nullptr && keeper_->is_alive()) {
        keeper_->NoteShown(shown.local_rank, stream, shown.offset, shown.life);
        output_.GiveBack(shown.local_rank, stream, shown.offset);
      }
    }
    is_over = is_over && waiting.empty();
  }
  if (!is_over && shown_timer_ == 0) {
    shown_timer_ = loop_.At(MonoNow() + kKeptPause, [this] {
      shown_timer_ = 0;
      NoteKept();
    });
  }
}

}  // namespace fsdprun
