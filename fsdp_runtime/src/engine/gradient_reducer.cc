#include "fsdp_runtime/src/engine/gradient_reducer.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fsdp_runtime/src/engine/custom_memory.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {
namespace {

// A piece stays in cache from one stage to the next. And ATen does not spread so few elements over
// threads: a lane, which runs beside compute, takes one core.
constexpr int64_t kPieceNumel = at::internal::GRAIN_SIZE;

/// Calls `use(begin, numel)` for the elements of a tensor: on the CPU piece by piece.
template <class Use>
void in_pieces(int64_t total, c10::Device device, Use use) {
  const int64_t step = device.is_cpu() ? kPieceNumel : total;
  for (int64_t begin = 0; begin < total; begin += step) {
    use(begin, std::min(step, total - begin));
  }
}

}  // namespace

GradientDivision divide_gradients(std::optional<double> factor, int64_t ranks,
                                  at::ScalarType reduce_dtype, bool forces_sum) {
  const double divisor = factor.value_or(static_cast<double>(ranks));
  if (reduce_dtype == at::kHalf) {
    double before = 1;
    while (std::fmod(divisor, before) == 0 && divisor / before > before) {
      before *= 2;
    }
    return {ReduceOp::kSum, before, divisor / before};
  }
  if (divisor == static_cast<double>(ranks) && !forces_sum) {
    return {ReduceOp::kAvg, 1, 1};
  }
  return {ReduceOp::kSum, 1, divisor};
}

GradientReducer::GradientReducer(const ShardStore& store, std::shared_ptr<Collectives> comm,
                                 std::shared_ptr<Collectives> replicas, at::ScalarType dtype)
    : store_(store),
      comm_(std::move(comm)),
      replicas_(std::move(replicas)),
      dtype_(dtype),
      padding_(plan::padding_of_rank(store.layout(), comm_->rank())) {}

void GradientReducer::begin() {
  arrive();
  if (has_row_sum_) {
    return;
  }
  division_ = next_division();
  hook_ = next_hook_;
  custom_ = next_custom_;
  is_local_ = next_is_local();
}

int64_t GradientReducer::ranks() const {
  return comm_->size() * (replicas_ ? replicas_->size() : 1);
}

GradientDivision GradientReducer::next_division() const {
  return divide_gradients(divide_factor_, ranks(), dtype_, forces_sum_);
}

bool GradientReducer::next_is_local() const {
  const GradientDivision division = next_division();
  return ranks() == 1 && dtype_ == store_.dtype() && division.before * division.after == 1 &&
         !next_hook_ && !store_.is_offloaded();
}

const at::Tensor& GradientReducer::memory() {
  if (!gradient_.defined() && store_.memory() != nullptr) {
    gradient_ = memory_of_policy();
  } else if (!gradient_.defined()) {
    // Not from replicas_->empty_for_comm(), which would spare an all-reduce over shared memory two
    // copies: the gradient is kept for good, and shared memory is scarce.
    gradient_ = at::empty_like(store_.shard());
  }
  return gradient_;
}

const at::Tensor& GradientReducer::memory(RunContext& context) {
  if (!gradient_.defined() && gives_memory_back_ && store_.memory() == nullptr) {
    gradient_slot_ = context.acquire_reduced_slot(
        store_.layout().shard_numel * static_cast<int64_t>(c10::elementSize(store_.dtype())));
    gradient_ = gradient_slot_->as(store_.dtype());
  }
  return memory();
}

void GradientReducer::set_gives_memory_back(bool gives_back) {
  gives_memory_back_ = gives_back;
  give_memory_back();
}

void GradientReducer::give_memory_back() {
  const bool is_lent = gives_memory_back_ || gradient_slot_ != nullptr;
  if (is_lent && !has_gradient_ && !is_reducing() && store_.memory() == nullptr) {
    gradient_.reset();
    gradient_slot_.reset();
  }
}

void GradientReducer::forget_gradient() {
  has_gradient_ = false;
  give_memory_back();
}

void GradientReducer::LocalStage::run() const {
  c10::InferenceMode no_autograd;
  in_pieces(tensor.numel(), tensor.device(), [this](int64_t begin, int64_t numel) {
    at::Tensor piece = tensor.narrow(0, begin, numel);
    if (divisor != 1) {
      piece.div_(divisor);
    }
    if (adds) {
      target.narrow(0, begin, numel).add_(piece);
    } else if (target.defined()) {
      target.narrow(0, begin, numel).copy_(piece, is_non_blocking);
    }
  });
}

bool GradientReducer::can_reduce_onto_gradient() const {
  return comm_->size() > 1 && !replicas_ && dtype_ == store_.dtype() && !store_.is_offloaded() &&
         comm_->has_reduce_scatter_onto(dtype_);
}

bool GradientReducer::next_reduces_onto_gradient() const {
  return !next_hook_ && !next_custom_ && next_division().after == 1 && can_reduce_onto_gradient();
}

bool GradientReducer::reduces_onto_gradient() const {
  return has_gradient_ && !hook_ && !custom_ && division_.after == 1 && can_reduce_onto_gradient();
}

at::Tensor GradientReducer::memory_for_output(RunContext& context) {
  const int64_t numel = store_.layout().shard_numel;
  if (custom_) {
    custom_output_ = checked_memory(custom_->allocate(numel, dtype_, store_.device()), numel,
                                    store_.shard().options().dtype(dtype_), "ReduceScatter");
    return custom_output_;
  }
  output_slot_ =
      context.acquire_reduced_slot(numel * static_cast<int64_t>(c10::elementSize(dtype_)));
  return output_slot_->as(dtype_);
}

GradientReducer::LocalStage GradientReducer::last_stage(RunContext& context,
                                                        const at::Tensor& input) {
  at::Tensor output = input;
  if (comm_->size() > 1) {
    const bool is_first = !keeps_row_ && !has_gradient_ && dtype_ == store_.dtype() && !custom_ &&
                          !store_.is_offloaded();
    if (is_first || reduces_onto_gradient()) {
      return {memory(context), division_.after};
    }
    output = memory_for_output(context);
  }
  if (!keeps_row_ && store_.is_offloaded()) {
    return {std::move(output), division_.after, memory_to_arrive_in(), /*adds=*/false,
            store_.memory()->is_pinned()};
  }
  if (!keeps_row_) {
    return {std::move(output), division_.after, memory(context), has_gradient_};
  }
  if (!row_sum_.defined()) {
    row_sum_ = at::empty(output.sizes(), output.options());
  }
  return {std::move(output), /*divisor=*/1, row_sum_, has_row_sum_};  // divided with the whole sum
}

void GradientReducer::issue_hook(Collectives& comm, Issue issue, const at::Tensor& reduced) {
  hook_result_ = std::make_shared<HookResult>();
  const auto call = [hook = hook_, reduced, padding = padding_, result = hook_result_] {
    at::NoGradGuard no_grad;
    try {
      hook(reduced);
      for (const plan::Range& gap : padding) {
        reduced.narrow(0, gap.begin, gap.end - gap.begin).zero_();
      }
    } catch (...) {
      result->error = std::current_exception();
    }
  };
  work_.add(comm.run_on_lane(std::move(issue), call));
}

WorkPtr GradientReducer::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                        Issue issue) {
  if (custom_) {
    return checked_work(custom_->run(output, input, division_.op, *comm_, std::move(issue)),
                        "ReduceScatter");
  }
  return reduces_onto_gradient()
             ? comm_->reduce_scatter_onto(output, input, division_.op, std::move(issue))
             : comm_->reduce_scatter_into(output, input, division_.op, std::move(issue));
}

void GradientReducer::issue(const at::Tensor& input, const LocalStage& last,
                            const std::string& purpose) {
  const auto next = [&] { return Issue(Lane::kReduce, purpose, work_.last()); };
  // A row of one rank has no lane; its part is done on that of the replicas.
  Collectives& row = comm_->size() == 1 && replicas_ ? *replicas_ : *comm_;
  if (division_.before != 1) {
    const LocalStage before{input, division_.before};
    work_.add(row.run_on_lane(next(), [before] { before.run(); }));
  }
  if (comm_->size() > 1) {
    work_.add(reduce_scatter(last.tensor, input, next()));
    input_end_ = work_.last();
  }
  const bool all_reduces = replicas_ && !keeps_row_;
  if (all_reduces && has_row_sum_) {
    const LocalStage kept{row_sum_, 1, last.tensor, /*adds=*/true};
    work_.add(row.run_on_lane(next(), [kept] { kept.run(); }));
  }
  if (all_reduces) {
    // On a lane of its own: the next reduce-scatter need not wait for it. An average of averages is
    // the average, and division by a factor comes last.
    work_.add(replicas_->all_reduce(last.tensor, division_.op, next()));
  }
  Collectives& end = all_reduces ? *replicas_ : row;  // whose lane has the last stages
  if (hook_ && !keeps_row_) {
    issue_hook(end, next(), last.tensor);
  }
  if (!last.is_empty()) {
    work_.add(end.run_on_lane(next(), [last, result = hook_result_] {
      if (!result || !result->error) {
        last.run();
      }
    }));
    arrival_ = store_.is_offloaded() && !keeps_row_ ? work_.last() : nullptr;
  }
  if (!input_end_) {
    input_end_ = work_.last();
  }
  if (store_.is_on_disk() && !keeps_row_ && !arrival_) {
    work_.add(end.run_on_lane(next(), [this] { release_pages(gradient_); }));
  }
}

void GradientReducer::start(RunContext& context, UnshardedGradients whole,
                            const ReductionOptions& options) {
  TORCH_INTERNAL_ASSERT(!is_reducing());
  hook_result_.reset();
  if (is_local_) {
    has_gradient_ = true;
    release_pages(gradient_);
    return;
  }
  keeps_row_ = replicas_ && !options.all_reduces;
  LocalStage last;
  std::exception_ptr error;
  try {
    last = last_stage(context, whole.flat);
  } catch (...) {
    error = std::current_exception();
  }
  input_slot_ = std::move(whole.slot);
  is_dropped_ = false;
  input_end_.reset();
  context.add_reduction(this);  // behind last_stage(), which may wait for those before it
  RuntimeCounters& counters = context.counters_in_place();
  counters.reductions += 1;
  counters.reduced_bytes += static_cast<int64_t>(whole.flat.nbytes());
  try {
    if (error) {
      std::rethrow_exception(error);
    }
    issue(whole.flat, last, options.purpose);
  } catch (...) {
    // The stages before it are under way, and peers take part in them: the slots are theirs.
    work_.fail(std::current_exception());
    throw;
  }
}

void GradientReducer::release_input() {
  if (input_end_) {
    input_end_->wait();
  } else {
    finish();  // throws what has prevented the issue
  }
  input_slot_.reset();
}

void GradientReducer::finish() {
  TORCH_INTERNAL_ASSERT(is_reducing());
  work_.finish();
  if (keeps_row_) {
    has_row_sum_ = !is_dropped_;
  } else {
    has_row_sum_ = false;
    has_gradient_ = has_gradient_ || (!is_dropped_ && hook_error() == nullptr);
  }
  input_end_.reset();
  output_slot_.reset();
  custom_output_.reset();
  input_slot_.reset();
  if (!arrival_ || store_.memory()->is_pinned()) {
    return;
  }
  try {
    arrive();  // the host has waited for the copy as it was issued, and memory is scarce
  } catch (...) {
    work_.fail(std::current_exception());  // as those of the lane, it is thrown each time
    throw;
  }
}

at::Tensor GradientReducer::memory_of_policy() const {
  return store_.memory()->empty(store_.layout().shard_numel, store_.dtype(),
                                "the gradient of " + store_.fqn(0));
}

at::Tensor GradientReducer::memory_to_arrive_in() {
  if (!has_gradient_) {
    return memory();
  }
  added_ = store_.is_on_disk() ? at::empty_like(store_.shard()) : memory_of_policy();
  return added_;
}

void GradientReducer::arrive() {
  const WorkPtr arrival = std::exchange(arrival_, nullptr);
  if (!arrival) {
    return;
  }
  const at::Tensor added = std::exchange(added_, at::Tensor());
  try {
    arrival->wait_on_host();
  } catch (...) {
    has_gradient_ = false;  // what has been missed is told once
    throw;
  }
  if (added.defined() && hook_error() == nullptr) {
    at::NoGradGuard no_grad;
    gradient_.add_(added);
  }
  release_pages(gradient_);
}

void GradientReducer::drop() {
  has_gradient_ = false;
  has_row_sum_ = false;
  is_dropped_ = true;
  give_memory_back();
}

void GradientReducer::zero(const std::vector<size_t>& params) {
  at::NoGradGuard no_grad;
  const auto zero_parts_of = [&](const at::Tensor& flat) {
    std::vector<at::Tensor> parts;
    for (const size_t param : params) {
      const plan::ParamSlice& slice = store_.slice(param);
      if (slice.numel() > 0) {
        parts.push_back(flat.narrow(0, slice.shard_offset, slice.numel()));
      }
    }
    if (!parts.empty()) {
      at::_foreach_zero_(parts);
    }
    release_pages(flat);
  };
  if (has_gradient_) {
    zero_parts_of(gradient_);
  }
  if (has_row_sum_) {
    zero_parts_of(row_sum_);
  }
}

}  // namespace fsdp
