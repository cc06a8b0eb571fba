#include "formats/safetensors/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/formats/checkpoint/path_fault.h"

namespace fsdprun {
namespace {

constexpr char kTwo[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

std::string Encode(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file.push_back(static_cast<char>(header.size() >> (8 * i) & 255));
  }
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) {
    file.push_back(static_cast<char>(i));
  }
  return file;
}

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() { std::filesystem::create_directories(folder_); }
  ~SafetensorsTest() override { RemoveFolder(folder_); }

  std::filesystem::path Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  std::string Refusal(const std::string& content) {
    try {
      SafetensorsFile file(Write("f", content));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string HeaderRefusal(const std::string& header, size_t data_bytes) {
    return Refusal(Encode(header, data_bytes));
  }
  std::string ModelRefusal() {
    try {
      SafetensorsModel model(folder_);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("safetensors_" + std::to_string(getpid()));
};

TEST_F(SafetensorsTest, ReadsEntriesAndBytes) {
  const SafetensorsFile file(Write("f", Encode(kTwo, 32)));
  ASSERT_EQ(file.header().tensors.size(), 2u);
  const SafetensorsEntry& b = file.header().tensors.at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, std::vector<int64_t>{4});
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  unsigned char bytes[8];
  file.Read(b.begin, 8, bytes);
  EXPECT_EQ(bytes[0], 24);
  EXPECT_EQ(bytes[7], 31);
}

TEST_F(SafetensorsTest, PaddedHeaderScalarsAndEmptyTensorsAreLegal) {
  EXPECT_EQ(HeaderRefusal(std::string(kTwo) + "     ", 32), "accepted");
  EXPECT_EQ(HeaderRefusal("{}", 0), "accepted");
  EXPECT_EQ(HeaderRefusal(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                          R"("e":{"dtype":"I8","shape":[0,5],"data_offsets":[8,8]}})",
                          8),
            "accepted");
}

TEST_F(SafetensorsTest, RefusesDamagedFiles) {
  const std::string good = Encode(kTwo, 32);
  EXPECT_NE(Refusal("").find("too few"), std::string::npos);
  EXPECT_NE(Refusal(good.substr(0, 30)).find("truncated"), std::string::npos);
  EXPECT_NE(Refusal(good.substr(0, good.size() - 1)).find("truncated"), std::string::npos);
  EXPECT_NE(Refusal(good + "x").find("trailing bytes"), std::string::npos);
  EXPECT_NE(Refusal(std::string(8, '\xff') + "{}").find("18446744073709551615"), std::string::npos);
  EXPECT_NE(HeaderRefusal(" {}", 0).find("does not begin with {"), std::string::npos);
  EXPECT_NE(HeaderRefusal("{\"a\":\"\xff\"}", 0).find("not valid JSON"), std::string::npos);
  EXPECT_NE(HeaderRefusal("{} {}", 0).find("not valid JSON"), std::string::npos);
  EXPECT_NE(HeaderRefusal(std::string("{}\0{", 4), 0).find("not valid JSON at its byte 3"),
            std::string::npos);
}

std::string OneTensor(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }

TEST_F(SafetensorsTest, EveryTruncationIsRefusedByName) {
  const std::string whole = Encode(kTwo, 32);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(Refusal(whole.substr(0, length)).find((folder_ / "f").string()), std::string::npos)
        << length;
  }
}

TEST_F(SafetensorsTest, RefusesHostileHeaders) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {OneTensor(R"("dtype":"F32","shape":[1])"), "without dtype, shape or data_offsets"},
      {OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "not two numbers"},
      {OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), "not two numbers"},
      {OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "do not fit"},
      {OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "do not fit"},
      {OneTensor(R"("dtype":"X32","shape":[1],"data_offsets":[0,4])"), "unknown dtype"},
      {OneTensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "negative"},
      {OneTensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "fraction"},
      {OneTensor(R"("dtype":"F32","shape":[1e9],"data_offsets":[0,4])"), "fraction"},
      {OneTensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])"),
       "out of range"},
      {OneTensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4])"),
       "do not fit"},
      {OneTensor(R"("dtype":"F4","shape":[1],"data_offsets":[0,0])"), "do not fit"},
      {OneTensor(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), "a number"},
      {OneTensor(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), "a list"},
      {OneTensor(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), "a list"},
      {OneTensor(R"("dtype":"F32","shape":{"a":1},"data_offsets":[0,4])"), "an object inside"},
      {OneTensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), "a text"},
      {OneTensor(R"("dtype":"F32","shape":null,"data_offsets":[0,4])"), "null"},
      {OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), "unknown field"},
      {OneTensor(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), "twice"},
      {R"({"t":5})", "a number"},
      {R"({"t":"x"})", "a text"},
      {R"({"__metadata__":{"a":1}})", "a number"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "twice"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "twice"},
  };
  for (const auto& [header, defect] : cases) {
    const std::string refusal = HeaderRefusal(header, 4);
    EXPECT_NE(refusal.find(defect), std::string::npos) << header << "\n" << refusal;
  }
}

TEST_F(SafetensorsTest, RefusesHolesAndOverlaps) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(HeaderRefusal(two("[4,8]", "[0,4]"), 8), "accepted");
  EXPECT_NE(HeaderRefusal(two("[0,4]", "[0,4]"), 8).find("overlap or leave a hole"),
            std::string::npos);
  EXPECT_NE(HeaderRefusal(two("[0,4]", "[5,9]"), 9).find("overlap or leave a hole"),
            std::string::npos);
  EXPECT_NE(HeaderRefusal(two("[1,5]", "[5,9]"), 9).find("overlap or leave a hole"),
            std::string::npos);
}

TEST_F(SafetensorsTest, DeepNestingAndManyDimensionsAreCheap) {
  EXPECT_NE(HeaderRefusal("{\"t\":" + std::string(100'000, '['), 0).find("a list"),
            std::string::npos);
  std::string shape = "1";
  for (int i = 0; i < 100'000; ++i) {
    shape += ",1";
  }
  EXPECT_NE(HeaderRefusal(
                OneTensor("\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,1]"), 1)
                .find("more than 64"),
            std::string::npos);
}

TEST_F(SafetensorsTest, SurvivesRandomDamage) {
  const std::string good = Encode(kTwo, 32);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string damaged = good;
    for (int change = 0; change < 1 + round % 3; ++change) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    damaged.resize(damaged.size() - random() % 2 * (random() % damaged.size()));
    try {
      const SafetensorsFile file(Write("f", damaged));
      for (const auto& [name, entry] : file.header().tensors) {
        EXPECT_LE(entry.end, static_cast<int64_t>(damaged.size()));
        EXPECT_LE(entry.begin, entry.end);
      }
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(SafetensorsTest, ModelReadsOneFileOrAnIndex) {
  EXPECT_NE(ModelRefusal().find("neither model.safetensors nor"), std::string::npos);
  const auto one = [](const std::string& name) {
    return Encode("{\"" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  };
  Write("s1", one("a"));
  Write("s2", one("b"));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1","b":"s2"}})");
  EXPECT_EQ(SafetensorsModel(folder_).tensors().size(), 2u);
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1","b":"s1"}})");
  EXPECT_NE(ModelRefusal().find("tensor b is not in s1"), std::string::npos);
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1","b":"s3"}})");
  EXPECT_NE(ModelRefusal().find("s3: No such file"), std::string::npos);
  for (const char* name : {"../s1", "/etc/passwd", "", "..", "a\\u0000b"}) {
    Write("model.safetensors.index.json", std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    EXPECT_NE(ModelRefusal().find("expected the name of a file"), std::string::npos) << name;
  }
  Write("s2", one("a"));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1","c":"s2"}})");
  EXPECT_NE(ModelRefusal().find("tensor a is in two files"), std::string::npos);
  Write("model.safetensors.index.json", R"({"weight_map":["a"]})");
  EXPECT_NE(ModelRefusal().find("expected an object \"weight_map\""), std::string::npos);
}

TEST_F(SafetensorsTest, WhatMayPassIsNoDefectOfTheFiles) {
  using checkpoint::PathFault;
  Write("model.safetensors", Encode(kTwo, 32));
  for (const PathFault::Kind kind : {PathFault::kLook, PathFault::kOpen}) {
    const PathFault fault(kind, "model.safetensors", ESTALE);
    try {
      SafetensorsModel model(folder_);
      ADD_FAILURE() << kind;
    } catch (const fsdp::archive::Error& error) {
      EXPECT_EQ(error.error_number(), ESTALE) << kind;
      EXPECT_NE(std::string(error.what()).find("model.safetensors: "), std::string::npos);
    }
  }
  const PathFault fault(PathFault::kOpen, "model.safetensors", EACCES);
  EXPECT_NE(ModelRefusal().find("Permission denied"), std::string::npos);
}

TEST_F(SafetensorsTest, WhatMayPassIsNoDefectOfTheIndex) {
  using checkpoint::PathFault;
  Write("s1", Encode(kTwo, 32));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1","b":"s1"}})");
  for (const int number : {ESTALE, EMFILE, EIO}) {
    const PathFault fault(PathFault::kOpen, "index.json", number, 1);
    try {
      SafetensorsModel model(folder_);
      ADD_FAILURE() << number;
    } catch (const fsdp::archive::Error& error) {
      EXPECT_EQ(error.error_number(), number);
      EXPECT_NE(std::string(error.what()).find("index.json: "), std::string::npos);
    }
    EXPECT_EQ(SafetensorsModel(folder_).tensors().size(), 2u);
  }
  const PathFault fault(PathFault::kOpen, "index.json", EACCES);
  EXPECT_NE(ModelRefusal().find("Permission denied"), std::string::npos);
}

TEST_F(SafetensorsTest, IndexThatIsTooLargeIsNotRead) {
  const std::filesystem::path index = Write("model.safetensors.index.json", "{}");
  std::filesystem::resize_file(index, (uintmax_t{64} << 20) + 1);  // takes no space
  EXPECT_NE(ModelRefusal().find("index.json: larger than 67108864 bytes"), std::string::npos);
}

}  // namespace
}  // namespace fsdprun
