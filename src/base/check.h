// INGOT_CHECK: programmer errors. Prints file, line, the condition and a message, then aborts; on in every build.
#pragma once

#include <fmt/core.h>

#include <string>

namespace ingot::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
inline std::string check_message() { return {}; }
template <class... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace ingot::detail

#define INGOT_CHECK(condition, ...)                                                                               \
  do {                                                                                                            \
    if (!(condition)) [[unlikely]]                                                                                \
      ::ingot::detail::check_failed(__FILE__, __LINE__, #condition, ::ingot::detail::check_message(__VA_ARGS__)); \
  } while (false)
