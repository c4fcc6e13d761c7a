// From what a request asks of its answer's form (response_format, regex, tool_choice, strict tools, a thinking budget, min_tokens) to the
// constraint of each choice. Called on HTTP threads, before a request goes to the engine; compiling a new grammar takes milliseconds, or
// a second for a large schema.
#pragma once

#include "serve/desk.h"

namespace ingot::serve {

// `tools`: null where there are none (completions). The factory is empty when nothing is asked. A form and tools together: the answer is
// either of that form, or calls. Errors: 400, by the path of what a grammar can't hold.
ApiResult<ConstraintFactory> make_constraints(const ServedModel& model, const GenerationOptions& options, const ToolChoice* tools,
                                              bool starts_in_reasoning);

// A text that may follow either of two constraints: the tokens so far decide which are left. Both must be fresh.
std::shared_ptr<sched::TokenConstraint> either_of(std::shared_ptr<sched::TokenConstraint> first,
                                                  std::shared_ptr<sched::TokenConstraint> second);

// Forbids the stop tokens until `min_tokens` were drawn; `inner` may be null.
std::shared_ptr<sched::TokenConstraint> at_least(int32_t min_tokens, std::vector<int32_t> stop_token_ids,
                                                 std::shared_ptr<sched::TokenConstraint> inner);

}  // namespace ingot::serve
