// The repository: where this program was built, or else, on a machine that only runs it, the current folder.
#pragma once

#include <filesystem>

namespace ingot::test_support {

inline std::filesystem::path source_dir() {
  std::error_code ignored;
  return std::filesystem::exists(INGOT_SOURCE_DIR, ignored) ? std::filesystem::path(INGOT_SOURCE_DIR) : std::filesystem::current_path();
}

}  // namespace ingot::test_support
