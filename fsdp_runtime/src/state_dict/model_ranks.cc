#include "fsdp_runtime/src/state_dict/model_ranks.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fsdp {
namespace {

/// What a rank tells the others.
struct RankWord {
  uint64_t digest = 0;
  char problem[1016] = {};  // cut off, ends with a zero
};

constexpr auto kWordBytes = static_cast<int64_t>(sizeof(RankWord));

at::Tensor bytes_on(c10::Device device, const void* data, size_t bytes) {
  at::Tensor copy = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes > 0) {
    std::memcpy(copy.data_ptr(), data, bytes);
  }
  return copy.to(device);
}

/// Of all ranks of `comm`, in their order.
std::vector<RankWord> gather_words(Collectives& comm, const RankWord& own,
                                   const std::string& purpose) {
  at::Tensor all =
      at::empty({comm.size() * kWordBytes}, at::TensorOptions(at::kByte).device(comm.device()));
  comm.all_gather_into(all, bytes_on(comm.device(), &own, sizeof(own)), {Lane::kGather, purpose})
      ->wait();
  all = all.cpu();
  comm.check_results(purpose);
  std::vector<RankWord> words(static_cast<size_t>(comm.size()));
  std::memcpy(words.data(), all.const_data_ptr(), words.size() * sizeof(RankWord));
  return words;
}

/// What all ranks that have heard these words make of them; "" if all is well.
std::string verdict_on(const std::vector<RankWord>& words, const std::vector<int64_t>& names) {
  for (const RankWord& word : words) {
    if (word.problem[0] != '\0') {
      return word.problem;
    }
  }
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].digest != words.front().digest) {
      return "ranks " + std::to_string(names.front()) + " and " + std::to_string(names[i]) +
             " differ in the model's tensors, the optimizer's states, the keys of the dict or the "
             "options; call it with the same on all ranks";
    }
  }
  return "";
}

void set_problem(RankWord& word, const std::string& problem) {
  const size_t length = std::min(problem.size(), sizeof(word.problem) - 1);
  std::copy_n(problem.data(), length, word.problem);
  word.problem[length] = '\0';
}

}  // namespace

ModelRanks::ModelRanks(const DeviceMesh& mesh, std::string purpose) : purpose_(std::move(purpose)) {
  for (int64_t axis = mesh.ndim(); axis-- > 0;) {
    axes_.push_back(mesh.group(axis));
  }
}

bool ModelRanks::is_first() const {
  return std::all_of(axes_.begin(), axes_.end(),
                     [](const auto& group) { return group->rank() == 0; });
}

void ModelRanks::agree(const std::string& problem, uint64_t digest) const {
  const Collectives& row = *axes_.front();
  RankWord word{digest};
  if (!problem.empty()) {
    const int64_t name = row.world_ranks()[static_cast<size_t>(row.rank())];
    set_problem(word, "rank " + std::to_string(name) + ": " + problem);
  }
  for (const std::shared_ptr<Collectives>& group : axes_) {
    const std::string verdict =
        verdict_on(gather_words(*group, word, purpose_), group->world_ranks());
    set_problem(word, verdict);
  }
  TORCH_CHECK(problem.empty(), purpose_, ": ", problem);
  TORCH_CHECK(word.problem[0] == '\0', purpose_, ": ", word.problem);
}

void ModelRanks::end_world(const std::exception& error) const {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  axes_.front()->abort(purpose_ + ": rank " + std::to_string(axes_.front()->rank()) +
                       " cannot go on: " +
                       (of_torch != nullptr ? of_torch->what_without_backtrace() : error.what()));
}

void ModelRanks::send_from_first(at::Tensor bytes) const {
  // Along its row, then from that row along all columns.
  const bool is_in_first_row = std::all_of(axes_.begin() + 1, axes_.end(),
                                           [](const auto& group) { return group->rank() == 0; });
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (i > 0 || is_in_first_row) {
      axes_[i]->broadcast(bytes, /*root=*/0, {Lane::kReduce, purpose_})->wait();
    }
  }
}

std::string ModelRanks::text_of_first(const std::string& text) const {
  const int64_t own_length = is_first() ? static_cast<int64_t>(text.size()) : 0;
  at::Tensor length = bytes_on(device(), &own_length, sizeof(own_length));
  send_from_first(length);
  const int64_t bytes = length.cpu().view(at::kLong).item<int64_t>();
  at::Tensor content = is_first()
                           ? bytes_on(device(), text.data(), text.size())
                           : at::empty({bytes}, at::TensorOptions(at::kByte).device(device()));
  if (bytes > 0) {
    send_from_first(content);
  }
  content = content.cpu();
  for (const std::shared_ptr<Collectives>& group : axes_) {
    group->check_results(purpose_);
  }
  return {static_cast<const char*>(content.const_data_ptr()), static_cast<size_t>(bytes)};
}

}  // namespace fsdp
