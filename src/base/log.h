// One line a fact, to standard error; standard output belongs to answers and reports. Any thread.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace ingot {

// Sets the format and sends everything to standard error. `level`: trace, debug, info, warn, error, off; false if unknown.
bool init_log(std::string_view level);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}

}  // namespace ingot
