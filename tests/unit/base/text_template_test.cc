#include "base/text_template.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

// Each result is that of Python's Template.safe_substitute.
TEST(TextTemplateTest, NamesWithAndWithoutBraces) {
  const std::map<std::string, std::string> values = {{"a", "1"}, {"a_b2", "$a"}, {"_c", ""}};
  EXPECT_EQ(SubstituteNames("$a ${a}a $a_b2 ${a_b2} [$_c]", values), "1 1a $a $a []");
  EXPECT_EQ(SubstituteNames("$$a $$$a $$$$", values), "$a $1 $$");
  EXPECT_EQ(SubstituteNames("$A ${b} $ab ${ a} ${a $2 ${} $", values),
            "$A ${b} $ab ${ a} ${a $2 ${} $");
  EXPECT_EQ(SubstituteNames("$a-$a.", values), "1-1.");
  EXPECT_EQ(SubstituteNames("", values), "");
}

}  // namespace
}  // namespace fsdprun
