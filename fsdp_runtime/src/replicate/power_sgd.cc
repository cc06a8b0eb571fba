#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fsdp/ddp_comm_hooks.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace fsdp {
namespace {

/// A bucket's gradients as matrices and their factors, M = P Q^T, with what that has left out.
struct LowRank {
  at::Tensor flat;   // the bucket
  at::Tensor input;  // [numel], with what was left out before
  at::Tensor error;  // [numel], what is left out now
  at::Tensor p_flat, q_flat;
  std::vector<at::Tensor> matrices;  // [n, m], parts of flat
  std::vector<at::Tensor> p;         // [n, rank], parts of p_flat
  std::vector<at::Tensor> q;         // [m, rank], parts of q_flat
  std::vector<at::Tensor> whole;     // [numel], parts of flat that are not worth it
  std::vector<at::Tensor> sent;      // the same, behind the factors in p_flat
  std::vector<at::Tensor> no_error;  // their parts of error

  static void orthogonalize(const at::Tensor& matrix) {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix, "reduced")));
  }
  void begin() const {
    flat.add_(error);
    input.copy_(flat);
    for (size_t i = 0; i < matrices.size(); ++i) {
      orthogonalize(q[i]);
      p[i].copy_(matrices[i].mm(q[i]));
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      sent[i].copy_(whole[i]);
    }
  }
  void go_on(double ranks) const {
    for (size_t i = 0; i < matrices.size(); ++i) {
      orthogonalize(p[i]);
      q[i].copy_(matrices[i].t().mm(p[i]));
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      whole[i].copy_(sent[i]).div_(ranks);
    }
  }
  void end(double ranks) const {
    q_flat.div_(ranks);
    for (size_t i = 0; i < matrices.size(); ++i) {
      matrices[i].copy_(p[i].mm(q[i].t()));
    }
    error.copy_(input).sub_(flat);
    for (const at::Tensor& part : no_error) {
      part.zero_();  // the mean of all ranks is there
    }
  }
};

class PowerSgd {
 public:
  explicit PowerSgd(const PowerSGDOptions& options) : options_(options) {
    TORCH_CHECK(options.matrix_approximation_rank >= 1, "powerSGD_hook: a rank of ",
                options.matrix_approximation_rank, ", expected at least 1");
    TORCH_CHECK(options.start_powerSGD_iter >= 2, "powerSGD_hook: start_powerSGD_iter is ",
                options.start_powerSGD_iter,
                ", expected at least 2: buckets are made anew behind the first backward");
  }

  CommHookResult operator()(GradBucket& bucket) {
    const at::ScalarType dtype = bucket.buffer().scalar_type();
    const bool is_exact =
        backwards_ < options_.start_powerSGD_iter || (dtype != at::kFloat && dtype != at::kDouble);
    backwards_ += bucket.is_last() ? 1 : 0;
    return is_exact ? allreduce_hook()(bucket) : reduce(bucket);
  }

 private:
  CommHookResult reduce(GradBucket& bucket) {
    const std::shared_ptr<LowRank> state = state_of(bucket);
    Collectives& group = bucket.group();
    const auto ranks = static_cast<double>(group.size());
    WorkPtr work;
    const auto issue = [&work] { return Issue(Lane::kReduce, "a bucket's factors", work); };
    const auto stage = [&](auto run) {
      work = group.run_on_lane(issue(), [state, run] {
        const c10::InferenceMode no_autograd;
        run(*state);
      });
    };
    stage([](const LowRank& low) { low.begin(); });
    work = group.all_reduce(state->p_flat, ReduceOp::kSum, issue());
    stage([ranks](const LowRank& low) { low.go_on(ranks); });
    if (!state->matrices.empty()) {
      work = group.all_reduce(state->q_flat, ReduceOp::kSum, issue());
    }
    stage([ranks](const LowRank& low) { low.end(ranks); });
    return {work};
  }

  const std::shared_ptr<LowRank>& state_of(GradBucket& bucket) {
    if (states_.size() <= bucket.index()) {
      states_.resize(bucket.index() + 1);
    }
    std::shared_ptr<LowRank>& state = states_[bucket.index()];
    if (!state || !state->flat.is_same(bucket.buffer())) {
      state = make_state(bucket);
    }
    return state;
  }

  int64_t rank_of(const at::Tensor& matrix) const {
    return std::min({options_.matrix_approximation_rank, matrix.size(0), matrix.size(1)});
  }

  bool is_worth_it(const at::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0 || !gradient.is_contiguous()) {
      return false;
    }
    const at::Tensor matrix = gradient.view({gradient.size(0), -1});
    const int64_t factors = (matrix.size(0) + matrix.size(1)) * rank_of(matrix);
    return static_cast<double>(factors) * options_.min_compression_rate <
           static_cast<double>(matrix.numel());
  }

  std::shared_ptr<LowRank> make_state(GradBucket& bucket) const {
    const at::NoGradGuard no_grad;
    auto state = std::make_shared<LowRank>();
    state->flat = bucket.buffer();
    state->input = at::zeros_like(state->flat);
    state->error = at::zeros_like(state->flat);
    int64_t p_numel = 0;
    int64_t q_numel = 0;
    for (const at::Tensor& gradient : bucket.gradients()) {
      const int64_t offset = gradient.storage_offset() - state->flat.storage_offset();
      const at::Tensor part = state->flat.narrow(0, offset, gradient.numel());
      if (is_worth_it(gradient)) {
        state->matrices.push_back(part.view({gradient.size(0), -1}));
        p_numel += state->matrices.back().size(0) * rank_of(state->matrices.back());
        q_numel += state->matrices.back().size(1) * rank_of(state->matrices.back());
      } else {
        state->whole.push_back(part);
        state->no_error.push_back(state->error.narrow(0, offset, gradient.numel()));
        p_numel += part.numel();
      }
    }
    state->p_flat = bucket.group().empty_for_comm(p_numel, state->flat.scalar_type());
    state->q_flat = bucket.group().empty_for_comm(q_numel, state->flat.scalar_type());
    divide_factors(*state, bucket.index());
    return state;
  }

  void divide_factors(LowRank& state, size_t bucket) const {
    // The same on all ranks: the sum of their P is one of the same Q.
    const at::Generator generator =
        at::make_generator<at::CPUGeneratorImpl>(options_.random_seed + bucket);
    state.q_flat.copy_(at::randn({state.q_flat.numel()}, generator, state.q_flat.scalar_type()));
    int64_t p_begin = 0;
    int64_t q_begin = 0;
    const auto take = [](const at::Tensor& flat, int64_t& begin, int64_t numel) {
      begin += numel;
      return flat.narrow(0, begin - numel, numel);
    };
    for (const at::Tensor& matrix : state.matrices) {
      const int64_t rank = rank_of(matrix);
      state.p.push_back(take(state.p_flat, p_begin, matrix.size(0) * rank).view({-1, rank}));
      state.q.push_back(take(state.q_flat, q_begin, matrix.size(1) * rank).view({-1, rank}));
    }
    for (const at::Tensor& part : state.whole) {
      state.sent.push_back(take(state.p_flat, p_begin, part.numel()));
    }
  }

  const PowerSGDOptions options_;
  int64_t backwards_ = 0;
  std::vector<std::shared_ptr<LowRank>> states_;  // by bucket
};

}  // namespace

CommHook powerSGD_hook(const PowerSGDOptions& options) {
  const auto state = std::make_shared<PowerSgd>(options);  // shared by copies of the hook
  return [state](GradBucket& bucket) { return (*state)(bucket); };
}

}  // namespace fsdp
