#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Returns from the enclosing function when `expr` (an absl::Status) is not OK.
#define RETURN_IF_ERROR(expr)                        \
  do {                                               \
    absl::Status fsdprun_status = (expr);            \
    if (!fsdprun_status.ok()) return fsdprun_status; \
  } while (false)

/// Assigns the value of `expr` (an absl::StatusOr) to `lhs`, or returns its status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  FSDPRUN_ASSIGN_OR_RETURN_(FSDPRUN_CONCAT_(fsdprun_statusor_, __LINE__), lhs, expr)
#define FSDPRUN_CONCAT_INNER_(a, b) a##b
#define FSDPRUN_CONCAT_(a, b) FSDPRUN_CONCAT_INNER_(a, b)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
#define FSDPRUN_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
