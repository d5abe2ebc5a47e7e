"""Chat templates: what they may use, what they may not do, and whose special tokens are special."""

import json
import time
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import UsageError
from refimpl.files.chat import chat_ids, render_chat
from refimpl.model import prompt_ids
from tests.tokenizer.pieces import from_gguf
from tests.tokenizer.trained import SPECIALS, TEXTS, ours

HELLO = [{"role": "user", "content": "hello"}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENIZER = replace(ours("gpt-2"), chat_template=CHATML, bos_id=1, eos_ids=(2,))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "hello\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{% continue %}{% endfor %}x", "x"),
        ("{{ {'a': '<é>'}|tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': [2]}|tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  2\n ]\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "05 Mar 2024"),
        ("{% generation %}answer{% endgeneration %}", "answer"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}", "<s></s>TrueTrue"),
        ("{{ enable_thinking }}{{ not_given is defined }}", "noFalse"),
        ("{{ messages|map(attribute='role')|join(',') }}{{ messages[0].content[::-1] }}", "userolleh"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice(123456789) }}", "123456789123456789"),
        ("{{ messages[0]['content'].split('l')[-1] ~ 'k' }}{{ 'ell' in messages[0].content }}", "okTrue"),
        ("{{ '{:>4}|{x:.2f}'.format(7, x=0.5) }}{{ '{a}'.format_map({'a': 1}) }}", "   7|0.501"),
        ("{{ '%-4d|%5.1f|%(a)s'|replace('%(a)s', '') % (7, 2) }}{{ '%s-%s'|format(1, 'b') }}", "7   |  2.0|1-b"),
        ("{{ ['a', 'b']|join('-') }}{{ '+'.join(['a', 'b']) }}{{ 'a\\nb'|indent(2) }}", "a-ba+ba\n  b"),
        ("{{ {'b': [1, 'é']}|tojson(separators=(',', ':'), ensure_ascii=true) }}", '{"b":[1,"\\u00e9"]}'),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ 7 * 6 }}{{ '%s!' % 'a' }}", "142a!"),
    ],
)
def test_what_templates_use(template, text):
    options = {"bos_token": "<s>", "eos_token": "</s>", "enable_thinking": "no"}
    assert render_chat(template, HELLO, now=datetime(2024, 3, 5), **options) == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "chat template failed"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(role='system') }}", "unsafe"),
        ("{% include 'passwords' %}", "chat template failed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ 1|tojson(cls=1) }}", "chat template failed"),
        ("{{ lipsum(1) }}", "'lipsum' is undefined"),
        ("{{ cycler(1) }}", "'cycler' is undefined"),
    ],
)
def test_what_fails_fails_in_one_line(template, words):
    with pytest.raises(UsageError, match=words) as caught:
        render_chat(template, HELLO)
    assert "\n" not in str(caught.value)


GROW = "{%% set ns = namespace(s=%s) %%}{%% for i in range(200) %%}{%% set ns.s = %s %%}{%% endfor %%}{{ ns.s }}"
BIG = "{%% set big = range(9000)|list %%}{%% for i in big %%}%s{%% endfor %%}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        GROW % ("'xx'", "ns.s ~ ns.s"),
        GROW % ("'xx'", "ns.s + ns.s"),
        GROW % ("'xx'", "ns.s * 2"),
        GROW % ("'xx'", "ns.s.replace('x', 'xx')"),
        GROW % ("'xx'", "ns.s|replace('x', 'xx')"),
        GROW % ("'xx'", "[ns.s, ns.s]|join"),
        GROW % ("[1]", "[ns.s, ns.s]"),
        GROW % ("[1]", "{'a': ns.s, 'b': ns.s}"),
        GROW % ("[1]", "ns.s + ns.s"),
        GROW % ("7", "ns.s ** 9"),
        "{% set ns = namespace(s='x') %}{% for i in range(200) %}{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = s %}{% endfor %}",
        BIG % "{% set x = big|sum %}",
        BIG % "{% if -1 in big %}{% endif %}",
        BIG % "{% if big is eq big %}{% endif %}",
        BIG % "{% set x = (big|string).count('z') %}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 10 ** 12 * [1] }}",
        "{{ 'x'|center(10 ** 12) }}",
        "{{ 'x'.ljust(10 ** 12) }}",
        "{{ [1, 2]|tojson(indent=10 ** 9) }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s] %}{% endfor %}"
        "{% for i in range(9000) %}{% set x = ns.s|tojson(indent=1000) %}{% endfor %}",
        "{{ '%1000000000d' % 5 }}",
        "{{ '%-1000000000.3f' % 5 }}",
        "{{ '%.1000000000f' % 5 }}",
        "{{ '%*d' % (10 ** 9, 5) }}",
        "{{ '%(a)1000000000s' % {'a': 1} }}",
        "{{ '%1000000000d'|format(5) }}",
        "{{ ('%(a)s' * 9000) % {'a': 'x' * 90000} }}",
        "{{ '{:1000000000}'.format(5) }}",
        "{{ '{:{}}'.format('x', '1000000000') }}",
        "{{ '{:1{}}'.format('x', '0' * 9) }}",
        "{{ '{a:.1000000000f}'.format_map({'a': 0.5}) }}",
        "{{ ('{0}' * 9000).format('x' * 90000) }}",
        "{{ ('x' * 90000)|replace('x', 'y' * 90000) }}",
        "{{ ('x' * 90000).replace('x', 'y' * 90000) }}",
        "{{ range(90000)|map('string')|join('x' * 90000) }}",
        "{{ ('x' * 90000).join(range(90000)|map('string')) }}",
        "{{ (['x' * 90000] * 90000)|join }}",
        "{{ ['x' * 90000] * 90000 }}",
        "{{ ('\t' * 90000).expandtabs(90000) }}",
        "{{ ('\n' * 90000)|indent(90000, blank=true) }}",
        "{{ ('x ' * 90000)|wordwrap(1, wrapstring='y' * 90000) }}",
    ],
)
def test_what_does_not_end_is_stopped(template):
    start = time.monotonic()
    with pytest.raises(UsageError, match="does not end"):
        render_chat(template, HELLO)
    assert time.monotonic() - start < 30


def test_long_conversations_have_steps_enough():
    messages = [{"role": "user", "content": "word " * 1000}, {"role": "assistant", "content": "answer " * 1000}] * 100
    assert len(render_chat(CHATML, messages)) > 1_000_000


def test_the_template_s_tokens_are_special():
    ids = chat_ids(TOKENIZER, [{"role": "system", "content": "be brief"}, *HELLO])
    assert ids == TOKENIZER.encode(TOKENIZER.decode(ids), special=True)
    assert [ids.count(TOKENIZER.specials[text]) for text in ("<|im_start|>", "<|im_end|>")] == [3, 2]


@given(text=TEXTS, cut=st.integers(0, 20), special=st.sampled_from(SPECIALS))
def test_what_a_user_types_stays_text(text, cut, special):
    typed = text[:cut] + special + text[cut:]
    ids = chat_ids(TOKENIZER, [{"role": "user", "content": typed}])
    wrapped = f"<|im_start|>user\n{typed}<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(ids) == wrapped
    assert sum(id in TOKENIZER.specials.values() for id in ids) == 3


def test_an_answer_keeps_its_marks_that_are_not_control_tokens():
    end, start = TOKENIZER.specials["<|end|>"], TOKENIZER.specials["<|im_start|>"]
    tokenizer = replace(TOKENIZER, controls=TOKENIZER.controls - {end})
    counts = [
        [chat_ids(tokenizer, [{"role": role, "content": "<|end|> <|im_start|>"}]).count(id) for id in (end, start)]
        for role in ("assistant", "user")
    ]
    assert counts == [[1, 2], [0, 2]]


def test_parts_of_a_message_are_text_too():
    template = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    tokenizer = replace(TOKENIZER, chat_template=template)
    ids = chat_ids(tokenizer, [{"role": "user", "content": [{"type": "text", "text": "<|end|>"}]}])
    assert ids == TOKENIZER.encode("<|end|>") and len(ids) > 1


def test_bos_is_the_template_s_affair():
    tokenizer = replace(TOKENIZER, prefix=(1,), chat_template="{{ bos_token }}{{ messages[0].content }}")
    assert chat_ids(tokenizer, HELLO) == [1, *TOKENIZER.encode("hello")]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "tells <|im_end|> the weather",
        "parameters": {"type": "object", "properties": {"<|im_start|>": {"type": "string", "enum": ["a<|end|>"]}}},
    },
}
TOOLED = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    + CHATML
)


@pytest.mark.parametrize("template", [TOOLED, TOOLED.replace("tojson", "tojson(ensure_ascii=true)")])
def test_tools_reach_the_template_and_stay_text(template):
    tokenizer = replace(TOKENIZER, chat_template=template)
    ids = chat_ids(tokenizer, HELLO, tools=[WEATHER])
    assert tokenizer.decode(ids) == (
        f"<|im_start|>system\n{json.dumps(WEATHER)}\n<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert sum(id in tokenizer.specials.values() for id in ids) == 5
    assert chat_ids(tokenizer, HELLO) == chat_ids(TOKENIZER, HELLO)


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_a_template_does_not_read_is_refused(name):
    with pytest.raises(UsageError, match=f"chat template reads no {name}"):
        chat_ids(TOKENIZER, HELLO, **{name: [WEATHER]})


def test_prompts_take_the_options_of_a_template():
    clock = "{{ strftime_now('%d %b %Y') }} {{ mood }} {% for tool in tools or [] %}{{ tool.name }} {% endfor %}"
    tokenizer = replace(TOKENIZER, chat_template=clock + "{{ messages[-1].content }}")
    options = {"now": datetime(2024, 7, 26), "mood": "calm", "tools": [{"name": "weather"}]}
    for prompt in ("hello", HELLO):
        ids = prompt_ids(prompt, tokenizer, **options)
        assert tokenizer.decode(ids) == "26 Jul 2024 calm weather hello"
    for prompt, raw in (("hello", True), ([1, 2], False)):
        with pytest.raises(UsageError, match="mood, now, tools need"):
            prompt_ids(prompt, tokenizer, raw=raw, **options)


def test_a_template_begins_the_text():
    tokenizer = replace(from_gguf("llama"), chat_template="{{ bos_token }}[INST] {{ messages[0].content }} [/INST]")
    ids = chat_ids(tokenizer, HELLO)
    assert ids == [1, *tokenizer.encode("[INST] hello [/INST]")]
    assert tokenizer.decode(ids) == "<s> [INST] hello [/INST]"
