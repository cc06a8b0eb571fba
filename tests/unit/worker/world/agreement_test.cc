#include "worker/world/agreement.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "formats/models/decoder/parse_decoder.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

constexpr char kAdvice[] = "; start all nodes with the same program, configuration, model and data";

std::string Complaint(const std::vector<RankInput>& inputs) {
  return DescribeDisagreement(inputs).value_or("agreed");
}

TEST(DisagreementTest, FirstRankAndKeyThatDifferAreNamedWithBothValues) {
  const RankInput first{"a", {{"x", 1}, {"data.seq_len", 128}, {"z", "w"}}};
  RankInput other = first;
  other.host = "b";
  other.facts["data.seq_len"] = 256;
  EXPECT_EQ(Complaint({first, first, other, other}),
            std::string("rank 2 (b): data.seq_len is 256, rank 0 has 128") + kAdvice);
  other.facts["z"] = "v";
  EXPECT_EQ(
      Complaint({first, other}),
      std::string("rank 1 (b): data.seq_len is 256, rank 0 has 128; also different: z") + kAdvice);
}

TEST(DisagreementTest, EqualInputsAgree) {
  const RankInput one{"a", {{"x", 1}}};
  EXPECT_EQ(Complaint({one}), "agreed");
  // Neither the name of the host nor how a number is written makes a difference.
  EXPECT_EQ(Complaint({one, {"b", {{"x", 1.0}}}}), "agreed");
}

TEST(DisagreementTest, KeyThatOnlyOneRankHasIsADifference) {
  const RankInput one{"a", {{"x", 1}}};
  const RankInput two{"b", {{"x", 1}, {"y", 2}}};
  EXPECT_EQ(Complaint({one, two}), std::string("rank 1 (b): y is 2, rank 0 has null") + kAdvice);
  EXPECT_EQ(Complaint({two, one}), std::string("rank 1 (a): y is null, rank 0 has 2") + kAdvice);
}

class InputTest : public testing::Test {
 protected:
  InputTest() {
    std::filesystem::create_directories(folder_);
    resolved_["model"]["config"] = "/model";
    resolved_["data"]["train"] = {"/data"};
  }
  ~InputTest() override { RemoveFolder(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static TrainData Data(const std::string& path) {
    return TrainData(
        Windows(std::make_shared<const TokenStream>(std::vector<std::string>{path}), 1));
  }
  /// The first key in which an input with this change differs from the plain one; "" if in none.
  std::string DifferenceOf(const Json& resolved, const ModelConfig& model, const std::string& train,
                           const std::string* valid = nullptr) const {
    const std::string plain_text = Write("plain", "abc");
    const TrainData plain = Data(plain_text);
    const TrainData changed = Data(Write("changed", train));
    std::optional<Windows> valid_windows;
    if (valid != nullptr) {
      valid_windows = Data(Write("valid", *valid)).sources().front();
    }
    const auto complaint = DescribeDisagreement(
        {DescribeInput(resolved_, model_, plain, nullptr),
         DescribeInput(resolved, model, changed, valid_windows ? &*valid_windows : nullptr)});
    if (!complaint) {
      return "";
    }
    const size_t begin = complaint->find(": ") + 2;
    return complaint->substr(begin, complaint->find(" is ") - begin);
  }
  std::string WithKey(const std::string& section, const std::string& name,
                      const Json& value) const {
    Json resolved = resolved_;
    resolved[section][name] = value;
    return DifferenceOf(resolved, model_, "abc");
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("agreement_" + std::to_string(getpid()));
  Json resolved_ = DefaultConfig();
  const ModelConfig model_ = DescribeDecoder("llama", {});
};

TEST_F(InputTest, EveryKeyOfTheConfigurationButPathsIsCompared) {
  for (const ConfigKey& key : ConfigSchema()) {
    const std::string path(key.path);
    const size_t dot = path.find('.');
    const bool may_differ = path == "model.config" || path == "data.train" ||
                            path == "data.valid" || path == "metrics.jsonl" ||
                            path == "metrics.tensorboard";
    const Json other = key.kind == ValueKind::kString ? Json("other") : Json(12345.5);
    EXPECT_EQ(WithKey(path.substr(0, dot), path.substr(dot + 1), other), may_differ ? "" : path);
  }
}

TEST_F(InputTest, FilesOfAMixtureMayBeElsewhereButNotItsWeights) {
  const auto mixture = [](const char* file, double weight) {
    return Json::array({Json{{"files", {file}}, {"weight", weight}}});
  };
  resolved_["data"]["mixture"] = mixture("/a/text", 1);
  EXPECT_EQ(WithKey("data", "mixture", mixture("/b/text", 1)), "");
  EXPECT_EQ(WithKey("data", "mixture", mixture("/a/text", 2)), "data.mixture");
}

TEST_F(InputTest, PathsMayDifferWhereThereIsOne) {
  resolved_["checkpoint"]["dir"] = "/a/run";
  resolved_["checkpoint"]["resume"] = "/a/step-4";
  EXPECT_EQ(WithKey("checkpoint", "dir", "/b/run"), "");
  EXPECT_EQ(WithKey("checkpoint", "dir", ""), "checkpoint.dir");
  EXPECT_EQ(WithKey("checkpoint", "resume", "/b/step-4"), "");
  EXPECT_EQ(WithKey("checkpoint", "resume", "none"), "checkpoint.resume");
  EXPECT_EQ(WithKey("checkpoint", "resume", "auto"), "checkpoint.resume");
}

TEST_F(InputTest, ModelIsCompared) {
  DecoderConfig decoder;
  decoder.num_hidden_layers = 7;
  EXPECT_EQ(DifferenceOf(resolved_, DescribeDecoder("llama", decoder), "abc"),
            "the model's num_hidden_layers");
  decoder = {};
  decoder.rope_scaling.emplace();
  EXPECT_EQ(DifferenceOf(resolved_, DescribeDecoder("llama", decoder), "abc"),
            "the model's rope_scaling");
  EXPECT_EQ(DifferenceOf(resolved_, DescribeDecoder("mistral", {}), "abc"),
            "the model's model_type");
}

TEST_F(InputTest, ContentsOfTheFilesAreCompared) {
  EXPECT_EQ(DifferenceOf(resolved_, model_, "abcd"), "the size of data.train");
  EXPECT_EQ(DifferenceOf(resolved_, model_, "abd"), "the digest of data.train");
  const std::string valid = "v";
  EXPECT_EQ(DifferenceOf(resolved_, model_, "abc", &valid), "the size of data.valid");
}

TEST_F(InputTest, EndsOfDocumentsAreComparedWhereTheyMatter) {
  const auto cut = [&](const std::vector<std::string>& files, Documents documents) {
    return TrainData(Windows(std::make_shared<const TokenStream>(files), 1, documents));
  };
  const std::string whole = Write("whole", "abcd");
  const std::vector<std::string> parts = {Write("one", "a"), Write("two", "bcd")};
  const auto complaint = [&](Documents documents) {
    return Complaint({DescribeInput(resolved_, model_, cut({whole}, documents), nullptr),
                      DescribeInput(resolved_, model_, cut(parts, documents), nullptr)});
  };
  EXPECT_EQ(complaint(Documents::kJoin), "agreed");
  EXPECT_NE(complaint(Documents::kMask).find(": the document ends of data.train is \""),
            std::string::npos)
      << complaint(Documents::kMask);
  EXPECT_NE(complaint(Documents::kSeparate)
                .find(": the number of windows of data.train is 2, rank 0 has 3"),
            std::string::npos)
      << complaint(Documents::kSeparate);
}

TEST_F(InputTest, WeightsAreCompared) {
  for (const char* name : {"one", "two", "three"}) {
    std::filesystem::create_directories(folder_ / name);
    Write(std::string(name) + "/model.safetensors", std::string(name) == "three" ? "x1" : "x0");
  }
  resolved_["model"]["weights"] = (folder_ / "one").string();
  EXPECT_EQ(WithKey("model", "weights", (folder_ / "two").string()), "");
  EXPECT_EQ(WithKey("model", "weights", (folder_ / "three").string()),
            "the digest of model.weights");
}

TEST(SharedDirectoryTest, DirectoryOfItsOwnIsRefusedAndALookThatFailsForNowIsNot) {
  const checkpoint::TemporaryDirectory shared;
  const checkpoint::TemporaryDirectory other;
  const auto complaint = [&](const std::string& of_rank1) {
    std::vector<std::string> said(2);
    checkpoint::ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
      checkpoint::Group group;
      group.collectives = ranks;
      try {
        RequireSharedDirectory(ranks->rank() == 0 ? shared.path() : of_rank1, group);
      } catch (const DisagreementError& error) {
        said[static_cast<size_t>(ranks->rank())] = error.what();
      }
    });
    EXPECT_EQ(said[0], said[1]);
    return said[1];
  };
  EXPECT_EQ(complaint(shared.path()), "");
  EXPECT_EQ(complaint(other.path()).find("checkpoint.dir is not shared: rank 1 "), 0U);
  const checkpoint::PathFault fault(checkpoint::PathFault::kLook, ".probe-", ESTALE);
  EXPECT_EQ(complaint(shared.path()), "");
}

}  // namespace
}  // namespace fsdprun::worker
