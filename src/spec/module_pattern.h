// A pattern for names of modules, as exclude lists have them (spec section 6.4): one meaning for whoever writes a list and whoever reads
// it.
#pragma once

#include <optional>
#include <regex>
#include <string>

#include "base/result.h"

namespace ingot::spec {

class ModulePattern {
 public:
  enum class Form : uint8_t {
    name,   // a module and all that is below it: "model.layers.3.mlp" matches its projections
    glob,   // fnmatch over the whole name
    regex,  // "re:" and a regular expression that must match from the start of the name
  };

  // Errors: an empty pattern, an expression that is none.
  static Result<ModulePattern> parse(const std::string& text);

  bool matches(const std::string& module) const;
  Form form() const { return form_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Form form_ = Form::name;
  std::optional<std::regex> regex_;
};

}  // namespace ingot::spec
