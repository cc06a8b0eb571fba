#pragma once

/// @file
/// What libfsdp exports.

/// Marks symbols that libfsdp exports; everything else is hidden.
#define FSDP_API __attribute__((visibility("default")))
