// A JSON schema as rules of a grammar. What a rule gives is valid for the schema; the reverse need not hold: properties come in the
// schema's order and only those it declares (unless additionalProperties, or no `properties` at all, opens it), numbers are at most 18
// digits before the point, keywords of one type without `type` mean that type.
//
// Strict: what cannot be held is refused by the keyword's name and place. Else (schemas of tools) the keyword is passed over and noted in
// `ignored`. Used by grammar.cc and grammar_tools.cc, one object a schema.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/grammar_rules.h"
#include "text/tool_arguments.h"

namespace ingot::text {

struct SchemaOptions {
  bool strict = true;
  Spelling spelling = Spelling::json;  // json_tag: of a tool's argument
};

class SchemaRules {
 public:
  // `root`: what "#" refers to; must outlive this.
  SchemaRules(const Json& root, GrammarRules& rules, SchemaOptions options) : root_(root), rules_(rules), options_(options) {}

  // The text of a JSON value. `where`: the place of `schema`, for errors.
  Result<std::string> value(const Json& schema, const std::string& where);

  // The text between <arg_value> and </arg_value> for an argument that OutputParser types as `type`.
  Result<std::string> argument(const Json& schema, const ArgumentType& type, const std::string& where);

  // The arguments of a call of a tool whose parameters are `root`; type_of(key) is what OutputParser will take an argument for.
  template <class TypeOf>
  Result<std::string> arguments(const std::string& where, const TypeOf& type_of) {
    return argument_lists(where, [&](const std::string& key) { return type_of(key); });
  }

  // Keywords that were passed over, with their places.
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  // One way a value can be: a schema without $ref, anyOf, oneOf and allOf, whose `enum` holds what const said.
  using Way = Json;
  Result<std::vector<Way>> ways(const Json& schema, const std::string& where, int depth = 0);
  Result<std::vector<Way>> ways_of_all(const std::vector<std::pair<const Json*, std::string>>& parts, std::vector<Way> ways,
                                       const std::string& where, int depth);
  Result<std::vector<Way>> ways_of_any(const Json& list, const std::string& where, int depth);
  Result<Way> own_keywords(const Json& schema, const std::string& where);
  Result<> merge(Way& into, const Way& other, const std::string& where, bool& possible);
  std::string place_of(std::string reference) const;
  Result<const Json*> resolve(const std::string& reference, const std::string& where) const;

  Result<std::string> one_way(const Way& way, const std::string& where, const std::set<std::string>& types);
  Result<std::string> string_of(const Way& way, const std::string& where, Spelling spelling);
  Result<std::string> number_of(const Way& way, const std::string& where, bool integer);
  Result<std::string> array_of(const Way& way, const std::string& where);
  Result<std::string> object_of(const Way& way, const std::string& where);
  Result<std::string> argument_lists(const std::string& where, const std::function<ArgumentType(const std::string&)>& type_of);

  // The members of an object, one behind the other. A member: its text without what separates it from the one before.
  struct Member {
    std::string text;
    bool required = false;
  };
  struct Members {
    std::vector<Member> declared;
    std::string other;       // any number of these behind the declared; empty: none
    int64_t max_other = -1;  // of `other`; -1: no bound
    bool need_one = false;
  };
  std::string members(const Members& members, const std::string& separator);
  Result<Members> members_of(
      const Way& way, const std::string& where,
      const std::function<Result<std::string>(const std::string& key, const Json& schema, const std::string& where)>& declared,
      const std::function<Result<std::string>(const std::vector<std::string>& names, const Json& schema, const std::string& where)>& other);

  // Strict: an error. Else: noted.
  Result<> cannot(const std::string& where, std::string_view keyword, std::string_view why);
  // A count that a keyword gives; `none` when it is absent or passed over.
  Result<int64_t> count(const Way& way, const char* keyword, const std::string& where, int64_t none, int64_t limit = 10'000);

  const Json& root_;
  GrammarRules& rules_;
  SchemaOptions options_;
  std::map<std::string, std::string> done_;  // text of a schema -> its rule
  std::vector<std::string> ignored_;
  std::string root_where_;
  int depth_ = 0;
  int64_t work_ = 0;
};

}  // namespace ingot::text
