#include <fsdp/ddp_comm_hooks.h>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

std::map<std::string, at::Tensor> toy_means(int64_t ranks) {
  return mean_gradients<ToyModel>(
      ranks, [] { return whole_toy(); },
      [](ToyModel& model, int64_t rank) { toy_loss_of(model, 0, rank).backward(); });
}

TEST(CommHookTest, SeesTheBucketsInOrderAndItsResultIsTheGradient) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    std::vector<size_t> indices;
    std::vector<bool> lasts;
    std::vector<std::string> names;
    ddp.register_comm_hook([&](GradBucket& bucket) -> CommHookResult {
      indices.push_back(bucket.index());
      lasts.push_back(bucket.is_last());
      names.insert(names.end(), bucket.names().begin(), bucket.names().end());
      const at::Tensor other = bucket.buffer().to(at::kDouble) * 0 + 7;
      EXPECT_EQ(bucket.gradients().size(), bucket.names().size());
      return {nullptr, other};
    });
    const size_t count = ddp.buckets().size();
    toy_loss(ddp, 0, replica.rank).backward();
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(indices.at(i), i);
      EXPECT_EQ(lasts.at(i), i + 1 == count);
    }
    EXPECT_EQ(indices.size(), count);
    EXPECT_EQ(names.size(), 14u);
    EXPECT_TRUE(at::equal(ddp->gain.grad(), at::full_like(ddp->gain, 7)));
  });
}

TEST(CommHookTest, OfTheMeanDoesWhatNoHookDoes) {
  run_replicas("gloo", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    ddp.register_comm_hook(allreduce_hook());
    toy_loss(ddp, 0, replica.rank).backward();
    expect_gradients(*ddp.module(), toy_means(2));
  });
}

TEST(CommHookTest, CompressesToHalfTheBytes) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_replicas("local", 2, [dtype](Replica& replica) {
      DistributedDataParallel ddp(whole_toy(), replica.options());
      ddp.register_comm_hook(dtype == at::kHalf ? fp16_compress_hook() : bf16_compress_hook());
      for (int step = 0; step < 2; ++step) {
        ddp->zero_grad();
        replica.comm->clear();
        toy_loss(ddp, 0, replica.rank).backward();
      }
      for (const CollectiveRecord& record : replica.comm->records()) {
        EXPECT_TRUE(record.operation != "all_reduce" || record.dtype == c10::toString(dtype));
      }
      std::vector<std::shared_ptr<ToyModel>> models = {whole_toy(), whole_toy()};
      for (int64_t rank = 0; rank < 2; ++rank) {
        toy_loss_of(*models[static_cast<size_t>(rank)], 0, rank).backward();
      }
      const auto part = [&](size_t rank, const std::string& name) {
        return models[rank]->named_parameters()[name].grad().to(dtype).div_(2.0);
      };
      for (const auto& param : ddp->named_parameters()) {
        const at::Tensor expected = (part(0, param.key()) + part(1, param.key())).to(at::kFloat);
        EXPECT_TRUE(at::equal(param.value().grad(), expected)) << param.key();
      }
    });
  }
}

TEST(CommHookTest, IsOneAndComesBeforeBackward) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Branches>(), [&] {
      auto options = replica.options();
      options.params_and_buffers_to_ignore = {"spare", "never"};
      return options;
    }());
    EXPECT_THROW(ddp.register_comm_hook({}), c10::Error);
    ddp.register_comm_hook([](GradBucket&) -> CommHookResult { return {nullptr, at::ones({1})}; });
    EXPECT_THROW(ddp.register_comm_hook(allreduce_hook()), c10::Error);
    EXPECT_THROW(ddp(at::ones({1, 4})).sum().backward(), c10::Error) << "1 element is not 16";
  });
}

}  // namespace
}  // namespace fsdp::testing
