#include "fsdp_runtime/src/replicate/bucket_reducer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/replicate/gradient_reports.h"

namespace fsdp {
namespace {

bool is_part_of_bucket(const at::Tensor& gradient, const at::Tensor& part) {
  return gradient.is_same(part) || (gradient.const_data_ptr() == part.const_data_ptr() &&
                                    gradient.strides() == part.strides());
}

}  // namespace

BucketReducer::BackwardMark::~BackwardMark() {
  if (has_ended) {
    return;
  }
  if (const std::shared_ptr<BucketReducer> alive = reducer.lock()) {
    alive->drop_gradients_of(round);
  }
}

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
  if (is_part_of_bucket(gradient, part)) {
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
    const at::Tensor& part = buckets_->gradient(i);
    if (used[i] != 0 && !(gradient.defined() && is_part_of_bucket(gradient, part))) {
      gradient = part;
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
    if (gradient.defined() && is_part_of_bucket(gradient, old->gradient(i))) {
      buckets_->gradient(i).copy_(gradient);
      gradient = buckets_->gradient(i);
    }
  }
  has_rebuilt_ = true;
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
    if (progress_->has(i) && gradient.defined() &&
        is_part_of_bucket(gradient, buckets_->gradient(i))) {
      gradient.reset();
    }
  }
}

}  // namespace fsdp
