#include "launcher/coordinator/node_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdprun {

job::Node& NodeTable::At(Incarnation incarnation) const {
  job::Node* node = Find(incarnation);
  FSDPRUN_CHECK(node != nullptr, "the node is in the table");
  return *node;
}

NodeTable::Order::iterator NodeTable::LowerBound(Incarnation incarnation) {
  return std::lower_bound(ordered_.begin(), ordered_.end(), incarnation,
                          [](const std::unique_ptr<job::Node>& node, Incarnation i) {
                            return node->info.incarnation < i;
                          });
}

job::Node& NodeTable::Insert(job::Node node) {
  const Incarnation incarnation = node.info.incarnation;
  FSDPRUN_CHECK(Find(incarnation) == nullptr, "an incarnation is admitted once");
  const auto place =
      ordered_.insert(LowerBound(incarnation), std::make_unique<job::Node>(std::move(node)));
  index_[incarnation.value()] = place->get();
  return **place;
}

void NodeTable::Erase(Incarnation incarnation) {
  if (index_.erase(incarnation.value()) != 0) {
    ordered_.erase(LowerBound(incarnation));
  }
}

void NodeTable::Clear() {
  index_.clear();
  ordered_.clear();
}

std::string_view NodeTable::CheckInvariants() const {
  if (index_.size() != ordered_.size()) {
    return "the index does not hold the nodes";
  }
  for (size_t i = 1; i < ordered_.size(); ++i) {
    if (!(ordered_[i - 1]->info.incarnation < ordered_[i]->info.incarnation)) {
      return "the nodes are out of order";
    }
  }
  return "";
}

}  // namespace fsdprun
