#!/usr/bin/env python3
"""Writes tests/golden/chat_template/jinja_cases.json: small templates with what Jinja2 3.1.6 makes of them.

Jinja2 is set up as transformers does: immutable sandbox, trim_blocks, lstrip_blocks, loop controls, plain json.dumps tojson.
Run it from the repository root after adding cases to CASES; it needs `pip install Jinja2==3.1.6`.
"""
import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path("tests/golden/chat_template/jinja_cases.json")

CONTEXT = {
    "n": 7, "f": 2.5, "s": "Hello wörld", "e": "", "t": True, "no": False, "nil": None, "big": 18446744073709551615,
    "xs": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3, [4]]],
    "d": {"b": 1, "a": {"x": "y", "items": 5}, "c": [1, 2.0, None, True]},
    "rows": [{"k": "u", "v": 2, "on": True}, {"k": "w", "v": 1}, {"k": "u", "v": 3, "on": False}],
    "text": "  one two\tthree\n four  ", "quote": "it's \"q\" <b>&\n", "emoji": "a😀é",
}

EXPRESSIONS = r"""
1 + 2 * 3|7 // 2|-7 // 2|7 % -3|-7 % 3|7 / 2|2 ** 3 ** 2|-2 ** 2|2 ** -1|1.5 // 0.4|-1.5 % 1|1e16|1e15 + 0.5|1e-5|0.0001|100.0|1e400|3.0 * 2
1_000|0x1F|0b101|0o17|n / 0|n % 0|1.0 / 0|big + 1|true + 1|-t|+f|- s|not n|not e
"a" + "b"|"a" ~ 1 ~ none ~ 2.50|"a" * 3|3 * "ab"|[1] * 2|"a" * -1|"a" + 1|1 + "a"|[1] + [2]|(1,) + (2,)|[1] + (2,)|none + 1|xs + nil|s - 1|"a" "b" 'c'
1 < 2 < 3|1 < 3 < 2|1 == 1.0|1 == true|"1" == 1|"a" < "b"|"a" < 1|[1, 2] < [1, 3]|none == none|none < 1|xs == [3, 1, 2]|d == d|{} == {}|(1, 2) == [1, 2]
1 in xs|9 not in xs|"a" in d|"ell" in s|1 in "a"|"" in "a"|none in [none]|2 in range(3)|1 in n|"x" in nil|undef in xs|"k" in undef
undef|undef is defined|undef.x|d.undef|d.undef.x|d["undef"]|xs[9]|xs["a"]|s.foo|nil.foo|n.foo|undef()|d.b()|undef + 1|undef == undef|undef == none|undef ~ "x"|undef|length|-undef
undef or 3|undef and 3|0 or "" or "z"|1 and 2|not undef|1 if undef else 2|1 if t|(1 if no) ~ "x"|(1 if no).x|"a" if no else "b" if t else "c"
s[0]|s[-1]|s[1:4]|s[:-3]|s[::2]|s[::-1]|s[100:]|s[-100:3]|s[7]|emoji[1]|emoji[::-1]|emoji[1:]|xs[1:]|xs[::-1]|xs[-2:]|xs[0:3:2]|xs[::0]|(1,2,3)[1:]|d[1:]|s["a":]
[1, "a", none, true, 2.0, [], {}]|{"a": 1, 2: "b", none: [1]}|(1,)|()|(1, 2)|1, 2|["it's", 'q"', "a'b\"c", "\n\t\\", "é", "\x07\u200b"]|{"k": undef}|[undef]|{[1]: 2}|{"a": 1, "a": 2}|{1: "a", true: "b"}
d|xs|nested|range(3)|range(1, 10, 3)|d.items()|d.keys()|d.values()|d.items|s.upper
d.a.x|d.a["items"]|d.c.0|d.c.1|nested.1.1.0|d.get("b")|d.get("zz")|d.get("zz", 5)|d.get()|d["items"]|d.a.items()
"a,b,,c".split(",")|"a,b,,c".split(",", 1)|"a b  c ".split()|text.split()|text.split(none, 1)|"abc".split("")|"a,b,c".rsplit(",", 1)|"a b c".rsplit(none, 1)|"a\nb\r\nc\n".splitlines()|"abc".partition("b")|"abcb".rpartition("b")
text.strip()|text.lstrip()|text.rstrip()|"xxaxx".strip("x")|"xyaxy".lstrip("yx")|"héé".rstrip("é")|s.upper()|s.lower()|"ÀÉß".lower()|"straße".upper()|"hello WORLD".capitalize()|"hello wOrld-x it's".title()
s.startswith("He")|s.endswith(("x", "d"))|s.startswith("ell", 1)|s.startswith(1)|s.replace("l", "L")|s.replace("l", "L", 1)|"aaa".replace("", "-")|s.find("l")|s.find("zz")|s.rfind("l")|s.index("zz")|s.count("l")|"abc".isalpha()|"12".isdigit()|"".isspace()|"aB".isupper()|"-".join(["a", "b"])|"-".join([1])|"x".center(5, "*")|"x".ljust(3) ~ "|"|"x".rjust(3)|"abc".removeprefix("a")|"abc".removesuffix("c")|emoji.find("é")
"%s and %d" % ("a", 3)|"%5.2f|%-5s|%05d" % (3.14159, "x", 42)|"%(a)s" % {"a": 1}|"%s" % xs|"%d" % "x"|"%s %s" % "a"|"%%" % ()|"%x %X %o" % (255, 255, 8)|"%r" % "a"|"%e" % 12345.678|"%g" % 0.0001|"%i" % 3.9|"%+d" % 3
"{} {}".format(1, "a")|"{0}{1}{0}".format("a", "b")|"{x:>5}|{y:<4}|".format(x="a", y=1)|"{:05.1f}".format(3.14159)|"{:,}".format(1234567)|"{!r}".format("a")|"{{}}".format()|"{a[b]}".format(a={"b": 3})|"{}".format()|"{:x}".format(255)|"{:^7}".format("ab")|"{:.2%}".format(0.256)|"{:>3}".format(true)
xs.append(1)|d.pop("b")|d.update({})|d.clear()|xs.index(1)|xs.count(3)|xs.index(9)|xs.copy()|s.__class__|xs.sort()
"""

# One filter or test expression a line, since they hold bars.
FILTERS = r"""
text|trim
"xxaxx"|trim("x")
5|trim
xs|join
xs|join(", ")
xs|join(1)
rows|join(",", attribute="k")
undef|join
5|join
s|join("-")
s|length
xs|length
d|length
5|length
none|length
xs|map("string")|length
d|tojson
d|tojson(indent=2)
xs|tojson(indent=1)
[]|tojson(indent=2)
{}|tojson(indent=2)
d|tojson(sort_keys=true)
d|tojson(separators=(",", ":"))
s|tojson
s|tojson(ensure_ascii=true)
emoji|tojson(ensure_ascii=true)
emoji|tojson(true)
quote|tojson
"\u007f\x01/"|tojson
[1.0, 1e20, 1e-7, 0.1, -0.0, 123456789.123]|tojson
[1e400, -1e400]|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
undef|tojson
range(3)|tojson
d.items()|tojson
xs|map("string")|tojson
(1, 2)|tojson
big|tojson
{(1,): 2}|tojson
s|replace("l", "L")
s|replace("l", "L", 1)
55|replace(5, 6)
s|capitalize
"hELLO wORLD"|title
"foo-bar (baz) it's"|title
s|upper
s|lower
5|upper
xs|first
[]|first
xs|last
[]|last
s|first
s|last
d|first
d|last
s|list
d|list
5|list
none|list
xs|map("string")|list
words|map("upper")|list
rows|map(attribute="v")|list
rows|map(attribute="on")|list
rows|map(attribute="on", default="x")|list
rows|map(attribute="v")|sum
xs|map("nope")|list
xs|map|list
xs|map("string")
words|map("replace", "a", "z")|join
xs|select("odd")|list
xs|select("gt", 1)|list
xs|select|list
[0, 1, "", "a", none]|select|list
[0, 1, none]|reject("none")|list
xs|reject("odd")|list
rows|selectattr("on")|list|length
rows|selectattr("on", "defined")|list|length
rows|selectattr("k", "equalto", "u")|map(attribute="v")|list
rows|selectattr("k", "==", "u")|list|length
rows|rejectattr("on", "defined")|list
rows|rejectattr("v", "gt", 1)|list
rows|selectattr("k", "in", ["w"])|list
undef|default("x")
none|default("x")
none|default("x", true)
""|d("y", boolean=true)
undef|default
d|items|list
undef|items|list
xs|items|list
d|dictsort
d.a|dictsort(reverse=true)
{"b": 1, "A": 2, "a": 3}|dictsort
{"b": 1, "A": 2, "a": 3}|dictsort(true)
{"b": 2, "a": 3}|dictsort(by="value")
xs|dictsort
"a\nb\n\nc"|indent
"a\nb"|indent(2, true)
"a\n\nb"|indent(2, blank=true)
"a\nb\n"|indent(">>")
5|string
d|string
none|string
undef|string
"12"|int
"12.7"|int
" 5 "|int
"x"|int
"x"|int(9)
"0x1f"|int(base=16)
"ff"|int(0, 16)
3.9|int
-3.9|int
none|int
true|int
undef|int
xs|int
"1_0"|int
"3.5"|float
"x"|float
"x"|float(1.5)
"1e3"|float
"inf"|float
[1, 2, 1, "a", "A"]|unique|list
["a", "A"]|unique(true)|list
rows|unique(attribute="k")|list|length
xs|sort
words|sort
words|sort(case_sensitive=true)
words|sort(reverse=true)
rows|sort(attribute="v")|map(attribute="v")|list
rows|sort(attribute="k,v")|map(attribute="v")|list
[1, "a"]|sort
d|sort
xs|reverse|list
s|reverse
5|reverse
rows|groupby("k")|list|length
rows|groupby("k")|map("first")|list
rows|groupby("k")
"<b>"|safe
"<b>"|safe + "<i>'"
"<i>" + "<b>"|safe
"<b>"|safe ~ "<i>"
"<b>"|safe|length
["<"|safe]
"<&'\">"|escape
"<"|e|e
-5|abs
5.5|abs
"a"|abs
xs|sum
rows|sum(attribute="v")
xs|sum(start=10)
xs|min
xs|max
[]|min
words|min
2.567|round(2)
2.5|round
3.5|round
2.1|round(method="ceil")
2.9|round(0, "floor")
7|round
xs|batch(2)|list
xs|batch(2, 0)|list
"x"|center(5)
"a b-c"|wordcount
"%s-%s"|format(1, "a")
"%(a)s"|format(a=3)
d|attr("b")
s|attr("upper")
xs|length + 1
-3|abs
not xs|length
xs|length > 2 and s|length > 3
"a"|upper ~ "b"|upper
1 + 2|string
(1 + 2)|string + "x"
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
f is odd
n is number
t is number
t is integer
t is boolean
n is integer
f is float
s is string
d is mapping
xs is mapping
xs is sequence
s is sequence
d is sequence
n is sequence
d.items() is sequence
undef is sequence
undef is iterable
undef is string
n is iterable
s is iterable
d is iterable
xs|map("string") is iterable
nil is none
nil is not none
undef is none
undef is undefined
undef is not defined
d.zz is defined
d.b is defined
d.b.c is defined
t is true
n is true
1 is true
no is false
s is lower
"abc" is lower
"ABC" is upper
"12" is upper
n is eq 7
n is equalto(7)
n is == 7
n is ne 7
n is gt 3
n is lessthan 3
n is ge 7
1 is in xs
9 is not in xs
"a" is in "abc"
s is sameas s
nil is sameas none
1 is sameas true
range is callable
s is callable
"upper" is filter
"zzz" is filter
"odd" is test
"<"|safe is escaped
xs is eq [3, 1, 2]
not n is odd
n is odd and t
n is odd ~ "x"
-1 is number
xs[0] is odd
d.c[0] is odd
"a.b" is string and "." in "a.b"
dict(a=1, b=2)
dict([["a", 1]])
dict({"a": 1}, b=2)
namespace(a=1).a
namespace().zz is defined
namespace().zz.y
range(0)|list
range(5, 0, -2)|list
range(1, 2, 0)|list
range(100001)|length
range("a")
raise_exception("bad")
raise_exception(5)
strftime_now("%Y-%m-%d %H:%M")
range(3)|last
range(3)[1]
[1, 2, 3,]
{"a": 1,}
s.split("o")[0]
s.split("o")|first|upper
"a\
b"
'\x41\u00e9\U0001F600\101\q'
"a{{b}}%}"
{"a": {"b": {}}}.a.b
[[1, 2], [3]][0][1]
none
None
True
false
"nested 'quotes'" ~ 'nested "quotes"'
loop
loop.index
xs | length|string
(xs|first)
[1,2]|length is eq 2
1.0|tojson
0.1 + 0.2
1e22
123456789012345680.0
5e-324
1 // 0.0
"é" < "z"
"ab" in ["ab"]
[1] in [[1]]
{} or [] or 0 or "none left"
"%s" % none
"%s" % undef
"x" if not nil
1 ~ 2
1.0 ~ ""
true ~ false
"a" < undef
undef < 1
xs[none]
xs[true]
xs["0"]
xs[1.0]
d[1]
d[none]
d[[1]]
"a".b.c
s.upper().lower().title()
(d.items()|list)[0][1]
d.keys()|list
d.values()|list|length
d.keys()[0]
d|list|sort|join(",")
"a-b_c".replace("-", "_").split("_")
"  "|trim|length
"0"|int + 1
[3, 1]|sort|tojson
{"z": 1, "a": [1, {"y": null_is_undefined}]}
"a" is string is string
"""

STATEMENTS = [
    "{% for x in xs %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in xs %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for x in xs %}{{ loop.previtem }}|{{ loop.nextitem }};{% endfor %}",
    "{% for x in xs %}{{ loop.previtem is defined }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in xs if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in xs if x > 9 %}{{ x }}{% else %}empty{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in emoji %}[{{ c }}]{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [[1]] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in undef %}a{% endfor %}b",
    "{% for x in nil %}a{% endfor %}b",
    "{% for x in 5 %}a{% endfor %}b",
    "{% for x in undef.y %}a{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in xs %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set y = 0 %}{% for x in xs %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}",
    "{% for x in xs %}{% if x == 1 %}{% set z = x %}{% endif %}{{ z is defined }}{% endfor %}",
    "{% if t %}{% set y = 1 %}{% endif %}{{ y }}",
    "{% set ns = namespace(c=0) %}{% for x in xs %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.new = 'a' %}{{ ns.new }}{{ ns['new'] }}",
    "{% set d.x = 1 %}",
    "{% set undef.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x is string }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a', 'b') | trim %} abc {% endset %}[{{ x }}]",
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if e %}a{% elif nil %}b{% elif n %}c{% else %}d{% endif %}",
    "{% if undef %}a{% else %}b{% endif %}",
    "{% if undef.x %}a{% endif %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro fact(k) %}{% if k > 1 %}{{ k }}*{{ fact(k - 1) }}{% else %}1{% endif %}{% endmacro %}{{ fact(4) }}",
    "{% macro m() %}x{% endmacro %}{{ m() + 'y' }}{{ m() is string }}{{ m()|length }}",
    "{% set v = 1 %}{% macro m() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}",
    "{% macro m() %}{% set inner = 1 %}{% endmacro %}{{ m() }}{{ inner is defined }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ n }}{% endcall %}",
    "{% macro m(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) m(xs) %}({{ v }}){% endcall %}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}",
    "{% for x in xs %}{% macro q() %}{{ x }}{% endmacro %}{{ q() }}{% endfor %}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter replace('a', 'b')|upper %}aac{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% print n, s %}",
    "{% generation %}abc{{ n }}{% endgeneration %}d",
    "{% raw %}{{ x }}{% if %}{% endraw %}",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "a\n  {% raw %}\n x {% endraw %}\nb",
    "{# comment {{ x }} #}a",
    "a\n  {# c #}\nb",
    "a {#- c -#} b",
    "a\n{#+ c +#}\nb",
    "  {% if t %}\n  x\n  {% endif %}\ny",
    "  {%- if t -%}\n  x\n  {%- endif -%}\ny",
    "  {%+ if t +%}\n  x\n  {%+ endif +%}\ny",
    "a  {% if t %}b{% endif %}  c",
    "a\n\n{% if t %}\n\nb\n\n{% endif %}\n\nc",
    "{{ n }}\n{{ n }}\n",
    "{{ n -}}  \n x {{- n }}",
    "  {{ n }}  \n",
    "a\r\nb\rc\n",
    "line\n\n",
    "\n",
    "",
    "{{ '{{' }}{{ '%}' }}",
    "{ {a} {x }",
    "{",
    "{% for x in nested recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in xs recursive %}{{ loop.depth }}{% endfor %}",
    "{% for x in xs %}{{ loop(x) }}{% endfor %}",
    "{% set g = xs|map('string') %}{{ g|join }}{{ g|join }}.",
    "{% set g = xs|select('odd') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}.",
    "{% set items = d.items() %}{{ items|length }}{% for k, v in items %}{{ k }}{% endfor %}{% for k, v in items %}{{ k }}{% endfor %}",
    "{% for g, l in rows|groupby('k') %}{{ g }}:{{ l|length }};{% endfor %}",
    "{% for g in rows|groupby('k') %}{{ g.0 }}{{ g[1]|length }}{% endfor %}",
    "{% set loop = 5 %}{{ loop }}",
    "{% for loop in xs %}{{ loop }}{% endfor %}",
    "{% if x is defined and x.y %}{% endif %}ok",
    "{% set x = namespace(a=[1]) %}{% set x.a = x.a + [2] %}{{ x.a }}",
    "{% for x in xs %}{{ x }}{% else %}e{% endfor %}",
    "{% for x in xs %}{% break %}{% else %}e{% endfor %}",
    "{% set a = xs %}{% set a = a[1:] %}{{ a }}{{ xs }}",
    "{% if n in [1, 7] and s is string or no %}y{% endif %}",
    "{%if n%}tight{%endif%}",
    "{% if (n > 1) %}p{% endif %}",
    "{% if n: %}colon{% endif %}",
    "{{ n if n else }}",
    "{% for x in xs %}",
    "{% endfor %}",
    "{% if %}{% endif %}",
    "{{ }}",
    "{{ n",
    "{% break %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{% set true = 1 %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% unknown %}",
    "{{ x|nofilter }}",
    "{{ $ }}",
    "{{ 'a }}",
]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    moment = datetime.datetime(2026, 1, 15, 12, 0, 0)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = moment.strftime
    return env


def sources():
    for line in EXPRESSIONS.strip().split("\n"):
        parts = line.split("|")
        # A bar inside a string of an expression splits it wrongly: rejoin until the quotes balance.
        part = ""
        for piece in parts:
            part = part + "|" + piece if part else piece
            if part.count('"') % 2 == 0 or "\\" in part:
                yield "{{ " + part + " }}"
                part = ""
    for line in FILTERS.strip("\n").replace("\\\nb", "\\\0b").split("\n"):
        yield "{{ " + line.replace("\0", "\n") + " }}"
    yield from STATEMENTS


def main():
    env = environment()
    cases = []
    for source in sources():
        case = {"source": source}
        try:
            case["rendered"] = env.from_string(source).render(**CONTEXT)
        except Exception as error:  # every kind of error is a result here
            case["error"] = f"{type(error).__name__}: {error}"
        if " at 0x" in case.get("rendered", "") or "of str object at" in case.get("rendered", ""):
            continue  # prints an address
        cases.append(case)
    OUT.write_text(json.dumps({"context": CONTEXT, "cases": cases}, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(cases)} cases, {sum('error' in c for c in cases)} of them errors")


if __name__ == "__main__":
    main()
