#include "spec/module_pattern.h"

#include <fnmatch.h>

namespace ingot::spec {

Result<ModulePattern> ModulePattern::parse(const std::string& text) {
  ModulePattern p;
  p.text_ = text;
  if (text.empty()) return fail("the pattern is empty");
  if (text.starts_with("re:")) {
    p.form_ = Form::regex;
    try {
      p.regex_.emplace(text.substr(3), std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& e) {
      return fail("\"{}\" is not a valid regular expression: {}", text.substr(3), e.what());
    }
  } else if (text.find_first_of("*?[") != std::string::npos) {
    p.form_ = Form::glob;
  }
  return p;
}

bool ModulePattern::matches(const std::string& module) const {
  switch (form_) {
    case Form::name: return module.starts_with(text_) && (module.size() == text_.size() || module[text_.size()] == '.');
    case Form::glob: return fnmatch(text_.c_str(), module.c_str(), 0) == 0;
    case Form::regex: return std::regex_search(module, *regex_, std::regex_constants::match_continuous);
  }
  return false;
}

}  // namespace ingot::spec
