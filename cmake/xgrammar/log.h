// XGrammar's warnings, for the thread that set them off.
#pragma once

#include <string>
#include <vector>

namespace ingot_xgrammar {

// Warnings of calls on this thread are appended to `list` from here on; null: they are dropped. Returns the list before.
std::vector<std::string>* listen(std::vector<std::string>* list);

}  // namespace ingot_xgrammar
