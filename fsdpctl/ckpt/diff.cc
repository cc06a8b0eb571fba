#include "fsdpctl/ckpt/diff.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "formats/tensors/compare.h"
#include "formats/tensors/open_tensors.h"
#include "fsdpctl/ckpt/amounts.h"

namespace fsdprun::ckpt {
namespace {

/// Tensors by the name under which they are compared.
using ComparedNames = std::map<std::string, std::string>;

ComparedNames NamesFor(const TensorSource& source, bool only_weights) {
  if (only_weights) {
    return source.Weights();
  }
  ComparedNames names;
  for (const auto& [key, facts] : source.tensors()) {
    names[key] = key;
  }
  return names;
}

Json FactsJson(const TensorFacts& facts) {
  return {{"dtype", facts.dtype}, {"shape", facts.shape}};
}

std::string FactsText(const TensorFacts& facts) {
  return Printable(facts.dtype) + " " + ShapeText(facts.shape);
}

std::string DifferenceText(const ValueDifference& difference) {
  char text[40] = "no number";
  if (std::isfinite(difference.max_difference)) {
    std::snprintf(text, sizeof text, "%.6g", difference.max_difference);
  }
  return std::to_string(difference.different) + " elements differ, at most by " + text;
}

class Comparison {
 public:
  Comparison(TensorSource& a, TensorSource& b) : a_(a), b_(b) {
    for (const char* kind : {"only_in_a", "only_in_b", "other_form", "other_values"}) {
      report_.json[kind] = Json::array();
    }
  }

  void AddOnly(const char* kind, const std::string& name, const char* text) {
    report_.json[kind].push_back(name);
    Say(name, text);
  }

  void Compare(const std::string& name, const std::string& a_name, const std::string& b_name) {
    const TensorFacts& a = a_.tensors().at(a_name);
    const TensorFacts& b = b_.tensors().at(b_name);
    if (a.dtype != b.dtype || a.shape != b.shape) {
      report_.json["other_form"].push_back(
          {{"key", name}, {"a", FactsJson(a)}, {"b", FactsJson(b)}});
      Say(name, FactsText(a) + " and " + FactsText(b));
      return;
    }
    const ValueDifference difference = CompareTensors(a_, a_name, b_, b_name);
    if (difference.different == 0) {
      ++equal_;
      return;
    }
    const bool is_number = std::isfinite(difference.max_difference);
    report_.json["other_values"].push_back(
        {{"key", name},
         {"different", difference.different},
         {"max_difference", is_number ? Json(difference.max_difference) : Json()}});
    Say(name, DifferenceText(difference));
  }

  Report Finish() {
    report_.json["bit_equal"] = equal_;
    report_.json["equal"] = report_.is_good;
    report_.text += std::to_string(equal_) + " tensors are bit-equal" +
                    (report_.is_good ? ", and there is no other\n" : "\n");
    return std::move(report_);
  }

 private:
  void Say(const std::string& name, const std::string& text) {
    report_.text += Printable(name) + ": " + text + "\n";
    report_.is_good = false;
  }

  TensorSource& a_;
  TensorSource& b_;
  Report report_;
  int64_t equal_ = 0;
};

}  // namespace

Report DiffCheckpoints(const std::string& a, const std::string& b) {
  // Of a checkpoint beside a model, the weights under the names that the model has.
  const bool only_weights =
      (LayoutOf(a) == TensorLayout::kDcp) != (LayoutOf(b) == TensorLayout::kDcp);
  const std::unique_ptr<TensorSource> a_source = OpenTensors(a);
  const std::unique_ptr<TensorSource> b_source = OpenTensors(b);
  const ComparedNames a_names = NamesFor(*a_source, only_weights);
  const ComparedNames b_names = NamesFor(*b_source, only_weights);
  Comparison comparison(*a_source, *b_source);
  for (const auto& [name, own] : a_names) {
    const auto other = b_names.find(name);
    if (other == b_names.end()) {
      comparison.AddOnly("only_in_a", name, "only in the first");
    } else {
      comparison.Compare(name, own, other->second);
    }
  }
  for (const auto& [name, own] : b_names) {
    if (!a_names.contains(name)) {
      comparison.AddOnly("only_in_b", name, "only in the second");
    }
  }
  return comparison.Finish();
}

}  // namespace fsdprun::ckpt
