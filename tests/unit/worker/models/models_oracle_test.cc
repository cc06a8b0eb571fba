// Our models against Hugging Face's: the same config.json, weights and tokens through transformers
// (models_oracle.py) and through ours.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/unit/base/remove_folder.h"
#include "worker/models/causal_lm.h"
#include "worker/weights/load_weights.h"

namespace fsdprun::worker {
namespace {

at::Tensor ReadTensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.header().tensors.at(name);
  at::Tensor tensor = at::empty(entry.shape, entry.dtype == "I64" ? at::kLong : at::kFloat);
  file.Read(entry.begin, entry.end - entry.begin, tensor.data_ptr());
  return tensor;
}

std::vector<fsdp::LocalShard> WholeSlices(const CausalLm& model) {
  std::vector<fsdp::LocalShard> slices;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& value = parameter.value();
    const std::vector<int64_t> shape = value.sizes().vec();
    slices.push_back(
        {{parameter.key(), shape, {fsdp::plan::whole_box(shape)}, {}}, value.detach().view({-1})});
  }
  return slices;
}

/// How far a tensor may be away, as a part of its largest number, where kernels differ: GPT-2's
/// GELU is one kernel here and seven in transformers, each of which rounds to float32, and the
/// norms of Qwen3's heads are summed in another order.
constexpr double kTolerance = 2e-5;

/// Other decoders run the same kernels in the same order on one thread: bits are compared.
void ExpectSame(const at::Tensor& ours, const at::Tensor& expected, bool has_same_kernels,
                const std::string& what) {
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  const double away = (ours - expected).abs().max().item<double>();
  if (has_same_kernels) {
    EXPECT_TRUE(ours.equal(expected)) << what << ": away by " << away;
  } else {
    EXPECT_LE(away, kTolerance * std::min(1.0, expected.abs().max().item<double>())) << what;
  }
}

void ExpectSameResults(const std::filesystem::path& folder) {
  const ModelConfig config = ReadModelConfig(folder.string());
  const auto model = MakeCausalLm(config, LayerFactory{});
  LoadWeights(folder.string(), WholeSlices(*model), config.names);
  const bool has_same_kernels = config.model_type != "gpt2" && config.model_type != "qwen3";

  const SafetensorsFile expected(folder / "expected.safetensors");
  const at::Tensor logits = model->forward(ReadTensor(expected, "tokens"));
  const at::Tensor loss = CausalLoss(logits, ReadTensor(expected, "targets"));
  loss.backward();

  ExpectSame(logits, ReadTensor(expected, "logits"), has_same_kernels, "logits");
  ExpectSame(loss, ReadTensor(expected, "loss"), has_same_kernels, "loss");
  size_t compared = 0;
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor gradient = ReadTensor(expected, "grad." + parameter.key());
    ExpectSame(parameter.value().grad(), gradient, has_same_kernels, parameter.key());
    ++compared;
  }
  EXPECT_EQ(compared + 4, expected.header().tensors.size()) << "besides tokens, targets, ...";
}

/// Empty if the configuration is accepted.
std::string Refusal(const std::filesystem::path& folder) {
  try {
    ReadModelConfig(folder.string());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Runs the oracle once for both tests.
class ModelsOracleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    const char* python = std::getenv("FSDPRUN_PYTHON");
    if (python == nullptr) {
      return;
    }
    folder_ = std::filesystem::path(testing::TempDir()) / ("models_" + std::to_string(getpid()));
    const char* script = std::getenv("FSDPRUN_MODELS_ORACLE");
    ASSERT_NE(script, nullptr) << "run through ctest";
    const std::string command = std::string(python) + " " + script + " " + folder_->string();
    ASSERT_EQ(std::system(command.c_str()), 0)
        << command << "\nIt needs the packages of scripts/test-requirements.txt.";
  }
  static void TearDownTestSuite() {
    if (folder_) {
      RemoveFolder(*folder_);
    }
  }
  void SetUp() override {
    if (!folder_) {
      GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
    }
  }
  static std::vector<std::filesystem::path> Cases(const char* kind) {
    std::vector<std::filesystem::path> cases;
    for (const auto& entry : std::filesystem::directory_iterator(*folder_ / kind)) {
      cases.push_back(entry.path());
    }
    std::sort(cases.begin(), cases.end());
    EXPECT_FALSE(cases.empty());
    return cases;
  }

 private:
  static std::optional<std::filesystem::path> folder_;
};
std::optional<std::filesystem::path> ModelsOracleTest::folder_;

TEST_F(ModelsOracleTest, SavedModelsGiveTheSameLogitsLossAndGradients) {
  for (const std::filesystem::path& folder : Cases("models")) {
    SCOPED_TRACE(folder.filename().string());
    ExpectSameResults(folder);
  }
}

TEST_F(ModelsOracleTest, EveryKeyThatChangesResultsIsHonouredOrRefused) {
  for (const std::filesystem::path& folder : Cases("fields")) {
    SCOPED_TRACE(folder.filename().string());
    const std::string expectation = ReadStrictJsonFile(folder / "expectation.json");
    const std::string refusal = Refusal(folder);
    if (expectation == "refuse") {
      EXPECT_NE(refusal, "");
    } else if (refusal.empty()) {
      ExpectSameResults(folder);
    } else {
      ADD_FAILURE() << "refused: " << refusal;
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
