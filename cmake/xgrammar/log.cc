// Where XGrammar's messages go: an error becomes an exception with its words alone (no file, line or time of the library), a warning goes
// to the calling thread's listener. XGrammar warns where it takes a schema for less than it says: whoever compiles must hear of that.
#include "log.h"

#include "support/logging.h"

namespace ingot_xgrammar {
namespace {

thread_local std::vector<std::string>* warnings = nullptr;

// The class that XGrammar's own parts catch, with a message for people.
struct PlainError final : xgrammar::LogFatalError {
  PlainError(const std::string& file, int line, const std::string& message) : LogFatalError(file, line, message), message_(message) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace

std::vector<std::string>* listen(std::vector<std::string>* list) {
  std::vector<std::string>* before = warnings;
  warnings = list;
  return before;
}

}  // namespace ingot_xgrammar

namespace xgrammar {

void LogFatalImpl(const std::string& file, int line, const std::string& message) { throw ingot_xgrammar::PlainError(file, line, message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level >= XGRAMMAR_LOG_LEVEL_WARNING && ingot_xgrammar::warnings != nullptr) ingot_xgrammar::warnings->push_back(message);
}

}  // namespace xgrammar
