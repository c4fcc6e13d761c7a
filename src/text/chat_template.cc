// The one door between the template engine (jinja_*) and the rest: exceptions of the engine end here as Results.
#include "text/chat_template.h"

#include <exception>
#include <new>
#include <utility>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace ingot::text {
namespace {

// A chat template is a few kilobytes; this only keeps a wrong file from being read as one.
constexpr size_t kMaxSourceBytes = 4 << 20;

}  // namespace

struct ChatTemplate::Program {
  std::string name;
  jinja::Ast ast;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name) {
  if (source.size() > kMaxSourceBytes)
    return fail("{}: a template of {} bytes is larger than {} bytes", name, source.size(), kMaxSourceBytes);
  int line = 1;
  try {
    auto program = std::make_shared<Program>();
    program->name = std::string(name);
    program->ast = jinja::parse_template(source, line);
    ChatTemplate result;
    result.program_ = std::move(program);
    return result;
  } catch (const jinja::TemplateFault& fault) {
    return fail("{}:{}: {}: {}", name, line, fault.kind, fault.text);
  } catch (const std::exception& e) {
    return fail("{}:{}: the template can't be parsed: {}", name, line, e.what());
  }
}

Result<std::string> ChatTemplate::render(const Json& context, const RenderLimits& limits, std::optional<int64_t> now_unix_seconds) const {
  if (program_ == nullptr) return fail("render of an empty chat template");
  if (!context.is_object()) return fail("{}: the context is {}, not an object", program_->name, context.type_name());
  jinja::Budget budget(limits.max_steps, limits.max_live_bytes);
  jinja::Heap heap(budget);
  jinja::Interpreter interpreter(program_->ast, heap, {limits.max_output_bytes, limits.max_depth}, now_unix_seconds);
  try {
    std::vector<std::pair<std::string, jinja::Value>> variables;
    for (auto it = context.begin(); it != context.end(); ++it) variables.emplace_back(it.key(), jinja::from_json(heap, it.value()));
    return interpreter.run(std::move(variables));
  } catch (const jinja::TemplateFault& fault) {
    // raise_exception speaks to the client: its text stands alone.
    if (fault.kind == "TemplateError") return fail("{}", fault.text);
    return fail("{}:{}: {}: {}", program_->name, interpreter.line(), fault.kind, fault.text);
  } catch (const std::bad_alloc&) {
    return fail("{}:{}: LimitError: out of memory", program_->name, interpreter.line());
  } catch (const std::exception& e) {
    return fail("{}:{}: {}", program_->name, interpreter.line(), e.what());
  }
}

}  // namespace ingot::text
