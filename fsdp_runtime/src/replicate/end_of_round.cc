// How rounds end: with gradients, or with a backward that has thrown.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/replicate/bucket_reducer.h"
#include "fsdp_runtime/src/replicate/gradient_reports.h"

namespace fsdp {

BucketReducer::BackwardMark::~BackwardMark() {
  if (has_ended) {
    return;
  }
  if (const std::shared_ptr<BucketReducer> alive = reducer.lock()) {
    alive->drop_gradients_of(round);
  }
}

void BucketReducer::wait_for_buckets() {
  const at::NoGradGuard no_grad;
  for (size_t number = 0; number < flights_.size(); ++number) {
    Flight& flight = flights_[number];
    if (flight.work) {
      flight.work->wait();
    }
    const at::Tensor& flat = buckets_->all()[number].flat;
    if (flight.result.defined() && !flight.result.is_same(flat)) {
      flat.copy_(flight.result.reshape({-1}));
    }
    flight = {};
  }
}

void BucketReducer::on_backward_end(BackwardMark& mark) {
  const std::lock_guard lock(mu_);
  if (is_nested_backward() && !progress_->is_complete()) {
    mark.has_ended = true;  // this one; the backward around it may go on
    is_left_open_ = true;
    mark_.reset();
    return;
  }
  end_round();
  mark.has_ended = true;
  mark_.reset();
}

void BucketReducer::settle() {
  const std::lock_guard lock(mu_);
  if (is_open_ && is_left_open_) {
    is_left_open_ = false;
    end_round();
  }
  const bool is_in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!is_in_backward && !mark_.expired()) {  // it has thrown, and autograd has not let go of it
    drop_gradients();
    mark_.reset();
    ++round_;
  }
}

void BucketReducer::end_round() {
  const std::vector<size_t> left = progress_->missing();
  std::vector<uint8_t> missing(params_.size(), 0);
  // A static graph of which this rank has not seen a backward yet has all of them left.
  if (!options_.static_graph || !expected_.empty()) {
    for (const size_t index : left) {
      missing[index] = 1;
    }
  }
  collect_and_issue(left);
  const bool allows = allows_missing();
  FlagExchange flags(*comm_, allows ? used_ : missing);
  wait_for_buckets();
  const std::vector<uint8_t> any = flags.any();
  is_open_ = false;
  if (!allows && std::find(any.begin(), any.end(), 1) != any.end()) {
    const std::vector<std::vector<uint8_t>> rows = flags.by_rank();
    drop_gradients();
    std::fill(used_.begin(), used_.end(), 0);
    TORCH_CHECK(false,
                missing_gradients_text(rows, comm_->world_ranks(), params_, options_.static_graph));
  }
  if (options_.static_graph && !has_had_round_) {
    static_used_ = any;
  }
  learn_uses();
  show_used(allows && !options_.static_graph ? any : static_used_);
  has_had_round_ = true;
  std::fill(used_.begin(), used_.end(), 0);
  if (!has_rebuilt_ && (options_.static_graph || !options_.find_unused_parameters)) {
    rebuild_buckets();
  }
}

void BucketReducer::learn_uses() {
  const bool has_taken_part =
      std::any_of(counts_.begin(), counts_.end(), [](int64_t count) { return count > 0; });
  if (options_.static_graph && expected_.empty() && has_taken_part) {
    expected_ = counts_;
  }
}

void BucketReducer::show_used(const std::vector<uint8_t>& used) {
  for (size_t i = 0; i < params_.size(); ++i) {
    at::Tensor& gradient = params_[i].tensor.mutable_grad();
    if (used[i] != 0 && !(gradient.defined() && buckets_->holds(i, gradient))) {
      gradient = buckets_->gradient(i);
    }
  }
}

void BucketReducer::rebuild_buckets() {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> own = plan::arrival_order(arrived_, params_.size());
  at::Tensor order = at::empty({static_cast<int64_t>(own.size())}, at::kLong);
  std::copy(own.begin(), own.end(), order.data_ptr<int64_t>());
  if (comm_->size() > 1) {
    order = order.to(comm_->device());
    comm_->broadcast(order, root_, {Lane::kReduce, "the order of gradients"})->wait();
    order = order.cpu();
    comm_->check_results("the order of gradients");
  }
  const int64_t* first = order.data_ptr<int64_t>();
  const std::vector<size_t> agreed(first, first + order.numel());
  const std::unique_ptr<GradientBuckets> old = std::move(buckets_);
  set_members(plan::assign_buckets(gradient_sizes(params_), agreed, options_.limits));
  for (size_t i = 0; i < params_.size(); ++i) {
    at::Tensor& gradient = params_[i].tensor.mutable_grad();
    if (gradient.defined() && old->holds(i, gradient)) {
      buckets_->gradient(i).copy_(gradient);
      gradient = buckets_->gradient(i);
    }
  }
  has_rebuilt_ = true;
}

void BucketReducer::reset_failed_round() {
  for (Flight& flight : flights_) {
    try {
      if (flight.work) {
        flight.work->wait();
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): its backward has thrown already
    }
    flight = {};
  }
  std::fill(used_.begin(), used_.end(), 0);
  is_open_ = false;
  ++round_;
}

void BucketReducer::drop_gradients_of(uint64_t round) {
  const std::lock_guard lock(mu_);
  if (round_ == round) {
    drop_gradients();
  }
}

void BucketReducer::drop_gradients() {
  for (size_t i = 0; i < params_.size(); ++i) {
    at::Tensor& gradient = params_[i].tensor.mutable_grad();
    if (progress_->has(i) && gradient.defined() && buckets_->holds(i, gradient)) {
      gradient.reset();
    }
  }
}

}  // namespace fsdp
