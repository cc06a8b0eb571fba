#include <fsdp/activation_checkpoint.h>
#include <fsdp/ddp_comm_hooks.h>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

at::Tensor branch_input(int64_t rank) { return at::ones({2, 4}) * static_cast<double>(rank + 1); }

template <class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

DistributedDataParallelOptions without_never(const Replica& replica) {
  DistributedDataParallelOptions options = replica.options();
  options.params_and_buffers_to_ignore = {"never"};
  return options;
}

class UnusedTest : public ::testing::TestWithParam<std::string> {};

TEST_P(UnusedTest, AnUnusedParameterIsAnErrorOnAllRanksThatNamesItAndTheRank) {
  run_replicas(GetParam(), 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Branches>(), without_never(replica));
    ddp->uses_spare = replica.rank == 0;
    const std::string text = error_of([&] { ddp(branch_input(replica.rank)).sum().backward(); });
    EXPECT_NE(text.find("got no gradient"), std::string::npos) << text;
    EXPECT_NE(text.find("on rank 1: spare;"), std::string::npos) << text;
    EXPECT_EQ(text.find("on rank 0"), std::string::npos) << text;
    EXPECT_FALSE(ddp->first.grad().defined());
    ddp->uses_spare = true;  // the group is fine, and so is the next backward
    for (int step = 0; step < 2; ++step) {
      ddp->zero_grad();
      ddp(branch_input(replica.rank)).sum().backward();
      expect_gradients(*ddp.module(), mean_gradients<Branches>(
                                          2, [] { return std::make_shared<Branches>(); },
                                          [](Branches& model, int64_t rank) {
                                            model.uses_spare = true;
                                            model.forward(branch_input(rank)).sum().backward();
                                          }));
    }
  });
}

TEST_P(UnusedTest, IsFoundWhereRanksDiffer) {
  run_replicas(GetParam(), 3, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(std::make_shared<Branches>(), options);
    for (int64_t step = 0; step < 4; ++step) {
      const auto uses = [step](int64_t rank) { return step != 3 && (step + rank) % 2 == 0; };
      ddp->zero_grad();
      ddp->uses_spare = uses(replica.rank);
      const at::Tensor x = branch_input(replica.rank);
      // Called directly, it is found out at the end of backward.
      (step % 2 == 0 ? ddp(x) : ddp->forward(x)).sum().backward();
      expect_gradients(*ddp.module(), mean_gradients<Branches>(
                                          3, [] { return std::make_shared<Branches>(); },
                                          [&](Branches& model, int64_t rank) {
                                            model.uses_spare = uses(rank);
                                            model.forward(branch_input(rank)).sum().backward();
                                          }));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, UnusedTest, ::testing::Values("local", "gloo"),
                         [](const auto& info) { return info.param; });

TEST(UnusedParameterTest, ThatOutputsShowDoesNotHoldUpTheBuckets) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.find_unused_parameters = true;
    options.bucket_cap_mb = 1e-6;  // a bucket each
    DistributedDataParallel ddp(std::make_shared<Branches>(), options);
    size_t issued = 0;
    ddp->first.register_hook([&](const at::Tensor&) { issued = replica.comm->records().size(); });
    replica.comm->clear();
    ddp(branch_input(0)).sum().backward();
    EXPECT_EQ(issued, 3u) << "never, spare and second";
    replica.comm->clear();
    ddp->forward(branch_input(0)).sum().backward();
    EXPECT_EQ(issued, 0u) << "they wait for the end";
  });
}

TEST(UnusedParameterTest, KeepsWhatIsAddedUpInNoSync) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(std::make_shared<Branches>(), options);
    {
      const NoSync no_sync = ddp.no_sync();
      ddp->uses_spare = replica.rank == 1;
      ddp(branch_input(replica.rank)).sum().backward();
    }
    ddp->uses_spare = false;
    ddp(branch_input(replica.rank)).sum().backward();
    expect_gradients(*ddp.module(), mean_gradients<Branches>(
                                        2, [] { return std::make_shared<Branches>(); },
                                        [](Branches& model, int64_t rank) {
                                          model.uses_spare = rank == 1;
                                          model.forward(branch_input(rank)).sum().backward();
                                          model.uses_spare = false;
                                          model.forward(branch_input(rank)).sum().backward();
                                        }));
  });
}

// Three times a third of it is another number, and half precision has fewer digits.
TEST(UnusedParameterTest, ThatNoRankUsesKeepsItsGradientToTheBit) {
  for (const bool compresses : {false, true}) {
    run_replicas("local", 3, [compresses](Replica& replica) {
      DistributedDataParallelOptions options = replica.options();
      options.find_unused_parameters = true;
      DistributedDataParallel ddp(std::make_shared<Branches>(), options);
      ddp->uses_spare = true;
      const at::Tensor x = branch_input(replica.rank) * 0.37;
      ddp(x).sum().backward();
      const at::Tensor kept = at::arange(16, at::kFloat).add(0.1).view({4, 4});
      ddp->spare.mutable_grad().copy_(kept);
      if (compresses) {
        ddp.register_comm_hook(fp16_compress_hook());
      }
      ddp->uses_spare = false;
      for (int step = 0; step < 3; ++step) {
        ddp(x).sum().backward();
        EXPECT_TRUE(at::equal(ddp->spare.grad(), kept)) << ddp->spare.grad() - kept;
      }
      ddp->uses_spare = replica.rank == 0;  // it counts again where one has used it
      ddp(x).sum().backward();
      EXPECT_FALSE(at::equal(ddp->spare.grad(), kept));
    });
  }
}

/// One weight in two checkpointed segments, which give it two gradients in one backward.
struct SharedSegments : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto segment = [this](const at::Tensor& t) { return at::linear(t, shared).tanh(); };
    at::Tensor y = at::linear(x, first);
    y = activation_checkpoint(segment, y);
    return activation_checkpoint(segment, y);
  }
  at::Tensor first = register_parameter("first", Branches::values(1));
  at::Tensor shared = register_parameter("shared", Branches::values(2));
  at::Tensor never = register_parameter("never", Branches::values(3));
};

TEST(StaticGraphTest, AllowsSeveralUsesInSegmentsAndUnusedParameters) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.static_graph = true;
    DistributedDataParallel ddp(std::make_shared<SharedSegments>(), options);
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp(branch_input(replica.rank)).sum().backward();
      const auto expected = mean_gradients<SharedSegments>(
          2, [] { return std::make_shared<SharedSegments>(); },
          [](SharedSegments& model, int64_t rank) {
            model.forward(branch_input(rank)).sum().backward();
          });
      expect_gradients(*ddp.module(), expected);
    }
    EXPECT_EQ(ddp.buckets().back().back(), "never");
  });
}

TEST(StaticGraphTest, AnotherGraphIsAnErrorOnAllRanks) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.static_graph = true;
    DistributedDataParallel ddp(std::make_shared<Branches>(), options);
    ddp->uses_spare = true;
    ddp(branch_input(0)).sum().backward();
    ddp->uses_spare = replica.rank == 0;
    const std::string text = error_of([&] { ddp(branch_input(0)).sum().backward(); });
    EXPECT_NE(text.find("on rank 1: spare;"), std::string::npos) << text;
    EXPECT_NE(text.find("static_graph"), std::string::npos) << text;
  });
}

TEST(StaticGraphTest, WithoutItAGradientThatComesTwiceIsAnError) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    options.params_and_buffers_to_ignore = {"never"};
    DistributedDataParallel ddp(std::make_shared<SharedSegments>(), options);
    const std::string text = error_of([&] { ddp(branch_input(0)).sum().backward(); });
    EXPECT_NE(text.find("parameter shared got a gradient"), std::string::npos) << text;
    EXPECT_NE(text.find("static_graph"), std::string::npos) << text;
  });
}

TEST(CheckpointTest, ADirectCallWhoseBackwardsAreAllInsideOneIsReducedWhenComplete) {
  struct Segment : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      return activation_checkpoint(
          [this](const at::Tensor& t) { return at::linear(at::linear(t, first), second); }, x);
    }
    at::Tensor first = register_parameter("first", Branches::values(1));
    at::Tensor second = register_parameter("second", Branches::values(2));
  };
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Segment>(), replica.options());
    for (int step = 0; step < 2; ++step) {
      ddp->zero_grad();
      const at::Tensor x = branch_input(replica.rank).requires_grad_();
      (step == 0 ? ddp->forward(x) : ddp(x)).sum().backward();
      expect_gradients(*ddp.module(),
                       mean_gradients<Segment>(
                           2, [] { return std::make_shared<Segment>(); },
                           [](Segment& model, int64_t rank) {
                             model.forward(branch_input(rank).requires_grad_()).sum().backward();
                           }));
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
