#include "fsdp_runtime/plan/box.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace fsdp::plan {
namespace {

// Independent of the code under test: walks every index of the box.
std::vector<int64_t> flat_indices(const std::vector<int64_t>& shape, const Box& box) {
  std::vector<int64_t> result;
  std::vector<int64_t> index = box.offsets;
  for (int64_t n = 0; n < numel_of(box); ++n) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      flat = flat * shape[d] + index[d];
    }
    result.push_back(flat);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < box.offsets[d] + box.sizes[d]) {
        break;
      }
      index[d] = box.offsets[d];
    }
  }
  return result;
}

TEST(BoxTest, WholeTensorIsOneBox) {
  const auto boxes = flat_range_to_boxes({3, 4}, 0, 12);
  ASSERT_EQ(boxes.size(), 1u);
  EXPECT_EQ(boxes[0], (Box{{0, 0}, {3, 4}}));
}

TEST(BoxTest, RangeOfAMatrixIsPartOfARowThenRowsThenPartOfARow) {
  const auto boxes = flat_range_to_boxes({5, 4}, 3, 18);
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_EQ(boxes[0], (Box{{0, 3}, {1, 1}}));
  EXPECT_EQ(boxes[1], (Box{{1, 0}, {3, 4}}));
  EXPECT_EQ(boxes[2], (Box{{4, 0}, {1, 2}}));
}

TEST(BoxTest, RangeWithinOneRowIsOneBox) {
  EXPECT_EQ(flat_range_to_boxes({5, 4}, 5, 7), (std::vector<Box>{{{1, 1}, {1, 2}}}));
}

TEST(BoxTest, EmptyRangesHaveNoBoxes) {
  EXPECT_TRUE(flat_range_to_boxes({5, 4}, 7, 7).empty());
  EXPECT_TRUE(flat_range_to_boxes({0, 4}, 0, 0).empty());
  EXPECT_TRUE(flat_range_to_boxes({}, 0, 0).empty());
}

TEST(BoxTest, ScalarHasOneBoxWithoutDimensions) {
  EXPECT_EQ(flat_range_to_boxes({}, 0, 1), (std::vector<Box>{Box{}}));
}

TEST(BoxTest, RejectsRangesOutsideTheTensor) {
  EXPECT_THROW(flat_range_to_boxes({2, 2}, 0, 5), std::invalid_argument);
  EXPECT_THROW(flat_range_to_boxes({2, 2}, -1, 2), std::invalid_argument);
  EXPECT_THROW(flat_range_to_boxes({2, 2}, 3, 2), std::invalid_argument);
}

TEST(BoxTest, BoxesOfRandomRangesCoverExactlyTheRangeInOrder) {
  std::mt19937 random(20240611);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> shape(1 + random() % 4);
    for (int64_t& size : shape) {
      size = 1 + random() % 6;
    }
    const int64_t numel = numel_of(shape);
    int64_t begin = random() % (numel + 1);
    int64_t end = random() % (numel + 1);
    if (begin > end) {
      std::swap(begin, end);
    }
    const auto boxes = flat_range_to_boxes(shape, begin, end);
    EXPECT_LE(boxes.size(), 2 * shape.size() - 1);
    int64_t next = begin;
    for (const Box& box : boxes) {
      EXPECT_EQ(flat_begin_of(shape, box), next);
      for (int64_t flat : flat_indices(shape, box)) {
        ASSERT_EQ(flat, next++);
      }
    }
    ASSERT_EQ(next, end);
  }
}

TEST(BoxTest, IntersectionIsTheCommonElements) {
  const Box a{{0, 2}, {3, 4}};
  const Box b{{2, 0}, {3, 4}};
  EXPECT_EQ(intersect(a, b), (Box{{2, 2}, {1, 2}}));
  EXPECT_EQ(intersect(a, Box{{3, 0}, {1, 9}}), std::nullopt);
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_THROW(intersect(a, Box{}), std::invalid_argument);
  EXPECT_EQ(relative_to(Box{{2, 2}, {1, 2}}, a), (Box{{2, 0}, {1, 2}}));
}

// Copying a part run by run, between boxes that lie around it in any way, copies its elements.
TEST(BoxTest, RunsCopyAPartBetweenAnyTwoBoxesAroundIt) {
  const std::vector<int64_t> shape = {3, 4, 5};
  for (int mask = 0; mask < 512; ++mask) {
    // In each dimension the part is [1, 2), and either box is that or the whole.
    Box part{{1, 1, 1}, {1, 1, 1}};
    Box source = part;
    Box target = part;
    for (int64_t d = 0; d < 3; ++d) {
      const size_t at = static_cast<size_t>(d);
      if (mask >> (3 * d) & 1) {
        part.sizes[at] = shape[at] - 1;
        source.sizes[at] = target.sizes[at] = part.sizes[at];
      }
      if (mask >> (3 * d + 1) & 1) {
        source.offsets[at] = 0;
        source.sizes[at] = shape[at];
      }
      if (mask >> (3 * d + 2) & 1) {
        target.offsets[at] = 0;
        target.sizes[at] = shape[at];
      }
    }
    std::vector<int64_t> copied(static_cast<size_t>(numel_of(target)), -1);
    int64_t total = 0;
    int64_t last_end = 0;
    for_each_run(part, source, target, [&](int64_t from, int64_t to, int64_t numel) {
      EXPECT_GE(to, last_end) << "not in flat order";
      last_end = to + numel;
      total += numel;
      for (int64_t k = 0; k < numel; ++k) {
        copied[static_cast<size_t>(to + k)] = from + k;
      }
    });
    EXPECT_EQ(total, numel_of(part));
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t k = 0; k < 5; ++k) {
          const Box element{{i, j, k}, {1, 1, 1}};
          if (!intersect(element, target)) {
            continue;
          }
          const size_t to =
              static_cast<size_t>(flat_begin_of(target.sizes, relative_to(element, target)));
          const int64_t from = intersect(element, part)
                                   ? flat_begin_of(source.sizes, relative_to(element, source))
                                   : -1;
          EXPECT_EQ(copied[to], from) << mask;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::plan
