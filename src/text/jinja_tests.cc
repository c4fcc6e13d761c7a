// The tests (`x is name`) of the template language, by name.
#include <algorithm>
#include <map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

using TestBody = bool (*)(Host&, const Value& value, CallValues& args);

bool compare_test(Host& host, const Value& value, CallValues& args, Op op) {
  const Params params("test", args, {"other"});
  return compare_op(host, op, value, params.at(0));
}

Int whole(Host& host, const Value& value, Int divisor) {
  const Value rest = binary_op(host, Op::kMod, value, Value::integer(divisor));
  return rest.is_integral()
             ? rest.as_int()
             : (rest.as_real() == static_cast<double>(static_cast<Int>(rest.as_real())) ? static_cast<Int>(rest.as_real()) : -1);
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.object() != nullptr || b.object() != nullptr) return a.object() == b.object();
  if (a.is(Kind::kFloat)) return a.as_real() == b.as_real();
  return a.as_int() == b.as_int();
}

#define TEST_BODY []([[maybe_unused]] Host & host, const Value& value, CallValues& args) -> bool
#define KIND_TEST(condition)                                \
  [](Host&, const Value& value, CallValues& args) -> bool { \
    const Params params("test", args, {});                  \
    return condition;                                       \
  }

const std::map<std::string_view, TestBody>& tests() {
  static const std::map<std::string_view, TestBody> kTests = {
      {"defined", KIND_TEST(!value.is_undefined())}, {"undefined", KIND_TEST(value.is_undefined())},
      {"none", KIND_TEST(value.is(Kind::kNone))}, {"boolean", KIND_TEST(value.is(Kind::kBool))},
      {"true", KIND_TEST(value.is(Kind::kBool) && value.as_int() != 0)}, {"false", KIND_TEST(value.is(Kind::kBool) && value.as_int() == 0)},
      {"integer", KIND_TEST(value.is(Kind::kInt))}, {"float", KIND_TEST(value.is(Kind::kFloat))}, {"number", KIND_TEST(value.is_number())},
      {"string", KIND_TEST(value.is_string())}, {"mapping", KIND_TEST(value.is(Kind::kDict))},
      // Python's notion: has a length and takes an index; an undefined has both methods.
      {"sequence", KIND_TEST(value.is_undefined() || value.is_string() || value.is_list_or_tuple() || value.is(Kind::kDict) ||
                             (value.is(Kind::kIterator) && value.get<Iterator>().type_name == "range"))},
      {"iterable", KIND_TEST(is_iterable(value) || value.is(Kind::kLoop))},
      {"callable", KIND_TEST(value.is_undefined() || value.is(Kind::kMacro) || value.is(Kind::kMethod) || value.is(Kind::kFunction) ||
                             value.is(Kind::kLoop))},
      {"escaped", KIND_TEST(value.is_string() && value.string().markup)}, {"lower", TEST_BODY{const Params params("lower", args, {});
  const Value text = host.heap.string(str(host.budget(), value));
  return truth(call_method(host, Method(nullptr, text, "islower"), {}));
}
}  // namespace
, {"upper", TEST_BODY{const Params params("upper", args, {});
const Value text = host.heap.string(str(host.budget(), value));
return truth(call_method(host, Method(nullptr, text, "isupper"), {}));
}  // namespace ingot::text::jinja
}
, {"odd", TEST_BODY{return Params("odd", args, {}), whole(host, value, 2) == 1;
}
}
, {"even", TEST_BODY{return Params("even", args, {}), whole(host, value, 2) == 0;
}
}
, {"divisibleby", TEST_BODY{const Params params("divisibleby", args, {"num"});
const Value rest = binary_op(host, Op::kMod, value, params.at(0));
return rest.is_number() && rest.as_real() == 0;
}
}
, {"sameas", TEST_BODY{const Params params("sameas", args, {"other"});
host.budget().step();
return same_object(value, params.at(0));
}
}
, {"filter", TEST_BODY{return Params("filter", args, {}), host.budget().step(), value.is_string() && has_filter(value.text());
}
}
, {"test", TEST_BODY{return Params("test", args, {}), host.budget().step(), value.is_string() && has_test(value.text());
}
}
, {"in", TEST_BODY{return compare_test(host, value, args, Op::kIn);
}
}
, {"==", TEST_BODY{return compare_test(host, value, args, Op::kEq);
}
}
, {"eq", TEST_BODY{return compare_test(host, value, args, Op::kEq);
}
}
, {"equalto", TEST_BODY{return compare_test(host, value, args, Op::kEq);
}
}
, {"!=", TEST_BODY{return compare_test(host, value, args, Op::kNe);
}
}
, {"ne", TEST_BODY{return compare_test(host, value, args, Op::kNe);
}
}
, {">", TEST_BODY{return compare_test(host, value, args, Op::kGt);
}
}
, {"gt", TEST_BODY{return compare_test(host, value, args, Op::kGt);
}
}
, {"greaterthan", TEST_BODY{return compare_test(host, value, args, Op::kGt);
}
}
, {">=", TEST_BODY{return compare_test(host, value, args, Op::kGe);
}
}
, {"ge", TEST_BODY{return compare_test(host, value, args, Op::kGe);
}
}
, {"<", TEST_BODY{return compare_test(host, value, args, Op::kLt);
}
}
, {"lt", TEST_BODY{return compare_test(host, value, args, Op::kLt);
}
}
, {"lessthan", TEST_BODY{return compare_test(host, value, args, Op::kLt);
}
}
, {"<=", TEST_BODY{return compare_test(host, value, args, Op::kLe);
}
}
, {"le", TEST_BODY{return compare_test(host, value, args, Op::kLe);
}
}
,
}
;
return kTests;
}

#undef TEST_BODY
#undef KIND_TEST

}  // namespace

bool has_test(std::string_view name) { return tests().contains(name); }

bool apply_test(Host& host, std::string_view name, const Value& value, CallValues args) { return tests().at(name)(host, value, args); }

}  // namespace ingot::text::jinja
