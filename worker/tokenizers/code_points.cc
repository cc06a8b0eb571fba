#include "worker/tokenizers/code_points.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace fsdprun::worker {
namespace {

// Assigned in Unicode 15 and 16.
constexpr CodePoints kNewUppercaseLetters[] = {
    {0x1c89, 0x1c89}, {0xa7cb, 0xa7cc}, {0xa7da, 0xa7da}, {0xa7dc, 0xa7dc}, {0x10d50, 0x10d65}};
constexpr CodePoints kNewLowercaseLetters[] = {
    {0x1c8a, 0x1c8a}, {0xa7cd, 0xa7cd}, {0xa7db, 0xa7db}, {0x10d70, 0x10d85}, {0x1df25, 0x1df2a}};
constexpr CodePoints kNewModifierLetters[] = {{0x10d4e, 0x10d4e}, {0x10d6f, 0x10d6f},
                                              {0x16d40, 0x16d42}, {0x16d6b, 0x16d6c},
                                              {0x1e030, 0x1e06d}, {0x1e4eb, 0x1e4eb}};
constexpr CodePoints kNewOtherLetters[] = {
    {0x105c0, 0x105f3}, {0x10d4a, 0x10d4d}, {0x10d4f, 0x10d4f}, {0x10ec2, 0x10ec4},
    {0x1123f, 0x11240}, {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e},
    {0x11390, 0x113b5}, {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3},
    {0x11bc0, 0x11be0}, {0x11f02, 0x11f02}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33},
    {0x1342f, 0x1342f}, {0x13441, 0x13446}, {0x13460, 0x143fa}, {0x16100, 0x1611d},
    {0x16d43, 0x16d6a}, {0x18cff, 0x18cff}, {0x1b132, 0x1b132}, {0x1b155, 0x1b155},
    {0x1e4d0, 0x1e4ea}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2b739, 0x2b739},
    {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}};
constexpr CodePoints kNewMarks[] = {
    {0x0897, 0x0897},   {0x0cf3, 0x0cf3},   {0x0ece, 0x0ece},   {0x10d69, 0x10d6d},
    {0x10efc, 0x10eff}, {0x11241, 0x11241}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2},
    {0x113e1, 0x113e2}, {0x1171e, 0x1171e}, {0x11f00, 0x11f01}, {0x11f03, 0x11f03},
    {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x1611e, 0x1612f}, {0x1e08f, 0x1e08f}, {0x1e4ec, 0x1e4ef},
    {0x1e5ee, 0x1e5ef}};
constexpr CodePoints kNewDecimalNumbers[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9},
    {0x11f50, 0x11f59}, {0x16130, 0x16139}, {0x16d70, 0x16d79},
    {0x1ccf0, 0x1ccf9}, {0x1e4f0, 0x1e4f9}, {0x1e5f1, 0x1e5fa}};
constexpr CodePoints kNewOtherNumbers[] = {{0x1d2c0, 0x1d2d3}};
constexpr CodePoints kNewPunctuation[] = {
    {0x1b4e, 0x1b4f},   {0x1b7f, 0x1b7f},   {0x10d6e, 0x10d6e}, {0x113d4, 0x113d5},
    {0x113d7, 0x113d8}, {0x11b00, 0x11b09}, {0x11be1, 0x11be1}, {0x11f43, 0x11f4f},
    {0x16d6d, 0x16d6f}, {0x1e5ff, 0x1e5ff}};
constexpr CodePoints kNewSymbols[] = {
    {0x2427, 0x2429},   {0x2ffc, 0x2fff},   {0x31e4, 0x31e5},   {0x31ef, 0x31ef},
    {0x10d8e, 0x10d8f}, {0x1cc00, 0x1ccef}, {0x1cd00, 0x1ceb3}, {0x1f6dc, 0x1f6dc},
    {0x1f774, 0x1f776}, {0x1f77b, 0x1f77f}, {0x1f7d9, 0x1f7d9}, {0x1f8b2, 0x1f8bb},
    {0x1f8c0, 0x1f8c1}, {0x1fa75, 0x1fa77}, {0x1fa87, 0x1fa89}, {0x1fa8f, 0x1fa8f},
    {0x1faad, 0x1faaf}, {0x1fabb, 0x1fabf}, {0x1fac6, 0x1fac6}, {0x1face, 0x1facf},
    {0x1fada, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae8, 0x1fae9}, {0x1faf7, 0x1faf8},
    {0x1fbcb, 0x1fbef}};
// All of them, with the ideographs of Unicode 15 and 15.1.
constexpr CodePoints kHan[] = {
    {0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},
    {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},
    {0x4e00, 0x9fff},   {0xf900, 0xfa6d},   {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3},
    {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b739}, {0x2b740, 0x2b81d},
    {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
    {0x30000, 0x3134a}, {0x31350, 0x323af}};

/// Ascending. Marks, and a vowel sign that is part of a composition, since Unicode 9.
constexpr CodePoints kKeptInPlace[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

struct NewCodePoints {
  const CodePoints* begin;
  size_t count;
};

template <size_t kCount>
constexpr NewCodePoints ListOf(const CodePoints (&list)[kCount]) {
  return {list, kCount};
}

/// What a property has, beside what PCRE2 knows.
struct Property {
  std::string_view name;
  bool is_known_to_pcre2;
  std::array<NewCodePoints, 4> added;
};

constexpr Property kProperties[] = {
    {"L",
     true,
     {ListOf(kNewUppercaseLetters), ListOf(kNewLowercaseLetters), ListOf(kNewModifierLetters),
      ListOf(kNewOtherLetters)}},
    {"Lu", true, {ListOf(kNewUppercaseLetters)}},
    {"Ll", true, {ListOf(kNewLowercaseLetters)}},
    {"Lt", true, {}},
    {"Lm", true, {ListOf(kNewModifierLetters)}},
    {"Lo", true, {ListOf(kNewOtherLetters)}},
    {"M", true, {ListOf(kNewMarks)}},
    {"N", true, {ListOf(kNewDecimalNumbers), ListOf(kNewOtherNumbers)}},
    {"Nd", true, {ListOf(kNewDecimalNumbers)}},
    {"Nl", true, {}},
    {"No", true, {ListOf(kNewOtherNumbers)}},
    {"P", true, {ListOf(kNewPunctuation)}},
    {"S", true, {ListOf(kNewSymbols)}},
    {"Z", true, {}},
    {"Zs", true, {}},
    {"Zl", true, {}},
    {"Zp", true, {}},
    {"Cc", true, {}},
    {"Han", false, {ListOf(kHan)}},
};

}  // namespace

bool AppendProperty(std::string_view property, std::string& out) {
  const auto* found =
      std::find_if(std::begin(kProperties), std::end(kProperties),
                   [&](const Property& candidate) { return candidate.name == property; });
  if (found == std::end(kProperties)) {
    return false;
  }
  if (found->is_known_to_pcre2) {
    out += "\\p{" + std::string(property) + "}";
  }
  for (const NewCodePoints& list : found->added) {
    for (size_t i = 0; i < list.count; ++i) {
      AppendCodePoint(list.begin[i].first, out);
      if (list.begin[i].last != list.begin[i].first) {
        out += '-';
        AppendCodePoint(list.begin[i].last, out);
      }
    }
  }
  return true;
}

void AppendWhiteSpace(std::string& out) { out += "\\x{9}-\\x{d}\\x{85}\\p{Z}"; }

void AppendCodePoint(uint32_t code_point, std::string& out) {
  const bool is_plain = (code_point >= '0' && code_point <= '9') ||
                        (code_point >= 'A' && code_point <= 'Z') ||
                        (code_point >= 'a' && code_point <= 'z');
  if (is_plain) {
    out += static_cast<char>(code_point);
    return;
  }
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%x}", code_point);
  out += text;
}

bool IsKeptInPlace(uint32_t code_point) {
  const auto* after =
      std::upper_bound(std::begin(kKeptInPlace), std::end(kKeptInPlace), code_point,
                       [](uint32_t value, const CodePoints& range) { return value < range.first; });
  return after != std::begin(kKeptInPlace) && code_point <= std::prev(after)->last;
}

}  // namespace fsdprun::worker
