#!/usr/bin/env python3
"""Writes jinja_goldens.json: small templates and what jinja2 prints for them.

usage: make_jinja_goldens.py OUT.json
Each entry: [template, text], the text null where jinja2 raises an error.
"""
import json
import sys

from jinja_environment import MADE_BY, render

VARIABLES = {
    "n": 7, "m": -3, "x": 2.5, "yes": True, "no": False, "nil": None, "empty": "", "zero": 0,
    "s": "Hello World", "t": "  padded\t\n", "u": "Ωmega ü 日本 \U0001F600", "q": "it's \"quoted\" \\ back",
    "many": "a,b,,c", "lines": "one\ntwo\r\nthree\n\nfive", "ctl": "a\x00b\x7f\u200b\xad\u2028c",
    "list": [1, "two", 3.0, None, True, [4, "ü"], {"k": "v"}], "nums": [5, 3, -1, 4, 3], "words": ["pear", "Apple", "fig", "apple"],
    "things": {"b": 1, "a": [1, 2], "items": "shadow", "get": "g", "C": {"d": None}}, "nothing": {}, "nolist": [],
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30, "admin": True}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
    "markup": "<b>&'\"</b>", "big": 9007199254740993, "tiny": 1e-7, "huge": 1e22, "mixed": {"1": 1, "z": "<>&'\"", "é": "\u2028\x01\t"},
}

EXPRESSIONS = r"""
n
m
x
yes
no
nil
empty
missing
s
u
q
ctl
list
things
nothing
nolist
people[0]
(1,)
(1, 2)
()
[]
{}
[missing]
[q, u, ctl, t]
'\x41\u00e9\U0001F600\n\t\'\"\\\q\101'
'a' 'b' "c"
1.0
1e16
1e15
123456789.123
0.1 + 0.2
1e-5
0.0001
tiny
huge
-0.0
100000000000000000000.0
1_000
1_0.5_0
1e3
2**10
2**-1
2**0.5
-2**2
2**3**2
(-8)**2
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 // 2
7.5 % -2
-7.5 % 2
1 / 3
6 / 3
1 / 0
1 // 0
1 % 0
1.0 / 0
n + x
n - m
n * m
yes + 1
yes + yes
-yes
+n
-x
n + s
s + n
s + s
s ~ n
1 ~ 2
nil ~ missing ~ yes ~ x
'ab' * 3
3 * 'ab'
'ab' * -1
[1] * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
n == 7
n == 7.0
yes == 1
'a' == 'a'
'a' < 'b'
'Z' < 'a'
'a' < 1
nil == none
nil == missing
missing == missing
missing == ''
missing < 1
[1, 2] == [1, 2]
[1, 2] == (1, 2)
[1, 2] < [1, 3]
{'a': 1} == {'a': 1.0}
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
big == 9007199254740992.0
big
big + 1
1 in nums
3 in nums
9 not in nums
'ell' in s
'x' in s
'' in s
1 in s
missing in s
'a' in things
'z' in things
[1] in things
1 in missing
none in list
yes and n
no and n
no or n
n or no
not n
not missing
not not s
no or missing
n if yes else m
n if no else m
n if no
(n if no) is defined
(n if no).foo
n if no else m if no else x
s[0]
s[-1]
s[99]
s[-99]
u[0]
u[-1]
u[6]
list[0]
list[-1]
list[99]
list['foo']
list[1.0]
list[yes]
things['a']
things['zz']
things.a
things['items']
things.get('a')
things.get('zz')
things.get('zz', 5)
things.C.d
things.C.e
things.C.e.f
things[1]
things[[]]
missing.foo
missing['foo']
missing[0]
missing()
nil.foo
nil['foo']
n.foo
n[0]
s.foo
s['upper']()
list.0
list.5.1
s[1:3]
s[:3]
s[-3:]
s[::-1]
s[::2]
s[5:1:-1]
s[::-2]
u[1:3]
u[::-1]
u[::3]
u[-2:]
s[10:2]
s[1:2:3]
s[::0]
list[1:3]
list[::-1]
nums[-2:]
nums[:-1]
nums[1:-1]
nums[10:]
(1, 2, 3)[1:]
missing[1:]
nil[1:]
things[1:]
s['a':]
s[none:2]
s | upper
s | lower
s | title
s | capitalize
'foo-bar (baz) [qux] <x> {y} a1b' | title
"they're bill's" | title
"they're bill's friends-x" .title()
s | length
u | length
list | count
things | length
missing | length
n | length
nil | length
range(5) | length
t | trim
'xxaxx' | trim('x')
u | trim('Ω ')
nil | trim
n | string
nil | string
x | string
list | string
missing | string
s | list
u | list
things | list
missing | list
n | list
range(3) | list
range(2, 8, 3) | list
range(5, 0, -2) | list
range(0)
range(1, 4)
range(1, 10, 3)
range(5)[2]
range(5)[-1]
range(5)[9]
range('a')
range(100001)
nums | join
nums | join(', ')
words | join('-')
list | join('|')
s | join('.')
missing | join
n | join
people | join(', ', attribute='name')
nums | first
nums | last
nolist | first
nolist | last
s | first
s | last
u | first
u | last
things | first
things | last
missing | first
missing | last
nums | reverse | list
s | reverse
u | reverse
things | reverse | list
range(3) | reverse | list
missing | default('d')
missing | default
missing | d('x')
nil | default('d')
nil | default('d', true)
empty | default('d', true)
empty | default('d')
n | default('d', boolean=true)
missing.foo | default('x')
s | replace('o', '0')
s | replace('o', '0', 1)
s | replace('', '-')
s | replace('l', '')
s | replace('', '-', 3)
u | replace('', '.')
n | replace(7, 8)
s | replace('World', n)
s.replace('l', 'L')
s.replace('l', 'L', 2)
s.replace('', '-', 2)
s.replace(1, 2)
list | tojson
things | tojson
things | tojson(indent=2)
things | tojson(indent=4)
things | tojson(indent=0)
list | tojson(indent=2)
nothing | tojson(indent=2)
nolist | tojson(indent=2)
people | tojson(indent=1)
things | tojson(separators=(',', ':'))
things | tojson(sort_keys=true)
things | tojson(indent='--')
mixed | tojson
mixed | tojson(ensure_ascii=true)
u | tojson
u | tojson(ensure_ascii=true)
q | tojson
ctl | tojson
ctl | tojson(ensure_ascii=true)
markup | tojson
x | tojson
1e16 | tojson
missing | tojson
range(3) | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{'a': (1, 2)} | tojson
'nan' | float | tojson
'inf' | float
'12' | int
' 12 ' | int
'12.7' | int
'-3' | int
'abc' | int
'abc' | int(5)
'1_000' | int
'0x10' | int
12.9 | int
-12.9 | int
nil | int
yes | int
missing | int
list | int
'1e3' | int
'' | int
'12.5' | float
'abc' | float
'abc' | float(1.5)
n | float
nil | float
' 1.5 ' | float
'1e400' | float
-5 | abs
(-5) | abs
x | abs
-2.5 | abs
s | abs
2.5 | round
3.5 | round
2.567 | round(2)
2.675 | round(2)
n | round
2.1 | round(method='ceil')
-2.1 | round(method='floor')
2.15 | round(1, 'ceil')
2.5 | round | int
1.005 | round(2)
things.items() | list
things.keys() | list
things.values() | list
things.C.items()
things.C.keys()
things.C.values()
things | items | list
missing | items | list
nil | items | list
things | dictsort
things.C | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort(true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(false, 'value')
{'b': 1, 'A': 2, 'c': 0} | dictsort(reverse=true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(by='foo')
nums | sort
nums | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(reverse=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='name') | map(attribute='name') | list
people | sort(attribute='age', reverse=true) | map(attribute='name') | list
list | sort
[1, 'a'] | sort
things | sort
nums | unique | list
words | unique | list
words | unique(case_sensitive=true) | list
people | unique(attribute='age') | map(attribute='name') | list
nums | min
nums | max
words | min
words | max
nolist | min
people | map(attribute='name') | list
people | map(attribute='admin') | list
people | map(attribute='admin', default=false) | list
people | map(attribute='tags.0') | list
people | map(attribute='tags.0', default='none') | list
words | map('upper') | list
words | map('replace', 'p', 'P') | join(',')
nums | map('string') | join('+')
['a b', 'c'] | map('length') | list
missing | map('upper') | list
nums | select('odd') | list
nums | select('gt', 3) | list
nums | select('>=', 3) | list
nums | reject('odd') | list
list | select | list
list | reject('none') | list
list | select('string') | list
people | selectattr('admin') | map(attribute='name') | list
people | rejectattr('admin') | map(attribute='name') | list
people | selectattr('age', 'equalto', 30) | list | length
people | selectattr('age', '==', 30) | map(attribute='name') | join
people | selectattr('name', 'in', ['Ann', 'Cy']) | list | length
people | rejectattr('age', 'eq', 30) | map(attribute='name') | list
people | selectattr('tags', 'defined') | map(attribute='name') | list
people | selectattr('age', 'odd') | first
(people | selectattr('age', 'eq', 30) | first).name
(people | selectattr('age', 'eq', 99) | first) is defined
(people | selectattr('age', 'eq', 30))[0] is defined
people | selectattr('missing.deep') | list
(nums | select('odd')) is iterable
(nums | select('odd')) is sequence
(nums | select('odd')) | length
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, blank=true)
lines | indent('> ', first=true)
'a\n' | indent
'' | indent
'a\r' | indent(1)
n | indent
markup | safe
(markup | safe) ~ '<'
'<' ~ (markup | safe)
'<' + (markup | safe)
(markup | safe) + '<&>'
(('<' | safe) + '<') ~ '<'
s | upper | lower | title | length
s is string
n is string
missing is string
nil is none
missing is none
n is number
x is number
yes is number
s is number
n is integer
yes is integer
x is integer
x is float
n is float
yes is boolean
n is boolean
yes is true
no is false
1 is true
no is true
things is mapping
list is mapping
missing is mapping
list is sequence
s is sequence
things is sequence
n is sequence
missing is sequence
range(2) is sequence
things.items() is sequence
list is iterable
n is iterable
s is iterable
missing is iterable
nil is iterable
things.items() is iterable
n is defined
missing is defined
missing is undefined
things.zz is defined
things.zz is undefined
things.items is defined
list.append is defined
n is odd
n is even
4 is even
s is odd
n is divisibleby 7
n is divisibleby(2)
n is divisibleby 0
n is eq 7
n is equalto(7.0)
n is == 7
n is ne 7
n is lt 8
n is gt(8)
n is in nums
3 is in [1, 2, 3]
'a' is in 'abc'
n is not none
n is not defined
not n is defined
nil is sameas none
yes is sameas true
1 is sameas true
range is callable
s is callable
n is defined and m is defined
n is defined or zz.zz
raise_exception is defined
strftime_now is defined
namespace is defined
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
strftime_now('%B %-d, %Y %H:%M:%S %A %j %p %I %y %%')
s.upper()
s.lower()
s.title()
s.capitalize()
t.strip()
t.lstrip()
t.rstrip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'a'.strip(none)
u.strip('Ω\U0001F600')
'\u00a0\u2003a\u3000\x1c'.strip()
'\u200ba\ufeff'.strip()
many.split(',')
many.split(',', 1)
many.split(',', 0)
many.split(',,')
many.split('')
'  a  b c '.split()
'  a  b c '.split(none, 1)
'  a  b c '.split(none, 0)
' \u2003a\u00a0b '.split()
''.split()
''.split(',')
many.split(sep=',', maxsplit=2)
many.split(',')[-1]
'a</think>b</think>c'.split('</think>')[-1].lstrip('\n')
s.split('o')[0]
s.split(1)
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('')
s.endswith('ld')
s.endswith(('x', 'y'))
s.startswith(1)
s.find('o')
s.find('zz')
u.find('日')
'a-b'.removeprefix('a-')
'a-b'.removeprefix('b')
'a-b'.removesuffix('-b')
', '.join(['a', 'b'])
', '.join(words)
'-'.join('abc')
','.join(nums)
'{}-{}'.format(1, 'a')
'{0}{1}{0}'.format('a', 'b')
'{a}{{}}'.format(a=nil)
'{}'.format()
'{}{}'.format(x, list)
'{'.format(1)
missing.upper()
n.upper()
list.append(1)
things.pop('a')
things.update({'a': 1})
list.append
s.upper(1)
things.get()
raise_exception('no')
namespace(a=1).a
namespace(a=1).b
namespace(a=1)['a']
namespace({'a': 2}).a
namespace(_a=1)
n is defined if yes else no
[x for x in nums]
{'a': 1, 'a': 2}
{1: 'a', true: 'b', 1.0: 'c'}
{'k': [1, {'z': (2, 3)}]}
{none: 1}[none]
((n))
(n, m)[0]
n if s is string and n is number
[1, 2,]
{'a': 1,}
('a',)
"%s" | upper
'é' | length
'é' in u
s == 'Hello World' and n == 7
1 if s else 2
'x' if missing is undefined else 'y'
messages[0]['role'] == 'system'
messages[0].content
messages[1:][0].role
messages[-1]['content'] | trim
messages | length - 1
messages | map(attribute='role') | join('/')
messages | selectattr('role', 'equalto', 'user') | list | last
(messages | last).role
loop is defined
true
True
none
None
false
nope
"\
x"
'\400'
1 if
)
n n
n |
n | nope
n is nope
{{ n }}
'unclosed
1 +
a.b.c.d
things.a.1
things['a'][-1]
'a' ~ 1 + 2
'a' ~ (1 + 2)
1 + 2 ~ 'a'
n * 2 ~ 'a'
-n | abs
- n
n == 7 == true
not n == 7
not 'a' in things
n in nums or s in words
"a" < "b" and "b" < "c"
s | replace("l", "L") | upper
s|length > 5
(s|length) * 2
"a" "b" | upper
[[1, 2], [3]] | map('first') | list
[[1, 2], [3]] | map('last') | list
[['a', 1], ['b', 2]] | map(attribute=0) | list
"a\nb" | tojson
1.5e300 * 1e10
0.1 * 3
1e100
123456789012345678
1.0e+20
5e-324
-1.5
3.0 // 1
2 ** 62
10 ** 20
9223372036854775807 + 1
"""

TEMPLATES = [
    "a\n", "a\n\n", "\n", "", "a", "a\r\nb\rc", "{{ 1 }}\n", "{{ 1 }}\n\nx", "x {{- 1 -}} y", "x\n {{- 1 -}} \n y", "{{+ 1 }}", "{{ 1 +}}",
    "{% if 1 %}\na\n{% endif %}\nb", "  {% if 1 %}a{% endif %}\n  b", "x  {% if 1 %}a{% endif %}", "  {%+ if 1 %}a{% endif %}", "  {% if 1 +%}\na{% endif %}\n",
    "{%- if 1 -%}\n a \n{%- endif -%}\n b", "a\n  {%- if 1 %}\n  b\n  {%- endif %}\n  c", "a {#- c -#} b", "a\n  {# c #}\n b", "a\n  {#+ c #}\n b", "{# c +#}\nb", "{##}x", "{#-#} x", "{# {{ 1 }} #}y", "{# unclosed",
    "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n {{ x }} \n{% endraw %}\ny", "a {%- raw -%} {{ x }} {%- endraw -%} b", "  {% raw %}x{% endraw %}", "{% raw %} {% if %} {% endraw %}", "{% raw %}x", "{%raw%}{#{%endraw%}",
    "\u2003{%- if 1 -%}\u2003x\u00a0{%- endif %}", "\u2003{% if 1 %}x{% endif %}", "{ { %} }} x", "{", "x{", "{}", "{{ '{{' }}", "{{ '}}' }}", "{{ '%}' }}", "{% if '%}' %}x{% endif %}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a'].b }}",
    "{% for i in nums %}{{ i }},{% endfor %}", "{% for i in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in nums %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for i in nolist %}x{% else %}empty{% endfor %}", "{% for i in nums %}{% break %}{% else %}empty{% endfor %}", "{% for i in missing %}x{% else %}e{% endfor %}", "{% for i in nil %}x{% endfor %}", "{% for i in 5 %}x{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for k in things %}{{ k }}{% endfor %}", "{% for k, v in things.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in things|items %}{{ k }}{% endfor %}", "{% for k, v in things | dictsort %}{{ k }}{% endfor %}", "{% for k in things.items() %}{{ k }}{% endfor %}", "{% for a, b in nums %}x{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in nums if i > 3 %}{{ i }}{{ loop.index }}{{ loop.last }}{% endfor %}", "{% for i in nums if i > 3 %}{{ loop.length }}{{ loop.revindex }}{% endfor %}", "{% for i in nums if i > 9 %}x{% else %}none{% endfor %}", "{% for i in nums if i is odd and i > 3 %}{{ i }}{% endfor %}", "{% for i in nums if i == 3 %}{{ loop.nextitem }}|{{ loop.length }}|{{ loop.last }};{% endfor %}",
    "{% for i in nums %}{% if i == -1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in nums %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in [1,2] %}{% for j in 'ab' %}{% if j == 'b' %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% break %}", "{% continue %}", "{% if 1 %}{% break %}{% endif %}",
    "{% for i in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in nums %}{{ loop.cycle() }}{% endfor %}", "{% for i in nums %}{{ loop.depth }}{{ loop['index'] }}{% endfor %}", "{{ loop.index }}", "{% for i in nums %}{% endfor %}{{ i is defined }}{{ loop is defined }}",
    "{% set g = nums | select('odd') %}{% for i in g %}{{ i }}{{ loop.length }}{% endfor %}|{% for i in g %}{{ i }}{% endfor %}", "{% set g = nums | select('odd') %}{{ g | first }}{{ g | first }}{{ g | list }}", "{% set g = nums | map('string') %}{% for i in g %}{% break %}{% endfor %}{{ g | join(',') }}", "{% set g = nums | select('odd') %}{{ 3 in g }}{{ g | list }}", "{% for i in nums | map('upper') %}{{ i }}{% endfor %}", "{% for i in [1, 'a'] | select('odd') %}{{ i }}{% endfor %}", "{{ ([1, 'a'] | select('odd') | first) }}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = nums %}x", "{% set (a, b) = (1, 2) %}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ n }}y{% endset %}{{ a }}{{ a | length }}", "{% set a | upper %}x{{ n }}y{% endset %}{{ a }}", "{% set a | replace('x', 'z') | upper %}x{% endset %}{{ a }}", "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ b is defined }}{{ a }}",
    "{% if 1 %}{% set a = 1 %}{% endif %}{{ a }}", "{% if 0 %}{% set a = 1 %}{% endif %}{{ a is defined }}", "{% for i in nums %}{% set a = i %}{% endfor %}{{ a is defined }}", "{% set a = 0 %}{% for i in nums %}{% set a = a + i %}{{ a }},{% endfor %}{{ a }}", "{% set n = n + 1 %}{{ n }}", "{% for i in [1] %}{% set n = 8 %}{{ n }}{% endfor %}{{ n }}", "{% for n in [1] %}{{ n }}{% endfor %}{{ n }}", "{% for i in [1, 2] %}{{ z is defined }}{% set z = 1 %}{% endfor %}",
    "{% set ns = namespace(c=0) %}{% for i in nums %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}", "{% set things.a = 1 %}", "{% set zz.a = 1 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{% set ns = namespace(l=[]) %}{% for i in nums %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(stop=false) %}{% for i in nums if not ns.stop %}{{ i }}{% if i == -1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in nums if not ns.stop %}{{ i }}{{ loop.last }}{% if i == -1 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% set ns = namespace(x='a') %}{% set ns.x, b = 1, 2 %}{{ ns.x }}{{ b }}",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }}|{{ f(1, 3) }}|{{ f(b=4, a=5) }}|{{ f() }}", "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(1) }}", "{% macro f() %}{{ n }}{{ zz is defined }}{% endmacro %}{% set zz = 1 %}{{ f() }}", "{% macro f() %}{{ i is defined }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}", "{% macro f(a) %}x{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}x{% endmacro %}{{ f(b=2) }}", "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro f() %}  a  {% endmacro %}[{{ f() | trim }}]{{ f() | length }}", "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(3) }}", "{{ f() }}{% macro f() %}x{% endmacro %}", "{% macro f(v) %}{% set n = v %}{{ n }}{% endmacro %}{{ f(1) }}{{ n }}", "{% macro f(a=[]) %}{{ a }}{% endmacro %}{{ f() }}{{ f(none) }}", "{%- macro f(a) -%}\n{{ a }}\n{%- endmacro -%}\n{{ f('x') }}", "{% macro f(a, a2=1, %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f() %}{% for i in nums %}{{ loop.index }}{% endfor %}{% endmacro %}{{ f() }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ (f if f is defined else 'no') }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter trim | replace('a', 'b') %} xax {% endfilter %}", "{% filter trim %}{% set w = 1 %}{{ w }}{% endfilter %}{{ w is defined }}", "{% generation %}x{{ n }}{% endgeneration %}", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}", "{% generation %}{% set w = 1 %}{% endgeneration %}{{ w is defined }}",
    "{% if n > 9 %}a{% elif n > 6 %}b{% else %}c{% endif %}", "{% if missing %}a{% elif nolist %}b{% elif nothing %}c{% elif zero %}d{% elif empty %}e{% else %}f{% endif %}", "{% if n: %}x{% endif %}", "{% if n, m %}x{% endif %}", "{% if missing.foo %}x{% endif %}", "{% if missing is defined and missing.foo %}x{% else %}y{% endif %}",
    "{% if 1 %}", "{% endif %}", "{% if 1 %}{% endfor %}", "{% nope %}", "{{ }}", "{% %}", "{{ 1", "{% if 1", "{% for i nums %}{% endfor %}", "{% for in nums %}{% endfor %}", "{% for true in nums %}{% endfor %}", "{% for loop in nums %}{% endfor %}", "{% set 1 = 2 %}", "{% set a.b.c = 1 %}", "{% else %}", "{{ n }} }}", "{{ n ]}", "{{ (n }}",
    "{{ n if n else }}", "{% if n == 7 -%}  x  {%- else -%} y {%- endif %}", "{{ s }}{{ n }}{{ missing }}{{ nil }}!", "{{ 1, 2 }}", "{{ 'a' if n else 'b', 2 }}", "{% set x = [1, 2] | map('string') | list %}{{ x }}", "{{- '\n' -}}", "{{ '\\n' }}", "{{ \"a\\tb\" }}", "{{ 'a\nb' }}", "{{ n }}\n\n{{ m }}\n", "{% set a = n if n is defined else 'x' %}{{ a }}", "{% set a = a | default(1) %}{{ a }}", "{% set s = s + '!' %}{{ s }}",
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos }}{% endfor %}", "{% for m in messages %}{% if loop.last and m.role != 'user' %}{{ raise_exception('bad ' + m.role) }}{% endif %}{% endfor %}", "{% for m in messages[1:] %}{{ (m.role == 'user') != (loop.index0 % 2 == 0) }}{% endfor %}", "{% for i in range(3) %}{{ messages[i].role }}{{ messages[-i].role }}{% endfor %}", "{% for m in messages | reverse %}{{ m.role }}{% endfor %}", "{% for i in range(messages | length - 1, -1, -1) %}{{ i }}{% endfor %}", "{% for row in [[1, 2], [3]] %}{% for x in row %}{{ x }}{{ loop.last }}{% endfor %};{% endfor %}",
    "{% set a = 1 -%}   \n  {{ a }}", "a{% set x = 1 %}\nb", "a\n{% set x = 1 %}\n\nb", "{{ '' if 0 }}x", "{{ none }}", "{{ [none, true, 1.0, 'a'] }}", "{{ {'a': none} }}", "{{ 'x' * 3 }}", "{{ (1, 'a') }}", "{% set t = (1, 2) %}{{ t[0] }}{{ t }}", "{{ messages }}", "{{ people | tojson }}", "{{ q }}{{ [q] }}", "{{ ['it\\'s', 'say \"hi\"', 'both \\' \"'] }}",
]


def main():
    out = []
    for template in [f"{{{{ {line} }}}}" for line in EXPRESSIONS.strip("\n").split("\n")] + TEMPLATES:
        out.append([template, render(template, VARIABLES)])
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"made_by": %s,\n "variables": %s,\n "cases": [\n' % (json.dumps(MADE_BY), json.dumps(VARIABLES)))
        file.write(",\n".join(json.dumps(case, ensure_ascii=True) for case in out))
        file.write("\n]}\n")
    print(f"{len(out)} templates, {sum(case[1] is None for case in out)} of them errors")


main()
