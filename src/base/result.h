// Result<T>: how an environment error (a bad file, a refused port, a hostile input) travels. Owned by base, used by all.
// A programmer error is INGOT_CHECK (check.h); a request failure is a finish reason or an HTTP error, never one of these.
#pragma once

#include <fmt/core.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace ingot {

// What was tried and failed, naming the file, tensor, field or flag; and, where we know it, what would be right.
struct Error {
  std::string message;
  std::string hint;  // may be empty

  // "message (hint)" on one line.
  std::string text() const { return hint.empty() ? message : message + " (" + hint + ")"; }
};

template <class T = void>
using Result = tl::expected<T, Error>;

template <class... Args>
tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...), {}});
}

// The same failure with advice: fail_hint("use bf16 or f32", "tensor {} has dtype {}", name, dtype).
template <class... Args>
tl::unexpected<Error> fail_hint(std::string hint, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...), std::move(hint)});
}

inline tl::unexpected<Error> forward_error(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace ingot

#define INGOT_CONCAT_IMPL(a, b) a##b
#define INGOT_CONCAT(a, b) INGOT_CONCAT_IMPL(a, b)

// INGOT_TRY(expr): returns the error to the caller when `expr` (a Result) failed.
#define INGOT_TRY(expr)                                                                        \
  do {                                                                                         \
    auto&& ingot_try_result = (expr);                                                          \
    if (!ingot_try_result) return ::ingot::forward_error(std::move(ingot_try_result).error()); \
  } while (false)

// INGOT_ASSIGN(decl, expr): `decl` gets the value of `expr`, or the error goes to the caller.
#define INGOT_ASSIGN(decl, expr) INGOT_ASSIGN_IMPL(INGOT_CONCAT(ingot_result_, __LINE__), decl, expr)
#define INGOT_ASSIGN_IMPL(tmp, decl, expr)                         \
  auto tmp = (expr);                                               \
  if (!tmp) return ::ingot::forward_error(std::move(tmp).error()); \
  decl = std::move(*tmp)
