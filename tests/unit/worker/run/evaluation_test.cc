#include "worker/run/evaluation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/worker/data/data_folder.h"
#include "tests/unit/worker/run/small_run.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kLength = 6;
constexpr int64_t kWindows = 7;

class EvaluationTest : public DataFolderTest {
 protected:
  EvaluationTest() {
    std::vector<uint16_t> tokens;
    for (int i = 0; i <= kWindows * kLength; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * i + i / 3) % 16));
    }
    TokenFacts facts;
    facts.document_ends = {kLength + 2, 3 * kLength, kWindows * kLength + 1};
    stream_ = StreamOf(Path("tokens"), tokens, facts);
  }
  /// Of the first `windows`; 0: all.
  double Loss(SmallRun& run, int64_t batch_size, int64_t windows,
              Documents documents = Documents::kJoin) const {
    const Windows from(stream_, kLength, documents);
    return Evaluate(run.world, run.state.model, from,
                    {.batch_size = batch_size,
                     .windows = windows,
                     .is_stop_requested = [] { return false; }})
        .value();
  }

  std::shared_ptr<const TokenStream> stream_;
};

/// A new model says almost the same of all text.
void MakeLosses(SmallRun& run) {
  for (const fsdp::LocalShard& slice : run.state.model.root.sharded_parameters()) {
    slice.local.mul_(20);
  }
}

TEST_F(EvaluationTest, WindowsAreTheSameInForwardsOfAnySize) {
  SmallRun run;
  MakeLosses(run);
  const double first = Loss(run, /*batch_size=*/4, /*windows=*/4);
  EXPECT_NEAR(Loss(run, 3, 4), first, 1e-5);  // the last forward has one
  EXPECT_NEAR(Loss(run, 1, 4), first, 1e-5);
  EXPECT_NEAR(Loss(run, 8, 4), first, 1e-5);
  const double all = Loss(run, 4, 0);
  EXPECT_GT(std::abs(all - first), 1e-3);
  EXPECT_NEAR(Loss(run, 2, 0), all, 1e-5);
  EXPECT_NEAR(Loss(run, 2, 100), all, 1e-5);  // there are no more
}

TEST_F(EvaluationTest, FusedKernelsHaveTheSameLoss) {
  SmallRun reference, fused(SmallLlama(), {{"model", {{"kernels", "fused"}}}});
  MakeLosses(reference);
  MakeLosses(fused);
  for (const Documents documents : {Documents::kJoin, Documents::kMask, Documents::kSeparate}) {
    const double expected = Loss(reference, 3, 0, documents);
    EXPECT_NEAR(Loss(fused, 3, 0, documents), expected, 1e-5 * expected);
  }
}

}  // namespace
}  // namespace fsdprun::worker
