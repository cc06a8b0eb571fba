#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <functional>
#include <memory>
#include <utility>

namespace fsdp {

/// A window of `inner`, whose gathers somebody else keeps account of.
class WatchedWindow : public GatherWindow {
 public:
  /// Issues a gather of the window that it is given.
  using IssueOf = std::function<WorkPtr(GatherWindow& inner, Issue issue)>;
  WatchedWindow(std::shared_ptr<GatherWindow> inner, IssueOf issue_of)
      : inner_(std::move(inner)), issue_of_(std::move(issue_of)) {}

  at::Tensor own() override { return inner_->own(); }
  at::Tensor whole() override { return inner_->whole(); }
  WorkPtr issue(Issue issue) override { return issue_of_(*inner_, std::move(issue)); }
  void release() override { inner_->release(); }
  void wait_for_readers() override { inner_->wait_for_readers(); }

 private:
  const std::shared_ptr<GatherWindow> inner_;
  const IssueOf issue_of_;
};

}  // namespace fsdp
