#include "launcher/slurm/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The names with blanks between them, or what is wrong with the list.
std::string Names(absl::string_view list) {
  const auto names = ExpandNodeList(list);
  return names.ok() ? absl::StrJoin(*names, " ") : std::string(names.status().message());
}

struct Row {
  const char* list;
  const char* names;
};

// What `scontrol show hostnames` of Slurm 22.05.8 prints; tests/slurm compares with it at random.
constexpr Row kAsScontrol[] = {
    {"a", "a"},
    {"a,b", "a b"},
    {"a[01-03,7],b[1-2]c[3-4]", "a01 a02 a03 a7 b1c3 b1c4 b2c3 b2c4"},
    {"a[1-2]b[3,4]c[5-6]", "a1b3c5 a1b3c6 a2b3c5 a2b3c6 a1b4c5 a1b4c6 a2b4c5 a2b4c6"},
    {"a[1-2]b[3-4]c[5]", "a1b3c5 a2b3c5 a1b4c5 a2b4c5"},
    {"a[1]b[3-4]c[5-6]", "a1b3c5 a1b3c6 a1b4c5 a1b4c6"},
    {"a[1-2][3-4]", "a13 a14 a23 a24"},
    {"n[08-11]", "n08 n09 n10 n11"},
    {"n[008-11]", "n008 n009 n010 n011"},
    {"n[099-101]", "n099 n100 n101"},
    {"n[00-02]", "n00 n01 n02"},
    {"n[9-011]", "n9 n10 n11"},
    {"a[01-3]", "a01 a02 a03"},
    {"n[1-1]", "n1"},
    {"n[0001]", "n0001"},
    {"n[99999999999]", "n99999999999"},
    {"n[18446744073709551615]", "n18446744073709551615"},
    {"n1,n1,n[1-2]", "n1 n1 n1 n2"},
    {"n-[1-2]", "n-1 n-2"},
    {"10.0.0.[1-2]", "10.0.0.1 10.0.0.2"},
    {"[1-3]", "1 2 3"},
    {"fe80::1", "fe80::1"},
    {",a,,b,", "a b"},
    {" a\tb\nc ", "a b c"},
};

TEST(NodeListTest, NamesAreThoseOfScontrol) {
  for (const Row& row : kAsScontrol) {
    EXPECT_EQ(Names(row.list), row.names) << row.list;
  }
  EXPECT_THAT(*ExpandNodeList(""), IsEmpty());
}

// scontrol refuses these, but a newer one may not.
TEST(NodeListTest, NamesMayGoOnAfterTheLastBracket) {
  EXPECT_EQ(Names("n[1-2]-ib"), "n1-ib n2-ib");
  EXPECT_EQ(Names("n[1-2]y[3,5-6].cluster,m"),
            "n1y3.cluster n1y5.cluster n1y6.cluster n2y3.cluster n2y5.cluster n2y6.cluster m");
}

TEST(NodeListTest, ErrorNamesTheTextAndThePosition) {
  EXPECT_EQ(Names("a,n[3-1]"),
            "'a,n[3-1]', at character 5: a number, or a range from a lower one to a higher one, "
            "belongs here");
  EXPECT_EQ(Names("n[1"), "'n[1', at character 4: ',' or ']' belongs here");
  EXPECT_EQ(Names("n[1-2]]"), "'n[1-2]]', at character 7: this bracket was not opened");
  for (const char* list :
       {"n[]", "n[1,]", "n[,1]", "n[a]", "n[1-a]", "n[1--2]", "n[-1]", "n[[1-2]]", "n]", "n[",
        "n[1-", "n[1;2]", "n[0x1-0x3]", "n[18446744073709551616]", "n[1 - 2]", "n[+1]"}) {
    EXPECT_THAT(Names(list), HasSubstr("at character")) << list;
  }
}

TEST(NodeListTest, LongListsAreRefusedBeforeTheyAreMade) {
  EXPECT_EQ(ExpandNodeList("n[0-65535]")->size(), 65536);
  for (const char* list : {"n[0-65536]", "n[0-65535],m", "a[1-300]b[1-300]",
                           "n[0-18446744073709551615]", "n[0-40000,0-40000]"}) {
    EXPECT_THAT(Names(list), HasSubstr("more than 65536 names")) << list;
  }
  const std::string zeros(300, '0');
  EXPECT_THAT(Names("n[" + zeros + "1-9]"), HasSubstr("at character 3"));
  EXPECT_THAT(Names(zeros + "[1-9]"), HasSubstr("more than 255 characters"));
}

TEST(NodeListTest, CountsAreRepeated) {
  EXPECT_THAT(*ExpandCounts("2"), ElementsAre(2));
  EXPECT_THAT(*ExpandCounts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandCounts("1,2(x2)"), ElementsAre(1, 2, 2));
  for (const char* list : {"", ",", "2,", "2(3)", "2(x)", "2(x0)", "2(x3", "a", "-1", "2(x99999)",
                           "2(x65536),1", "2 ", "99999999999"}) {
    const auto counts = ExpandCounts(list);
    EXPECT_FALSE(counts.ok()) << list;
    EXPECT_THAT(std::string(counts.status().message()), HasSubstr("at character")) << list;
  }
}

}  // namespace
}  // namespace fsdprun
