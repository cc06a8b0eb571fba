#include "formats/json/strict_json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

std::string ParseRefusal(const std::string& text) {
  try {
    ParseStrictJson(text, "f.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string ReadRefusal(const std::filesystem::path& path, size_t max_bytes = 100) {
  try {
    ReadSmallFile(path, max_bytes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StrictJsonTest, KeepsTheOrderOfKeys) {
  const std::string text = R"({"z":1,"a":[true,null,1.5],"m":{"y":"x"}})";
  EXPECT_EQ(ParseStrictJson(text, "f").dump(), text);
}

TEST(StrictJsonTest, SyntaxErrorsHaveLineAndColumn) {
  for (const auto& [text, place] :
       std::vector<std::pair<std::string, std::string>>{{"", "f.json:1:1: "},
                                                        {"{\n  \"a\": 1,\n}", "f.json:3:1: "},
                                                        {"{\"a\": 01}", "f.json:1:8: "},
                                                        {"{} x", "f.json:1:4: "},
                                                        {{"{}\0 x", 5}, "f.json:1:3: "},
                                                        {"[1,\n 2", "f.json:2:3: "},
                                                        {"{'a': 1}", "f.json:1:2: "},
                                                        {"[NaN]", "f.json:1:2: "}}) {
    const std::string refusal = ParseRefusal(text);
    EXPECT_TRUE(refusal.starts_with(place + "not valid JSON: ")) << text << " -> " << refusal;
    EXPECT_EQ(refusal.find('\n'), std::string::npos);
    EXPECT_EQ(refusal.find("[json.exception"), std::string::npos) << refusal;
  }
}

TEST(StrictJsonTest, RepeatedKeysAreRefusedPerObject) {
  EXPECT_EQ(ParseRefusal(R"({"a":{"b":1,"b":2}})"), "f.json: key \"b\" occurs twice in one object");
  EXPECT_EQ(ParseRefusal(R"({"":1,"":2})"), "f.json: key \"\" occurs twice in one object");
  EXPECT_EQ(ParseRefusal(R"([{"b":1},{"b":{"b":2}}])"), "accepted");
}

TEST(StrictJsonTest, ErrorsAreOneLineWhateverTheInputContains) {
  EXPECT_EQ(ParseRefusal(R"({"a\nb\u001b":1,"a\nb\u001b":2})"),
            "f.json: key \"a?b?\" occurs twice in one object");
  EXPECT_EQ(std::string(ConfigError("a\x7f\tb\xc3\xa4").what()), "a??b\xc3\xa4");
}

TEST(StrictJsonTest, NumbersThatNoDoubleHoldsAreRefused) {
  const std::string refusal = ParseRefusal("{\"a\": 1e999}");
  EXPECT_TRUE(refusal.starts_with("f.json: not valid JSON: ")) << refusal;
  EXPECT_NE(refusal.find("1e999"), std::string::npos) << refusal;
}

TEST(StrictJsonTest, CommentsAreOnlyForWhoAsksForThem) {
  const std::string text = "{ // of the first\n \"a\": 1, /* and\n the */ \"b\": \"// text\"\n}\n";
  EXPECT_EQ(ParseRefusal(text).substr(0, 28), "f.json:1:3: not valid JSON: ");
  EXPECT_EQ(ParseStrictJson(text, "f", JsonComments::kIgnored).dump(), R"({"a":1,"b":"// text"})");
}

TEST(StrictJsonTest, CommentsLoosenNothingElse) {
  const auto refusal = [](const std::string& text) {
    try {
      ParseStrictJson(text, "f", JsonComments::kIgnored);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("{\"a\": 1, // x\n \"a\": 2}"), "f: key \"a\" occurs twice in one object");
  EXPECT_TRUE(refusal("{\"a\": 1, // x\n}").starts_with("f:2:1: not valid JSON: "))
      << refusal("{\"a\": 1, // x\n}");
  EXPECT_TRUE(refusal("{} /* and so on").starts_with("f:1:")) << refusal("{} /* and so on");
  EXPECT_TRUE(refusal("# {}").starts_with("f:1:1: not valid JSON: ")) << refusal("# {}");
}

TEST(StrictJsonTest, DeepNestingIsRefused) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(ParseRefusal(nested(65)), "accepted");  // the innermost is in 64 others
  EXPECT_EQ(ParseRefusal(nested(66)), "f.json: nested deeper than 64");
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) {
      text += open;
    }
    EXPECT_EQ(ParseRefusal(text), "f.json: nested deeper than 64");
  }
}

TEST(StrictJsonTest, PipesAreRefusedAtOnce) {
  const std::string path = testing::TempDir() + "strict_json_fifo_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadRefusal(path), "cannot read " + path + ": it is no regular file");
  std::filesystem::remove(path);
}

TEST(StrictJsonTest, ExcerptsAreOneShortLine) {
  EXPECT_EQ(Excerpt(Json("a\nb")), R"("a\nb")");
  const std::string cut = Excerpt(Json(std::string(1000, 'x')));
  EXPECT_EQ(cut.size(), 60u);
  EXPECT_TRUE(cut.ends_with("xxx..."));
  EXPECT_EQ(Excerpt(Json(std::string("\xff"))), R"("\ufffd")");
}

TEST(StrictJsonTest, FilesAreReadWholeOrRefusedByName) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("strict_json_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / "f";
  const std::string content = std::string("x\0y\n", 4) + std::string(96, 'z');
  std::ofstream(file, std::ios::binary) << content;
  EXPECT_EQ(ReadSmallFile(file, content.size()), content);
  EXPECT_EQ(ReadRefusal(file, 99), "cannot read " + file.string() + ": larger than 99 bytes");
  EXPECT_EQ(ReadRefusal(folder), "cannot read " + folder.string() + ": it is a directory");
  EXPECT_EQ(ReadRefusal(folder / "none"),
            "cannot read " + (folder / "none").string() + ": No such file or directory");
  EXPECT_EQ(ReadRefusal(file / "below"),
            "cannot read " + (file / "below").string() + ": Not a directory");
  RemoveFolder(folder);
}

}  // namespace
}  // namespace fsdprun
