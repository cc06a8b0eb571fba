#include "worker/run/sample_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/tokenizers/small_tokenizer.h"
#include "worker/run/data_record.h"
#include "worker/run/run_description.h"

namespace fsdprun::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kSampleVocabulary = 300;

class SampleTokenizerTest : public testing::Test {
 protected:
  SampleTokenizerTest() { std::ofstream(file_) << SmallTokenizer().dump(); }

  /// The state of a training on ids of a tokenizer with this digest.
  Json TrainedOn(const std::string& digest) const {
    Json saved = Json::object();
    DataRecord record;
    record.digest = "0123";
    record.seq_len = 1;
    record.tokenizer = digest;
    FormatDataRecord(record, saved["data"]);
    RunDescription description;
    description.model_folder = folder_ / "";
    FormatRunDescription(description, saved);
    return saved;
  }
  std::string SampleRefusal(const std::string& given, const Json& saved,
                            int64_t vocab_size = kSampleVocabulary) const {
    return checkpoint::MessageOf<ConfigError>([&] { SampleTokenizer(given, saved, vocab_size); });
  }

  const checkpoint::TemporaryDirectory folder_;
  const std::string file_ = folder_ / "tokenizer.json";
};

TEST_F(SampleTokenizerTest, AnotherTokenizerThanTheModelsIsRefused) {
  EXPECT_THAT(SampleRefusal(file_, TrainedOn("0123456789abcdef")),
              AllOf(HasSubstr("--tokenizer " + file_), HasSubstr("with 0123456789abcdef")));
  EXPECT_THAT(SampleRefusal("bytes", TrainedOn(OpenTokenizer(file_)->identity().digest)),
              HasSubstr("--tokenizer bytes"));
}

TEST_F(SampleTokenizerTest, OneThatIsNotFoundIsAskedFor) {
  EXPECT_THAT(SampleRefusal("", TrainedOn("0123456789abcdef")),
              AllOf(HasSubstr("digest 0123456789abcdef"), HasSubstr(folder_.path()),
                    HasSubstr("--tokenizer FILE")));
}

TEST_F(SampleTokenizerTest, OneWithMoreIdsThanTheModelIsRefused) {
  EXPECT_THAT(SampleRefusal(file_, Json::object(), 261),
              HasSubstr("the tokenizer has 262 ids, and the model only 261"));
}

TEST_F(SampleTokenizerTest, TheOneThatTheModelWasTrainedWithIsFound) {
  const std::string digest = OpenTokenizer(file_)->identity().digest;
  EXPECT_EQ(SampleTokenizer("", TrainedOn(digest), kSampleVocabulary)->identity().digest, digest);
  EXPECT_EQ(SampleTokenizer(file_, TrainedOn(digest), kSampleVocabulary)->vocab_size(), 262);
}

TEST_F(SampleTokenizerTest, WhatWasTrainedOnTextHasBytes) {
  const std::string bytes = MakeByteTokenizer()->identity().digest;
  for (const Json& saved : {Json::object(), TrainedOn(""), TrainedOn(bytes)}) {
    EXPECT_EQ(SampleTokenizer("", saved, kSampleVocabulary)->identity().kind, "bytes");
  }
}

}  // namespace
}  // namespace fsdprun::worker
