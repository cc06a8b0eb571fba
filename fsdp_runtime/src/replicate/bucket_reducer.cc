#include "fsdp_runtime/src/replicate/bucket_reducer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

namespace fsdp {

BucketReducer::BucketReducer(std::vector<NamedParameter> params, std::shared_ptr<Collectives> comm,
                             const ReducerOptions& options)
    : params_(std::move(params)),
      comm_(std::move(comm)),
      options_(options),
      used_(params_.size(), 0),
      counts_(params_.size(), 0),
      static_used_(params_.size(), 1) {
  set_ranks(comm_->size(), 0);
  set_members(plan::assign_buckets(gradient_sizes(params_), plan::reverse_order(params_.size()),
                                   options_.limits));
}

BucketReducer::~BucketReducer() {
  if (comm_->is_stream_ordered()) {  // others hold what they work on, and a wait would block
    reset_failed_round();
  }
}

void BucketReducer::install_hooks() {
  hooks_ = std::make_unique<ReplicaHooks>(params_, weak_from_this());
}

void BucketReducer::set_members(const plan::BucketMembers& members) {
  buckets_ = std::make_unique<GradientBuckets>(*comm_, params_, members);
  progress_.emplace(members);
  flights_.assign(members.size(), {});
}

void BucketReducer::set_ranks(int64_t divisor, int64_t root) {
  divisor_ = divisor;
  root_ = root;
  reciprocal_ = at::scalar_tensor(1.0 / static_cast<double>(divisor), at::kDouble);
  reciprocal_.unsafeGetTensorImpl()->set_wrapped_number(true);  // does not promote
}

void BucketReducer::set_hook(CommHook hook) {
  TORCH_CHECK(hook, "register_comm_hook: the hook is empty");
  TORCH_CHECK(!hook_, "register_comm_hook: a hook has been registered already");
  TORCH_CHECK(mark_.expired(),
              "register_comm_hook: called in a backward, of which some buckets "
              "may have been reduced; register it before");
  hook_ = std::move(hook);
}

std::vector<std::vector<std::string>> BucketReducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const GradientBuckets::Bucket& bucket : buckets_->all()) {
    names.push_back(bucket.names);
  }
  return names;
}

bool BucketReducer::enter_backward() {
  if (!mark_.expired()) {
    return true;
  }
  if (is_open_ && !is_left_open_) {
    reset_failed_round();
  }
  if (!is_open_) {
    if (!is_synced_) {
      return false;
    }
    begin_round();
  }
  is_left_open_ = false;
  const auto mark = std::make_shared<BackwardMark>();
  mark->reducer = weak_from_this();
  mark->round = round_;
  mark_ = mark;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), mark] { self->on_backward_end(*mark); });
  return true;
}

void BucketReducer::begin_round() {
  TORCH_CHECK(!asks_for_rounds_ || is_round_allowed_,
              "DistributedDataParallel: a backward in join() whose forward has not told the other "
              "ranks; call the module through DistributedDataParallel, once before each backward, "
              "with grad mode on");
  is_round_allowed_ = false;
  is_open_ = true;
  ++round_;
  has_marked_unused_ = false;
  progress_->begin();
  std::fill(counts_.begin(), counts_.end(), 0);
  arrived_.clear();
  if (!expected_.empty()) {
    std::vector<size_t> unused;
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i] == 0) {
        unused.push_back(i);
      }
    }
    collect_and_issue(unused);
  }
}

void BucketReducer::on_backward() {
  const std::lock_guard lock(mu_);
  if (!hooks_->reaches_any() || !enter_backward() || !options_.find_unused_parameters ||
      options_.static_graph || has_marked_unused_) {
    return;
  }
  has_marked_unused_ = true;
  std::vector<size_t> unused = hooks_->unreached();
  std::erase_if(unused, [this](size_t index) { return progress_->has(index); });
  collect_and_issue(unused);
}

void BucketReducer::on_gradient(size_t index) {
  const std::lock_guard lock(mu_);
  const bool is_in_round = enter_backward();
  used_[index] = 1;
  if (!is_in_round) {
    return;
  }
  ++counts_[index];
  if (progress_->has(index)) {
    throw_twice(index);
  }
  if (!has_rebuilt_) {
    arrived_.push_back(index);
  }
  const bool is_ready =
      !options_.static_graph || (!expected_.empty() && counts_[index] == expected_[index]);
  if (is_ready) {
    collect_and_issue({index});
  }
}

void BucketReducer::throw_twice(size_t index) const {
  TORCH_CHECK(
      false, "DistributedDataParallel: parameter ", params_[index].fqn,
      options_.static_graph
          ? " got another gradient than in the first backward, although static_graph promises the "
            "same; leave static_graph out, or run the same graph each time"
          : " got a gradient when its bucket had been completed. It is used by several "
            "activation_checkpoint() segments or backwards inside a backward, or, with "
            "find_unused_parameters, by one that the graph does not show: set static_graph, if "
            "each backward uses the same parameters, or move what shares it into one segment");
}

void BucketReducer::collect(size_t index) {
  const at::NoGradGuard no_grad;  // a backward that creates a graph has grad mode
  at::Tensor& gradient = params_[index].tensor.mutable_grad();
  at::Tensor part = buckets_->gradient(index);
  if (!gradient.defined()) {
    part.zero_();
    return;
  }
  TORCH_CHECK(
      gradient.layout() == at::kStrided, "DistributedDataParallel: the gradient of ",
      params_[index].fqn, " is ", gradient.layout(),
      ", which cannot be a part of a bucket; let it be dense (embedding with sparse=false), "
      "or name the parameter in params_and_buffers_to_ignore and reduce it yourself");
  const bool divides = !hook_ && divisor_ != 1;
  if (buckets_->holds(index, gradient)) {
    if (used_[index] == 0 && allows_missing()) {
      gradient = part.clone();  // stays, if no rank has used the parameter
    }
    if (divides) {
      part.div_(static_cast<double>(divisor_));
    }
    return;
  }
  if (divides) {
    at::mul_out(part, gradient, reciprocal_);
  } else {
    part.copy_(gradient);
  }
  if (used_[index] != 0) {
    gradient = part;
  }
}

void BucketReducer::collect_and_issue(const std::vector<size_t>& indices) {
  for (const size_t index : indices) {
    collect(index);
    progress_->add(index);
  }
  issue_complete_buckets();
}

void BucketReducer::issue_complete_buckets() {
  while (const std::optional<size_t> bucket = progress_->next()) {
    issue(*bucket);
  }
}

void BucketReducer::issue(size_t number) {
  const GradientBuckets::Bucket& bucket = buckets_->all()[number];
  Flight& flight = flights_[number];
  if (!hook_) {
    if (comm_->size() > 1) {
      flight.work = comm_->all_reduce(bucket.flat, ReduceOp::kSum, {Lane::kReduce, bucket.purpose});
    }
    return;
  }
  const at::NoGradGuard no_grad;
  GradBucket shown(number, number + 1 == flights_.size(), bucket.flat, bucket.gradients,
                   bucket.names, *comm_);
  CommHookResult result = hook_(shown);
  flight = {std::move(result.work), std::move(result.tensor)};
  TORCH_CHECK(!flight.result.defined() || flight.result.numel() == bucket.flat.numel(),
              "DistributedDataParallel: the comm hook has given a tensor of ",
              flight.result.defined() ? flight.result.numel() : 0, " elements for ", bucket.purpose,
              ", which has ", bucket.flat.numel());
}

void BucketReducer::shadow_round() {
  allow_round();
  begin_round();
  for (const GradientBuckets::Bucket& bucket : buckets_->all()) {
    bucket.flat.zero_();
  }
  for (const size_t index : progress_->missing()) {
    progress_->add(index);
  }
  issue_complete_buckets();
  end_round();
}

}  // namespace fsdp
