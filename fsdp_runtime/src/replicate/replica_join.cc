#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/src/replicate/replica_state.h"

namespace fsdp {

ReplicaState::RollCall ReplicaState::call_roll(bool is_active, bool has_round) {
  const int64_t size = comm_->size();
  if (!roll_.defined()) {
    roll_ = at::empty({2 * size}, at::kInt);
  }
  roll_.zero_();
  auto* flags = roll_.data_ptr<int32_t>();
  flags[comm_->rank()] = is_active ? 1 : 0;
  flags[size + comm_->rank()] = has_round ? 1 : 0;
  at::Tensor all = roll_.to(comm_->device());
  comm_->all_reduce(all, ReduceOp::kMax, {Lane::kReduce, "ranks that have inputs"})->wait();
  all = all.cpu();
  comm_->check_results("ranks that have inputs");
  const auto* heard = all.data_ptr<int32_t>();
  int64_t last = size - 1;
  while (last > 0 && heard[last] == 0) {
    --last;
  }
  return {.active = std::count(heard, heard + size, 1),
          .last = last,
          .has_round = std::find(heard + size, heard + 2 * size, 1) != heard + 2 * size};
}

void ReplicaState::announce_forward(bool has_round) {
  const RollCall roll = call_roll(/*is_active=*/true, has_round);
  TORCH_CHECK(!join_options_.throw_on_early_termination || roll.active == comm_->size(),
              "DistributedDataParallel: ", comm_->size() - roll.active, " of ", comm_->size(),
              " ranks have run out of inputs, and join() has throw_on_early_termination");
  was_anybody_active_ = true;
  root_ = roll.last;
  reducer_->set_ranks(join_options_.divide_by_initial_world_size ? comm_->size() : roll.active,
                      root_);
  if (has_round) {
    reducer_->allow_round();
  }
}

void ReplicaState::shadow_others() {
  while (true) {
    const RollCall roll = call_roll(/*is_active=*/false, /*has_round=*/false);
    if (roll.active == 0) {
      return;
    }
    TORCH_CHECK(!join_options_.throw_on_early_termination, "DistributedDataParallel: rank ",
                comm_->world_ranks()[static_cast<size_t>(comm_->rank())],
                " has run out of inputs, ", roll.active,
                " ranks have not, and join() has throw_on_early_termination");
    was_anybody_active_ = true;
    root_ = roll.last;
    if (sends_buffers_ && !buffers_.is_empty()) {
      buffers_.send(*comm_, root_);
    }
    sends_buffers_ = roll.has_round;
    if (roll.has_round) {
      reducer_->set_ranks(join_options_.divide_by_initial_world_size ? comm_->size() : roll.active,
                          root_);
      reducer_->shadow_round();
    }
  }
}

void ReplicaState::end_join() {
  is_joining_ = false;
  root_ = 0;
  reducer_->set_ranks(comm_->size(), 0);
  reducer_->set_asks_for_rounds(false);
}

void ReplicaState::join(const std::function<void()>& body, const JoinOptions& options) {
  TORCH_CHECK(body, "join: the body is empty");
  TORCH_CHECK(!is_joining_, "join: called inside another join() of the same module");
  if (!options.enable || comm_->size() == 1) {
    return body();
  }
  struct AtEnd {
    ReplicaState& state;
    ~AtEnd() { state.end_join(); }
  } at_end{*this};
  join_options_ = options;
  is_joining_ = true;
  was_anybody_active_ = false;
  reducer_->set_asks_for_rounds(true);
  body();
  shadow_others();
  if (was_anybody_active_) {
    for (const auto* list : {&tensors_.trained, &tensors_.frozen, &tensors_.buffers}) {
      send_tensors(*list, *comm_, root_);
    }
  }
}

}  // namespace fsdp
