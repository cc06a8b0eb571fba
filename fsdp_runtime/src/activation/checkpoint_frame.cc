#include "fsdp_runtime/src/activation/checkpoint_frame.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/activation/is_replaying.h"

namespace fsdp::detail {
namespace {

thread_local int replays_of_thread = 0;

/// Ends a replay whose last tensor has been saved. No std::exception, so that a segment's own
/// handlers of these let it pass.
struct ReplayIsComplete {};

class ReplayMark {
 public:
  ReplayMark() { ++replays_of_thread; }
  ~ReplayMark() { --replays_of_thread; }
  ReplayMark(const ReplayMark&) = delete;
  ReplayMark& operator=(const ReplayMark&) = delete;
};

}  // namespace

bool is_replaying() { return replays_of_thread > 0; }

/// Instead of a saved tensor, until the graph is freed.
class CheckpointFrame::Place : public torch::autograd::SavedVariableHooks {
 public:
  explicit Place(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = frame_->places_.size();
    frame_->places_.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
  }
  at::Tensor call_unpack_hook() override { return frame_->take(index_); }

 private:
  const std::shared_ptr<CheckpointFrame> frame_;
  size_t index_ = 0;
};

/// Of the other run, whose graph is freed at once.
class CheckpointFrame::Refill : public torch::autograd::SavedVariableHooks {
 public:
  explicit Refill(CheckpointFrame& frame) : frame_(frame) {}
  void call_pack_hook(const at::Tensor& tensor) override { frame_.refill(tensor); }
  at::Tensor call_unpack_hook() override {
    TORCH_CHECK(false,
                "activation_checkpoint: the segment runs a backward of its own over what is "
                "computed again, which is not there to be kept; use "
                "CheckpointOptions::use_reentrant");
  }

 private:
  CheckpointFrame& frame_;
};

CheckpointFrame::CheckpointFrame(const CheckpointOptions& options,
                                 const std::vector<at::Tensor>& inputs,
                                 CheckpointScope::Replay replay)
    : stops_early_(options.early_stop),
      checks_(options.checks_determinism),
      replay_(std::move(replay)),
      autocast_(inputs) {
  for (const at::Tensor& input : inputs) {
    inputs_.emplace_back(input, /*is_output=*/false);
    requires_grad_.push_back(input.requires_grad());
  }
  if (options.preserve_rng_state) {
    generators_.emplace(inputs);
  }
  if (options.keeps_results_of) {
    results_.emplace(options.keeps_results_of, generators_ ? &*generators_ : nullptr);
  }
}

SavedTensorScope::Hooks CheckpointFrame::next_place() {
  return std::make_unique<Place>(shared_from_this());
}

at::Tensor CheckpointFrame::take(size_t index) {
  const std::lock_guard lock(mutex_);
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward != for_backward_) {
    refilled_.clear();
    for_backward_ = backward;
  }
  if (refilled_.empty() || !refilled_[index].defined()) {
    run_again();
  }
  TORCH_CHECK(refilled_[index].defined(), "activation_checkpoint: the segment saved ",
              places_.size(), " tensors for backward, and ", refilled_count_,
              " when it was run again; it has to do the same in both runs");
  return std::exchange(refilled_[index], at::Tensor());
}

void CheckpointFrame::run_again() {
  const ReplayMark mark;
  refilled_.assign(places_.size(), at::Tensor());
  refilled_count_ = 0;
  std::optional<GeneratorScope> generators;
  if (generators_) {
    generators.emplace(*generators_);
  }
  const AutocastScope casts(autocast_);
  const at::AutoGradMode with_graph(true);
  try {
    run_replay();
  } catch (const ReplayIsComplete&) {
    return;
  }
  TORCH_CHECK(refilled_count_ == places_.size() || !checks_,
              "activation_checkpoint: the segment saved ", places_.size(),
              " tensors for backward, and ", refilled_count_,
              " when it was run again; it has to do the same in both runs");
}

void CheckpointFrame::run_replay() {
  std::vector<at::Tensor> inputs = fresh_inputs();
  const SavedTensorScope hooks([this] { return std::make_unique<Refill>(*this); });
  std::optional<OperatorResults::Watch> watch;
  if (results_) {
    results_->rewind();
    watch.emplace(*results_, OperatorResults::Watch::Run::kReplay);
  }
  replay_(inputs);
}

void CheckpointFrame::refill(const at::Tensor& tensor) {
  const size_t index = refilled_count_++;
  if (index < refilled_.size()) {
    check_same(index, tensor);
    refilled_[index] = tensor.detach();
  }
  if (stops_early_ && refilled_count_ == refilled_.size()) {
    throw ReplayIsComplete();
  }
}

void CheckpointFrame::check_same(size_t index, const at::Tensor& tensor) const {
  const Description& first = places_[index];
  TORCH_CHECK(!checks_ || (tensor.sizes() == first.sizes && tensor.scalar_type() == first.dtype &&
                           tensor.device() == first.device),
              "activation_checkpoint: tensor ", index, " that the segment saves for backward was ",
              first.dtype, " of shape ", at::IntArrayRef(first.sizes), " on ", first.device,
              ", and is ", tensor.scalar_type(), " of shape ", tensor.sizes(), " on ",
              tensor.device(), " when it is run again; it has to do the same in both runs");
}

std::vector<at::Tensor> CheckpointFrame::fresh_inputs() {
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs.push_back(inputs_[i].unpack().detach());
    inputs.back().set_requires_grad(requires_grad_[i]);
  }
  return inputs;
}

struct CheckpointScope::Open {
  explicit Open(const std::shared_ptr<CheckpointFrame>& frame)
      : hooks([frame] { return frame->next_place(); }) {
    if (OperatorResults* results = frame->results()) {
      watch.emplace(*results, OperatorResults::Watch::Run::kFirst);
    }
  }
  SavedTensorScope hooks;
  std::optional<OperatorResults::Watch> watch;
};

CheckpointScope::CheckpointScope(const CheckpointOptions& options,
                                 const std::vector<at::Tensor>& inputs, Replay replay) {
  // Also without grad mode: within a reentrant segment grad mode comes in its backward, and the
  // engine that runs that must not be replaced meanwhile.
  offer_engine_with_hooks();
  if (at::GradMode::is_enabled()) {
    open_ = std::make_unique<Open>(
        std::make_shared<CheckpointFrame>(options, inputs, std::move(replay)));
  }
}

CheckpointScope::~CheckpointScope() = default;

}  // namespace fsdp::detail
