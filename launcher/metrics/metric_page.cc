#include "launcher/metrics/metric_page.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/output/line_format.h"
#include "prometheus/text_serializer.h"

namespace fsdprun {

std::vector<prometheus::ClientMetric::Label> MetricPage::MakeLabels(const Labels& labels) {
  std::vector<prometheus::ClientMetric::Label> made;
  for (const auto& [name, value] : labels) {
    made.push_back({std::string(name), ReplaceInvalidUtf8(value)});
  }
  return made;
}

prometheus::ClientMetric& MetricPage::Add(absl::string_view name, absl::string_view help,
                                          prometheus::MetricType type, const Labels& labels) {
  const std::string full =
      absl::StartsWith(name, "process_") ? std::string(name) : absl::StrCat("fsdprun_", name);
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&full](const auto& known) { return known.name == full; });
  if (family == families_.end()) {
    family = families_.insert(families_.end(), {full, std::string(help), type, {}});
  }
  prometheus::ClientMetric& row = family->metric.emplace_back();
  row.label = common_;
  for (auto& label : MakeLabels(labels)) {
    row.label.push_back(std::move(label));
  }
  return row;
}

void MetricPage::Gauge(absl::string_view name, absl::string_view help, double value,
                       const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricPage::Counter(absl::string_view name, absl::string_view help, double value,
                         const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricPage::Histogram(absl::string_view name, absl::string_view help,
                           const DurationHistogram& values, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Histogram, labels).histogram = values.Values();
}

std::string MetricPage::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families_);
  return text.str();
}

}  // namespace fsdprun
