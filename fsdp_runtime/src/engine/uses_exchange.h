#pragma once

#include <fsdp/collectives.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

class ParamGroup;

/// One round of ParameterUses, at the end of a backward. Ranks compare a digest of what they have
/// used, and exchange the flags only if it differs: with those that divide the same parameters,
/// then with those that hold copies. Each communicator is asked one question at a time, about all
/// of its groups. A group whose all-reduce has been put off goes on with its round: its gradient is
/// not there yet, so the copies are not asked.
///
/// Every rank makes one, in the same order relative to its collectives.
class UsesExchange {
 public:
  /// `groups`: what has been reduced since the last round; the same on all ranks, in the same
  /// order. They must outlive this. Sends the questions to those that divide them.
  explicit UsesExchange(const std::vector<ParamGroup*>& groups);
  /// Tells the groups which parameters some rank has used. Blocks the host; throws like
  /// Agreement::wait() and Work::wait().
  void finish();

 private:
  struct GroupUses {
    ParamGroup* group = nullptr;
    std::vector<uint8_t> flags;  // of this rank; in the end, of all
  };
  /// To the ranks of one communicator.
  struct Question {
    std::shared_ptr<Collectives> comm;
    std::vector<size_t> about;  // numbers of uses_; none: only that all are here
    AgreementPtr agreement;
  };

  static Question& question_to(const std::shared_ptr<Collectives>& comm,
                               std::vector<Question>& questions);
  std::vector<uint8_t> flags_of(const Question& question) const;
  void ask(Question& question) const;
  void hear(const Question& question);

  std::vector<GroupUses> uses_;
  std::vector<Question> to_rows_;
};

}  // namespace fsdp
