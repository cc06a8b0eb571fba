#include "worker/data/document_ends.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

class DocumentEndsTest : public DataFolderTest {
 protected:
  Windows Cut(TokenFacts facts, Documents documents = Documents::kSeparate) const {
    return Windows(StreamOf(Path("tokens"), {1, 2, 0, 4, 5, 0, 7, 8}, std::move(facts)), 4,
                   documents);
  }
  DocumentEnds Ends(TokenFacts facts, Documents documents = Documents::kSeparate) const {
    return EndsOf({Cut(std::move(facts), documents)});
  }
};

TEST_F(DocumentEndsTest, OtherPlacesAreOthers) {
  const DocumentEnds ends = Ends({.document_ends = {3, 6, 8}});
  EXPECT_EQ(ends.digest.size(), 16U);
  EXPECT_FALSE(DifferInEnds(ends, Ends({.document_ends = {3, 6, 8}}, Documents::kMask)));
  EXPECT_TRUE(DifferInEnds(ends, Ends({.document_ends = {2, 6, 8}})));
  EXPECT_TRUE(DifferInEnds(ends, Ends({.document_ends = {6, 8}})));
}

TEST_F(DocumentEndsTest, FileWithoutAnIndexIsOneDocument) {
  EXPECT_EQ(Ends({}), Ends({.document_ends = {8}}));
}

TEST_F(DocumentEndsTest, AnotherIdIsAnother) {
  const DocumentEnds ends = Ends({.document_end = 0});
  EXPECT_EQ(ends.digest, "");
  EXPECT_EQ(ends.id, 0);
  EXPECT_TRUE(DifferInEnds(ends, Ends({.document_end = 4})));
  EXPECT_FALSE(DifferInEnds(ends, Ends({.document_end = 0})));
  // The index may say the same as the id.
  EXPECT_FALSE(DifferInEnds(ends, Ends({.document_end = 4, .document_ends = {3, 6, 8}})));
}

TEST_F(DocumentEndsTest, TheyAreNothingWhereTheyDoNotMatter) {
  EXPECT_EQ(Ends({.document_ends = {3, 8}}, Documents::kJoin), DocumentEnds{});
  EXPECT_FALSE(DifferInEnds(DocumentEnds{}, Ends({.document_ends = {3, 8}})));
}

TEST_F(DocumentEndsTest, OfAMixtureIsSaidWhatIsKnownOfAllSources) {
  const Windows one = Cut({.document_ends = {3, 8}});
  const Windows two = Cut({.document_ends = {5, 8}});
  const Windows by_id = Cut({.document_end = 0});
  EXPECT_TRUE(DifferInEnds(EndsOf({one, two}), EndsOf({two, one})));
  EXPECT_EQ(EndsOf({one, by_id}), DocumentEnds{});
  EXPECT_EQ(EndsOf({by_id, Cut({.document_end = 4})}), DocumentEnds{});
  EXPECT_EQ(EndsOf({by_id, by_id}).id, 0);
}

}  // namespace
}  // namespace fsdprun::worker
