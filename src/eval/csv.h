// Comma-separated values as RFC 4180 has them: quoted fields hold commas, line ends and doubled quotes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ingot::eval {

// Rows of fields; a byte order mark and empty lines are passed over. Errors say the row (from 1) but never what stands in it.
Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text, std::string_view name);

}  // namespace ingot::eval
