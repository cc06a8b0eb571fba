#include "fsdp_runtime/src/engine/uses_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/src/engine/max_of_ranks.h"
#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {
namespace {

uint64_t digest_of(const std::vector<uint8_t>& flags) {
  Fnv1a digest;
  for (const uint8_t flag : flags) {
    digest.mix(flag);
  }
  return digest.digest();
}

/// Element by element, 1 where `own` is 1 on some rank.
std::vector<uint8_t> any_of_ranks(Collectives& comm, const std::vector<uint8_t>& own) {
  const at::Tensor flags = at::empty({static_cast<int64_t>(own.size())}, at::kInt);
  std::copy(own.begin(), own.end(), flags.data_ptr<int32_t>());
  const at::Tensor greatest = max_of_ranks(comm, flags, "the parameters in use");
  std::vector<uint8_t> all(own.size());
  std::copy_n(greatest.const_data_ptr<int32_t>(), all.size(), all.begin());
  return all;
}

}  // namespace

UsesExchange::UsesExchange(const std::vector<ParamGroup*>& groups) {
  for (ParamGroup* group : groups) {
    Question& question = question_to(group->comm(), to_rows_);
    if (!group->reducer().puts_off_all_reduce()) {
      question.about.push_back(uses_.size());
      uses_.push_back({group, group->uses().own()});
    }
  }
  for (Question& question : to_rows_) {
    ask(question);
  }
}

UsesExchange::Question& UsesExchange::question_to(const std::shared_ptr<Collectives>& comm,
                                                  std::vector<Question>& questions) {
  const auto found = std::find_if(questions.begin(), questions.end(),
                                  [&comm](const Question& known) { return known.comm == comm; });
  if (found != questions.end()) {
    return *found;
  }
  questions.push_back({comm, {}, nullptr});
  return questions.back();
}

std::vector<uint8_t> UsesExchange::flags_of(const Question& question) const {
  std::vector<uint8_t> flags;
  for (const size_t number : question.about) {
    const std::vector<uint8_t>& own = uses_[number].flags;
    flags.insert(flags.end(), own.begin(), own.end());
  }
  return flags;
}

void UsesExchange::ask(Question& question) const {
  question.agreement = question.comm->agree(digest_of(flags_of(question)), "the end of a backward");
}

void UsesExchange::hear(const Question& question) {
  if (question.agreement->wait() || question.about.empty()) {
    return;
  }
  const std::vector<uint8_t> all = any_of_ranks(*question.comm, flags_of(question));
  auto next = all.begin();
  for (const size_t number : question.about) {
    std::vector<uint8_t>& flags = uses_[number].flags;
    std::copy_n(next, flags.size(), flags.begin());
    next += static_cast<std::ptrdiff_t>(flags.size());
  }
}

void UsesExchange::finish() {
  // All answers come before the next questions: one communicator may be the row of some groups and
  // hold the copies of others.
  for (const Question& question : to_rows_) {
    hear(question);
  }
  // The ranks that divide the same parameters have the same flags now, and get the same answer.
  std::vector<Question> to_copies;
  for (size_t number = 0; number < uses_.size(); ++number) {
    if (const std::shared_ptr<Collectives>& replicas = uses_[number].group->replicas()) {
      question_to(replicas, to_copies).about.push_back(number);
    }
  }
  for (Question& question : to_copies) {
    ask(question);
  }
  for (const Question& question : to_copies) {
    hear(question);
  }
  for (const GroupUses& known : uses_) {
    known.group->uses().end_round(known.flags);
  }
}

}  // namespace fsdp
