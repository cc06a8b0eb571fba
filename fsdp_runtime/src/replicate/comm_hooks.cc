#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fsdp/ddp_comm_hooks.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace fsdp {
namespace {

/// Calls `use(begin, numel)` for the elements of a bucket: on the CPU in pieces that ATen does not
/// spread over threads, because a lane runs beside compute.
template <class Use>
void in_bucket_pieces(const at::Tensor& flat, Use use) {
  const int64_t step = flat.is_cpu() ? at::internal::GRAIN_SIZE : flat.numel();
  for (int64_t begin = 0; begin < flat.numel(); begin += step) {
    use(begin, std::min(step, flat.numel() - begin));
  }
}

/// Casts, and keeps the memory for that, by bucket.
class Compression {
 public:
  explicit Compression(at::ScalarType dtype) : dtype_(dtype) {}

  CommHookResult operator()(GradBucket& bucket) {
    const at::Tensor& whole = bucket.buffer();
    const at::Tensor& small = memory(bucket);
    Collectives& group = bucket.group();
    const auto issue = [&](WorkPtr behind) {
      return Issue(Lane::kReduce, "a compressed bucket", std::move(behind));
    };
    const auto ranks = static_cast<double>(group.size());
    WorkPtr work = group.run_on_lane(issue(nullptr), [whole, small, ranks] {
      const c10::InferenceMode no_autograd;
      in_bucket_pieces(whole, [&](int64_t begin, int64_t numel) {
        small.narrow(0, begin, numel).copy_(whole.narrow(0, begin, numel)).div_(ranks);
      });
    });
    work = group.all_reduce(small, ReduceOp::kSum, issue(std::move(work)));
    return {group.run_on_lane(issue(std::move(work)), [whole, small] {
      const c10::InferenceMode no_autograd;
      in_bucket_pieces(whole, [&](int64_t begin, int64_t numel) {
        whole.narrow(0, begin, numel).copy_(small.narrow(0, begin, numel));
      });
    })};
  }

 private:
  const at::Tensor& memory(GradBucket& bucket) {
    if (kept_.size() <= bucket.index()) {
      kept_.resize(bucket.index() + 1);
    }
    at::Tensor& memory = kept_[bucket.index()];
    if (!memory.defined() || memory.numel() != bucket.buffer().numel()) {
      memory = bucket.group().empty_for_comm(bucket.buffer().numel(), dtype_);
    }
    return memory;
  }

  const at::ScalarType dtype_;
  std::vector<at::Tensor> kept_;
};

CommHook compression(at::ScalarType dtype) {
  const auto state = std::make_shared<Compression>(dtype);  // shared by copies of the hook
  return [state](GradBucket& bucket) { return (*state)(bucket); };
}

}  // namespace

CommHook allreduce_hook() {
  return [](GradBucket& bucket) -> CommHookResult {
    at::Tensor buffer = bucket.buffer();
    buffer.div_(static_cast<double>(bucket.group().size()));
    return {
        bucket.group().all_reduce(std::move(buffer), ReduceOp::kSum, {Lane::kReduce, "a bucket"})};
  };
}

CommHook fp16_compress_hook() { return compression(at::kHalf); }

CommHook bf16_compress_hook() { return compression(at::kBFloat16); }

}  // namespace fsdp
