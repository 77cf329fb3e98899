"""Writes cases.json: what Jinja2 makes of templates, with the settings of transformers.

    python3 -m pip install jinja2==3.1.6
    python3 tests/data/jinja/generate.py

Written templates come first, then expressions that are put together by chance. `--count N --seed S --all` prints
more of them than the file keeps, for a longer comparison.
"""

import argparse
import json
import random
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent

VARIABLES = {
    "s": "Hello, wörld",
    "t": " a-b  c\n",
    "e": "",
    "n": 7,
    "z": 0,
    "m": -3,
    "f": 2.5,
    "b": True,
    "no": None,
    "l": [3, 1, 2],
    "w": ["b", "A", "c", "a"],
    "el": [],
    "d": {"x": 1, "y": "two", "items": [1, 2], "None": None},
    "ed": {},
    "deep": {"a": {"b": [{"c": "end"}]}},
    "r": [{"k": "u", "v": 2, "g": "A"}, {"k": "v", "v": 1, "g": "b"}, {"k": "w", "v": 3, "g": "a"}],
}

# Templates by their kind.
WRITTEN = {
    "space": [
        "a\r\nb\r\n", "a\rb", "a\n\n", "{% if b %}\nx\n{% endif %}\ny", "  {% if b %}  x{% endif %}  \n  y",
        "x {%- if b -%} y {%- endif -%} z", "  {%+ if b %}x{% endif +%}\ny", "a\n  {# note #}\nb", "a {#- note -#} b",
        "{{ s }}\n{{ n }}\n", "  {{ n }}\n", "{% raw %}{{ x }}{% endraw %}\nb", "{%- raw -%} a {%- endraw -%} b",
        "{% set x = 1 %}\n\nq", "\n{% set x = 1 %}q", "a\t\n\t{%- set x = 1 %}\nq", "{% for i in l %}\n{{ i }}\n{% endfor %}\n.",
        "{% for i in l %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}", "{{- n -}}  x", "a{{ n -}}\n\n b",
        "{#\n#}\nx", "{% if b -%}\n  x\n{%- endif %}", "    {%- if b %} a\n    {%- endif %}\nb", "é {%- if b %} ü{% endif %}",
        "{% if b %}a{% endif %}\r\nb\r\n", "x\n\n  {% if b %}\n y\n  {% endif %}\n",
    ],
    "loops": [
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for x in el %}a{% else %}none{% endfor %}",
        "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }}{% endfor %}",
        "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
        "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}",
        "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for x in l %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% break %}{% endfor %}",
        "{% for x in [[1, [2]], [3, []]] recursive %}{{ x[0] if x is sequence else x }}{{ loop.depth }}{% if x is sequence and x[1] %}({{ loop([x[1]]) }}){% endif %}{% endfor %}",
        "{% for x in l %}{% for y in w %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
        "{% set x = 0 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
        "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
        "{% for c in s %}{{ c }}.{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}",
        "{% for a, (c, d) in [(1, (2, 3))] %}{{ a }}{{ c }}{{ d }}{% endfor %}", "{% for x in no %}{% endfor %}",
        "{% for i in range(3) %}{{ i }}{% endfor %}{{ loop is defined }}", "{% for x in l %}{{ x }}{% endfor %}{{ x is defined }}",
        "{% for i in range(10, 0, -3) %}{{ i }} {% endfor %}", "{% for x in l|reverse %}{{ x }}{% endfor %}",
        "{% for g in r|groupby('g') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}",
        "{% for g, i in r|groupby('g', case_sensitive=true) %}{{ g }}{{ i|map(attribute='k')|join }} {% endfor %}",
        "{% for row in l|batch(2, 'x') %}{{ row|join('-') }};{% endfor %}", "{% for row in w|slice(3) %}{{ row|join }};{% endfor %}",
        "{% for x in l|sort(reverse=true) %}{{ x }}{% endfor %}",
    ],
    "macros": [
        "{% macro f(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}",
        "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}",
        "{% macro f() %}<{{ caller(1) }}>{% endmacro %}{% call(x) f() %}in{{ x }}{% endcall %}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% set x %}a{{ n }}{% endset %}{{ x|length }}{{ x }}", "{% set x | upper %}abc{% endset %}{{ x }}",
        "{% set a, c = 1, 2 %}{{ a }}{{ c }}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% with a = 1, c = n %}{{ a }}{{ c }}{% endwith %}{{ a is defined }}",
        "{% macro f() %}{{ q }}{% endmacro %}{% set q = 5 %}{{ f() }}", "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}",
        "{% if z %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{{ 'a' if z else 'b' }}{{ 'x' if z }}", "{% set ns = namespace(a=1) %}{% set ns.c = 2 %}{{ ns.a + ns.c }}{{ ns.q is defined }}",
        "{% block x %}in{% endblock %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
        "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% generation %}a{% endgeneration %}\nb",
        "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "{{ raise_exception('no') }}", "{% break %}", "{% if %}", "{{ 1 +",
        "{% unknown %}", "{{ x|unknown }}", "{{ x is unknown }}", "{{ l.append(4) }}", "{{ d.update({}) }}", "{% set l.x = 1 %}",
    ],
    "odd": [
        "{{ 'a,b,c'.rsplit(',', 1)[-1] }}", "{{ '%s' % s }}", "{{ x.undefined|length }}", "{{ x|length }}", "{{ x }}{{ x is defined }}{{ d.q }}",
        "{{ x.y }}", "{{ d.q.r }}", "{{ x + 1 }}", "{{ x ~ 'a' }}", "{{ x == y }}", "{{ not x }}", "{{ x|default('d') }}{{ e|default('d') }}{{ e|d('d', true) }}",
        "{{ d.items() }}", "{{ d.keys()|list }}{{ d.values()|list }}", "{{ d['items'] }}{{ d.x }}{{ d['x'] }}{{ d.get('q') }}{{ d.get('q', 5) }}",
        "{{ d.items is callable }}", "{{ l[5] }}{{ l[-1] }}{{ l[5] is defined }}", "{{ s[0] }}{{ s[-1] }}{{ s[1:4] }}{{ s[::-1] }}", "{{ l.0 }}{{ r.0.k }}",
        "{{ 1 < n < 10 }}{{ 1 < n < 5 }}", "{{ n in l }}{{ 3 in l }}{{ 'x' in d }}{{ 'lo' in s }}{{ 1 not in l }}", "{{ 3 in s }}", "{{ 'a' < 1 }}",
        "{{ [1, 'a', none, true, 2.0, {'k': ()}, (1,)] }}", "{{ \"it's\" }}{{ ['it\\'s', '\"', 'a\\n', 'é\\u200b'] }}", "{{ 1e20 }} {{ 1e-7 }} {{ 1.0 }} {{ 3 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
        "{{ 1 / 0 }}", "{{ 'ab' * 2 }}{{ [1] * 2 }}{{ 'a' * -1 }}", "{{ 'a' 'b' }}", "{{ (1, 2) }}{{ 1, 2 }}", "{{ true and 'x' }}{{ none or 'y' }}{{ z or e }}",
        "{{ '%05.1f|%-4s|%+d|%x|%%' % (f, 'a', n, 255) }}", "{{ '%(a)s' % {'a': 1} }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % (1,) }}", "{{ '%s' % (1, 2) }}",
        "{{ '{} {1} {a} {0:>5}|{2:.2f}'.format('x', 'y', f, a=1) }}", "{{ '{}-{}'.format(1, [2]) }}", "{{ '{0[a]}'.format({'a': 3}) }}", "{{ '{:,}'.format(1234567) }}", "{{ '{:08.3f}'.format(3.14159) }}", "{{ '{{}}'.format() }}",
        "{{ 'a|b'|replace('|', '-') }}", "{{ l|tojson }}{{ d|tojson }}{{ s|tojson }}{{ '<&>'|tojson }}", "{{ d|tojson(indent=2) }}", "{{ x|tojson }}", "{{ {1: 2, none: 3, 'é': 1.0}|tojson(ensure_ascii=true) }}",
        "{{ l|map('string')|join('+') }}", "{{ r|map(attribute='k')|list }}", "{{ r|map(attribute='q', default='-')|list }}", "{{ r|selectattr('v', 'gt', 1)|map(attribute='k')|join }}", "{{ r|rejectattr('g', 'equalto', 'A')|list|length }}",
        "{{ l|select('odd')|list }}{{ l|reject('odd')|list }}{{ ['', 'a']|select|list }}", "{{ r|sort(attribute='v')|map(attribute='k')|join }}", "{{ r|sort(attribute='g,v')|map(attribute='k')|join }}", "{{ w|sort }}{{ w|sort(case_sensitive=true) }}", "{{ w|unique|list }}{{ w|min }}{{ w|max }}",
        "{{ r|sum(attribute='v') }}{{ l|sum }}{{ [0.1, 0.2]|sum }}", "{{ d|dictsort }}", "{{ {'b': 1, 'a': 2}|dictsort }}{{ {'b': 1, 'a': 2}|dictsort(by='value') }}", "{{ f|round }}{{ 2.675|round(2) }}{{ 7|round }}{{ f|round(method='ceil') }}{{ 1234|round(-2) }}",
        "{{ '12'|int }}{{ 'x'|int(3) }}{{ '2.9'|int }}{{ 'ff'|int(0, 16) }}{{ ' 5 '|int }}{{ '1.5'|float }}{{ 'x'|float }}", "{{ m|abs }}{{ 'a b'|title }}{{ \"foo-bar (baz's)\"|title }}{{ \"foo-bar baz's\".title() }}", "{{ 'a\\nb\\n\\nc'|indent(2) }}", "{{ 'a\\nb\\n\\nc'|indent(2, true, true) }}", "{{ 'a b c d'|truncate(5, leeway=0) }}{{ 'abcdefgh'|truncate(5, true, '.', 0) }}", "{{ 'a b'|wordcount }}{{ s|center(16) }}|", "{{ '<b>x</b>'|striptags }}{{ '<a>'|e }}{{ 'a b/ü'|urlencode }}",
        "{{ l|first }}{{ l|last }}{{ el|first is defined }}{{ s|first }}", "{{ s|list }}{{ d|list }}", "{{ s|reverse }}{{ l|reverse|list }}", "{{ l is iterable }}{{ s is iterable }}{{ n is iterable }}{{ d is mapping }}{{ l is sequence }}{{ s is string }}{{ b is boolean }}{{ n is number }}{{ b is number }}{{ b is integer }}{{ f is float }}{{ no is none }}",
        "{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ n is eq 7 }}{{ n is in l }}{{ 'a' is lower }}{{ n is sameas 7 }}{{ x is undefined }}{{ b is true }}{{ 1 is true }}", "{{ n is not none and n is defined }}", "{{ {'a': 1, 'a': 2} }}{{ {1: 'x', true: 'y'} }}", "{{ [] == [] }}{{ [1] == (1,) }}{{ 1 == 1.0 }}{{ 1 == true }}{{ 'a' == none }}{{ {'a': 1} == {'a': 1.0} }}",
        "{{ dict(a=1, b=2) }}{{ dict([('a', 1)]) }}{{ dict({'a': 1}, b=2) }}", "{{ range(3)|list }}{{ range(2, 5)|list }}{{ range(0) | list }}", "{{ range(1000000) }}", "{{ l|join(', ') }}{{ [1, none, 'a']|join }}{{ '-'.join(w) }}", "{{ ','.join(l) }}", "{{ 'abc'|attr('upper') is callable }}{{ d|attr('x') is defined }}",
        "{{ 0x1F }}{{ 0b11 }}{{ 0o17 }}{{ 1_000 }}{{ 1.5e3 }}", "{{ '\\x41\\u00e9\\t|\\\\|\\'' }}", "{{ 'a'.b is defined }}{{ 'a'.upper() }}{{ 'a'['upper']() }}", "{{ s.__class__ }}", "{{ -n|abs }}{{ -(n)|abs }}{{ - 3 + 5 }}{{ 2 * 3 + 4 ~ 'x' }}{{ 1 + 2 ~ 3 + 4 }}", "{{ not n == 7 }}{{ not (n == 7) or b }}", "{{ ['a', 'b'][1] }}{{ {'k': 'v'}['k'] }}{{ {'k': 'v'}.k }}{{ 'abc'[1] }}", "{{ l if l else 'none' }}{{ 'a' if el else 'b' if z else 'c' }}", "{{ (n > 5) ~ (n < 5) }}", "{{ [l, d]|length }}{{ d|length }}{{ s|length }}{{ s|count }}", "{{ n|length }}", "{{ l|items|list }}", "{{ d|items|list }}{{ missing|items|list }}", "{% if r|selectattr('v', 'gt', 9) %}yes{% endif %}{% if r|selectattr('v', 'gt', 9)|list %}no{% endif %}", "{{ r|map(attribute='k')|length }}",
        "{{ '1' + 1 }}", "{{ [1] + (2,) }}", "{{ l + w }}", "{{ d + d }}", "{{ n() }}", "{{ s.upper }}" if False else "{{ s.nothing() }}", "{{ s.split(sep=' ') }}{{ 'a  b'.split() }}{{ 'a b c'.split(none, 1) }}{{ 'a,b,c'.split(',', 1) }}", "{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}", "{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('bc', 0, 2) }}{{ 'abc'.startswith('b', 1) }}", "{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'abcabc'.count('bc') }}{{ 'abc'.find('x') }}{{ 'abcabc'.find('a', 1) }}{{ 'abc'.index('x') }}",
        "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('x') }}{{ 'abc'.rpartition('x') }}", "{{ 'xxaxx'.strip('x') }}{{ 'xxa'.lstrip('x') }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}", "{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.center(4, '*') }}{{ 'ab'.center(5, '*') }}{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3, '.') }}", "{{ 'aBc'.swapcase() }}{{ 'aBc'.capitalize() }}{{ 'ß'.upper() }}{{ 'STRASSE'.casefold() }}", "{{ 'aaa'.replace('a', 'b', 2) }}{{ 'abc'.replace('', '-') }}", "{{ 'a\\tb'.expandtabs(4) }}", "{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'a'.isalpha() }}{{ ' '.isspace() }}{{ 'A'.isupper() }}{{ 'Ab Cd'.istitle() }}{{ ''.isdigit() }}{{ 'é'.isascii() }}{{ 'a_1'.isidentifier() }}", "{{ l.count(1) }}{{ l.index(2) }}{{ (1, 2).index(2) }}", "{{ l.index(9) }}", "{{ 2.0.is_integer() }}", "{{ '{a}'.format_map({'a': 1}) }}",
    ],
}


class GenerationTag(Extension):
    """The tag of transformers that marks the assistant's text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


ENVIRONMENT = environment()


def rendered(template):
    try:
        return {"text": ENVIRONMENT.from_string(template).render(**VARIABLES)}
    except Exception:  # Whatever it is: another engine has errors of its own.
        return {"error": True}


class Maker:
    """Puts expressions of a type together."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *choices):
        return self.random.choice(choices)

    def text(self, depth):
        simple = ["s", "t", "e", "'a'", "'b,c'", "'<x>'", "\"it's\"", "d.y", "deep.a.b[0].c", "'é日'"]
        if depth == 0:
            return self.one(*simple)
        a, b, i, j = self.text(depth - 1), self.text(depth - 1), self.int(depth - 1), self.int(0)
        words = self.list_of_text(depth - 1)
        return self.one(
            self.one(*simple), f"({a} ~ {b})", f"({a} + {b})", f"({a})[{i}:]", f"({a})[:{j}]", f"({a})[::{self.one(-1, 2, -2)}]",
            f"({a}).{self.one('upper', 'lower', 'strip', 'title', 'capitalize', 'lstrip', 'rstrip', 'swapcase')}()",
            f"({a}).strip({b})", f"({a}).replace({b}, {self.text(0)})", f"({a})|{self.one('upper', 'lower', 'trim', 'title', 'capitalize', 'string', 'reverse', 'e', 'tojson', 'length', 'first', 'last')}",
            f"({words})|join({b})", f"({b}).join({words})", f"({a} if {self.bool(depth - 1)} else {b})", f"'%s-%r' % ({a}, {i})", f"'{{}}:{{}}'.format({a}, {i})",
            f"({a}).{self.one('split', 'rsplit')}({b}){self.one('[0]', '[-1]')}", f"({a})|replace({b}, '_')", f"({a})|default({b}, true)", f"({words})|{self.one('first', 'last', 'min', 'max')}",
            f"({a} or {b})", f"({a} and {b})", f"({a}) * {self.one(0, 2, -1)}", f"({a}).{self.one('ljust', 'rjust', 'center')}({self.one(3, 6, 9)}, '.')", f"({a}).zfill({self.one(2, 5)})",
            f"({a}).partition({b})[{self.one(0, 1, 2)}]", f"({a})|indent({self.one(1, 2)})", f"({a})|truncate({self.one(4, 8)})", f"({a}).splitlines()|join('/')", f"({a})|list|join('.')", f"({i})|string",
        )

    def int(self, depth):
        simple = ["n", "z", "m", "1", "2", "-2", "d.x", "l[0]"]
        if depth == 0:
            return self.one(*simple)
        a, b = self.int(depth - 1), self.int(depth - 1)
        return self.one(
            self.one(*simple), f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} // {b})", f"({a} % {b})", f"({self.text(depth - 1)})|length", f"({self.items(depth - 1)})|length",
            f"({a})|abs", f"({self.text(depth - 1)}).{self.one('find', 'count', 'rfind')}({self.text(0)})", f"({self.items(depth - 1)})|sum", f"({self.text(0)})|int", f"-({a})", f"({a}) ** 2", f"({a} if {self.bool(depth - 1)} else {b})", f"({self.number(depth - 1)})|int",
        )

    def number(self, depth):
        if depth == 0:
            return self.one("f", "0.1", "1e3", "n", "-2.5")
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.one(f"({a} / {b})", f"({a} + {b})", f"({a} * {b})", f"({a})|round(1)", f"({a} // {b})", f"({a} % {b})", f"({a})|float", f"({self.int(depth - 1)})", f"({a})|round", f"'%.2f' % ({a})", f"'{{:.3g}}'.format({a})", f"'{{:{self.one('>8', '<8', '^8', '08')}.1f}}'.format({a})")

    def bool(self, depth):
        if depth == 0:
            return self.one("b", "z", "e", "no", "l", "missing", "d", "true")
        a, b = self.text(depth - 1), self.int(depth - 1)
        return self.one(
            f"{a} == {self.text(depth - 1)}", f"{b} {self.one('<', '<=', '>', '>=', '!=', '==')} {self.int(depth - 1)}", f"{a} in {self.text(depth - 1)}", f"{b} in {self.items(depth - 1)}", f"{a} not in {self.list_of_text(depth - 1)}", f"not {self.bool(depth - 1)}",
            f"({self.bool(depth - 1)} and {self.bool(depth - 1)})", f"({self.bool(depth - 1)} or {self.bool(depth - 1)})", f"{self.any(depth - 1)} is {self.one('defined', 'none', 'string', 'number', 'mapping', 'sequence', 'iterable', 'boolean', 'integer', 'float', 'true', 'undefined')}",
            f"{self.any(depth - 1)} is not {self.one('defined', 'none', 'string', 'sequence')}", f"({a}).{self.one('startswith', 'endswith')}({self.text(0)})", f"({a}).{self.one('isdigit', 'isalpha', 'isupper', 'islower', 'isspace', 'isalnum')}()", f"{a} < {self.text(depth - 1)}", f"{self.items(depth - 1)} == {self.items(depth - 1)}", f"missing.{self.one('a', 'b')} is defined" if depth > 1 else "d.q is defined",
        )

    def items(self, depth):
        simple = ["l", "el", "[1, 2]", "d['items']", "range(4)|list", "[n, z]"]
        if depth == 0:
            return self.one(*simple)
        a, i = self.items(depth - 1), self.int(depth - 1)
        return self.one(
            self.one(*simple), f"({a} + {self.items(depth - 1)})", f"({a})[{i}:]", f"({a})[:{i}]", f"({a})[::-1]", f"({a})|sort", f"({a})|reverse|list", f"({a})|unique|list", f"({a})|select('{self.one('odd', 'even')}')|list", f"({a})|reject('gt', {self.int(0)})|list", f"({a})|map('abs')|list", f"[{i}, {self.int(0)}]", f"r|map(attribute='v')|list", f"r|sort(attribute='{self.one('k', 'v', 'g')}')|map(attribute='v')|list", f"r|selectattr('v', '{self.one('gt', 'le', 'ne')}', {self.int(0)})|map(attribute='v')|list", f"({a}) * 2", f"({a})|batch(2)|first|default([])",
        )

    def list_of_text(self, depth):
        if depth == 0:
            return self.one("w", "['x', 'y']", "d|list", "[]", "['']")
        a = self.list_of_text(depth - 1)
        return self.one(f"({self.text(depth - 1)}).split({self.text(0)})", f"({self.text(depth - 1)}).split()", f"({self.text(depth - 1)}).rsplit({self.text(0)}, 1)", f"({a})|map('{self.one('upper', 'trim', 'title')}')|list", f"({a})|sort", f"({a})[1:]", f"({self.text(depth - 1)})|list", f"r|map(attribute='{self.one('k', 'g')}')|list", f"d.keys()|list", f"({a})|unique|list", f"({a})|reject('in', {self.list_of_text(0)})|list", f"({self.text(depth - 1)}).splitlines()", f"[{self.text(depth - 1)}, {self.text(0)}]")

    def dict(self, depth):
        if depth == 0:
            return self.one("d", "ed", "deep", "{'a': 1}")
        return self.one(self.dict(0), f"{{{self.text(depth - 1)}: {self.any(depth - 1)}, 'k': {self.int(0)}}}", f"dict({self.dict(depth - 1)}, q={self.any(depth - 1)})", f"({self.dict(depth - 1)})|dictsort", f"({self.dict(depth - 1)}).items()|list", f"({self.dict(depth - 1)}).get({self.text(0)}, {self.any(0)})", f"({self.dict(depth - 1)})|tojson")

    def any(self, depth):
        kind = self.one(self.text, self.int, self.items, self.dict, self.bool, self.number, self.list_of_text)
        return self.one(kind(depth), kind(depth), kind(depth), "missing" if depth == 0 else kind(depth))


def is_stable(outcome):
    text = outcome.get("text", "")
    return " object" not in text and " at 0x" not in text and len(text) < 200


def made(seed, count):
    maker = Maker(seed)
    while count > 0:
        expression = maker.any(maker.random.choice([1, 2, 2, 3]))
        if len(expression) > 120:
            continue
        template = "{{ " + expression + " }}"
        outcome = rendered(template)
        # Errors are as interesting, but they are soon the same.
        if is_stable(outcome) and ("text" in outcome or maker.random.random() < 0.2):
            count -= 1
            yield {"template": template, **outcome}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    cases = []
    for templates in WRITTEN.values():
        cases += [{"template": template, **rendered(template)} for template in templates]
    cases += made(arguments.seed, arguments.count)
    document = {"versions": {"jinja2": jinja2.__version__}, "variables": VARIABLES, "cases": cases}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = json.dumps({key: document[key] for key in ("versions", "variables")}, ensure_ascii=False)
    text = head[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    if arguments.all:
        print(text)
    else:
        (HERE / "cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
