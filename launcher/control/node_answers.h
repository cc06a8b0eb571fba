#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/control/control_service.h"
#include "launcher/control/node_asides.h"
#include "launcher/coordinator/job_machine.h"

namespace fsdprun {

/// Passes operators' questions on to nodes, and what they answer back. What an operator does not
/// read is kept up to a limit; logs beyond that are dropped, and say so. Thread: loop thread.
class NodeAnswers {
 public:
  /// Who asked, and through which service.
  using Caller = std::pair<ControlService*, ControlService::CallId>;

  static constexpr size_t kQueuedBytesMax = 4u << 20;

  /// Both must outlive it.
  NodeAnswers(const JobMachine& machine, NodeAsides& asides) : machine_(machine), asides_(asides) {}
  NodeAnswers(const NodeAnswers&) = delete;
  NodeAnswers& operator=(const NodeAnswers&) = delete;

  void Ask(const Caller& caller, const v1::NodesQuestion& question);
  /// After every step of the machine: other nodes may have joined.
  void Stepped();
  /// Whoever has not asked here is ignored.
  void Written(const Caller& caller);
  void Lose(const Caller& caller);
  void Close(const absl::Status& why);

 private:
  /// Why a node is asked: somebody asks now; its workers begin while somebody follows, so that all
  /// they write is new; or it was away, and nobody knows what they have written since.
  enum class AskedAs { kMeant, kNewcomer, kReturned };
  struct Asked {
    Incarnation agent;
    std::string node;
    int group_rank = 0;
  };
  struct Call {
    v1::NodesQuestion question;
    bool follows = false;
    std::map<NodeAsides::Id, Asked> open;
    /// Of one who follows: members that are to be asked once they are back, and as what.
    std::map<Incarnation, AskedAs> missed;
    std::deque<v1::ControlAnswer> queue;
    size_t queued_bytes = 0;
    bool is_writing = false;
    /// Lines of that rank's stream were dropped.
    std::map<std::pair<int, bool>, bool> gaps;
  };

  static v1::ToNodeAside ForNode(const v1::NodesQuestion& question, AskedAs as);
  absl::StatusOr<std::vector<const job::Node*>> Meant(const Call& call) const;
  void AskNode(const Caller& caller, Call& call, const job::Node& node, AskedAs as);
  void AskNewcomers(const Caller& caller, Call& call);
  void AskReturned(const Caller& caller, Call& call);
  void OnAnswer(const Caller& caller, NodeAsides::Id id, const v1::NodeAnswer& answer);
  void Queue(Call& call, const Asked& asked, const v1::NodeAnswer& answer);
  /// Sends what is next, or ends the call if nothing more can come.
  void Continue(const Caller& caller);
  void DropQuestions(Call& call);

  const JobMachine& machine_;
  NodeAsides& asides_;
  Generation seen_;
  std::map<Caller, Call> calls_;
};

}  // namespace fsdprun
