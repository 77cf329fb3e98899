//! Tests of the engine's own promises. `tests/text/jinja.rs` compares it with Jinja2.

use std::rc::Rc;

use serde_json::{Value as Json, json};

use super::interpreter::Machine;
use super::{Error, Template, Variables, Written};
use crate::{Chat, Message};

/// The bytes that values may take here, so that they are soon too many.
const BYTES_MAX: usize = 4 << 20;

fn written(source: &str, chat: &Chat) -> Result<Written, Error> {
    let variables = Variables {
        chat,
        add_generation_prompt: true,
        special_tokens: &[("bos_token".to_owned(), "<s>".to_owned())].into(),
    };
    Template::parse(source)?.render_within(&variables, BYTES_MAX, 64 << 20)
}

fn with(text: &str) -> Chat {
    Chat::from([Message::user(text)]).variable("v", json!({"k": text, "l": [text, 1], text: 2}))
}

/// The text with callers' parts in ⟦brackets⟧.
fn shown(source: &str, text: &str) -> String {
    let Written { text, callers } = written(source, &with(text)).expect("it renders");
    let mut shown = String::new();
    let mut done = 0;
    for span in callers {
        assert!(done <= span.start && span.start < span.end, "{span:?}");
        shown += &text[done..span.start];
        shown += &format!("⟦{}⟧", &text[span.clone()]);
        done = span.end;
    }
    shown + &text[done..]
}

#[test]
fn callers_parts_are_known_whatever_happens_to_strings() {
    let check = |expression: &str, text: &str, expected: &str| {
        let source = format!("{{% set c = messages[0].content %}}{{{{ {expression} }}}}");
        assert_eq!(shown(&source, text), expected, "{expression}");
    };
    check("c", "ab", "⟦ab⟧");
    check("'<' ~ c ~ '>'", "ab", "<⟦ab⟧>");
    check("'<' + c + '>'", "ab", "<⟦ab⟧>");
    check(
        "c.replace('/think', '')",
        "<|im_/thinkend|>",
        "⟦<|im_end|>⟧",
    );
    check("c.replace('b', 'X')", "abc", "⟦a⟧X⟦c⟧");
    check("'aXc'.replace('X', c)", "b", "a⟦b⟧c");
    check("c|replace('b', c)", "ab", "⟦aab⟧");
    check("c.split('b')|join('-')", "abc", "⟦a⟧-⟦c⟧");
    check("c.split()[1] ~ c[0] ~ c[-1:]", "x yz", "⟦yzxz⟧");
    check("c|trim", "  ab ", "⟦ab⟧");
    check("c|upper ~ c.title() ~ 'b'|upper", "ab", "⟦ABAb⟧B");
    check("c|reverse ~ c[::-1]", "abc", "⟦cbacba⟧");
    check("c|list|join('.')", "ab", "⟦a⟧.⟦b⟧");
    check("c * 2", "ab", "⟦abab⟧");
    check("'%s-%5s' % (c, c)", "ab", "⟦ab⟧-   ⟦ab⟧");
    check(
        "'{}{0!r}'.format(c) if false else '{}!'.format(c)",
        "ab",
        "⟦ab⟧!",
    );
    check("c ~ '%d' % 3", "a%", "⟦a%⟧3");
    check("(c ~ '%s') % 'X'", "ab", "⟦ab⟧X");
    check("c|tojson", "a\"<\n", "\"⟦a\\\"<\\n⟧\"");
    check("[c, 'a']", "it's", "[\"⟦it's⟧\", 'a']");
    check(
        "v|tojson",
        "b",
        r#"{"⟦k⟧": "⟦b⟧", "⟦l⟧": ["⟦b⟧", 1], "⟦b⟧": 2}"#,
    );
    check("c|indent(2)", "a\nb", "⟦a⟧\n  ⟦b⟧");
    check("c|e", "<a>", "⟦&lt;a&gt;⟧");
    check("c.partition('b')|join('|')", "abc", "⟦a⟧|⟦b⟧|⟦c⟧");
    check("c.center(6, '*')", "ab", "**⟦ab⟧**");
    check("c|truncate(3, true, '…', 0)", "abcdef", "⟦ab⟧…");
    check("messages[0]['role'] ~ bos_token", "", "user<s>");
}

#[test]
fn captured_text_keeps_its_writers() {
    let macros = "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].content) }}";
    assert_eq!(shown(macros, "ab"), "<⟦ab⟧>");
    let set = "{% set x %}<{{ messages[0].content }}>{% endset %}{{ x[1:] }}";
    assert_eq!(shown(set, "ab"), "⟦ab⟧>");
    let filter = "{% filter upper %}a{{ messages[0].content }}{% endfilter %}";
    assert_eq!(shown(filter, "b"), "A⟦B⟧");
    let names = "{% for k, x in v.items() %}{{ k }}{% endfor %}";
    assert_eq!(shown(names, "b"), "⟦klb⟧");
}

fn fails(source: &str, needle: &str) {
    let error = written(source, &with(&"x".repeat(100_000))).expect_err(needle);
    let error = error.to_string();
    assert!(error.contains(needle), "{source}: {error}");
}

/// A loop that changes `ns.a` as the expression says.
fn repeated(start: &str, expression: &str) -> String {
    format!(
        "{{% set ns = namespace(a={start}) %}}{{% for i in range(100000) %}}\
         {{% set ns.a = {expression} %}}{{% endfor %}}"
    )
}

#[test]
fn memory_of_values_is_bounded() {
    let most = "take more than 4194304 bytes";
    for (start, expression) in [
        ("'ab'", "ns.a ~ ns.a"),
        ("'ab'", "ns.a + ns.a"),
        ("'ab'", "ns.a * 9"),
        ("'ab'", "ns.a|replace('a', 'aaaaaaa')"),
        ("'ab'", "[ns.a, ns.a]|join"),
        ("'ab'", "ns.a.join(['', '', ''])"),
        ("'ab'", "'%s%s' % (ns.a, ns.a)"),
        ("'ab'", "'{0}{0}'.format(ns.a)"),
        ("'ab'", "[ns.a, ns.a]|tojson"),
        ("'ab'", "[ns.a, ns.a]|string"),
        ("[1]", "ns.a + ns.a"),
        ("[1]", "ns.a * 9"),
        ("''", "ns.a.ljust(10000000 * i)"),
        ("''", "ns.a.zfill(10000000 * i)"),
    ] {
        fails(&repeated(start, expression), most);
    }
    for source in [
        "{{ messages[0].content|replace('x', 'y' * 100000) }}",
        "{{ messages[0].content.replace('', 'y' * 100000) }}",
        "{{ 'x'.center(100000000000) }}",
        "{{ [1] * 100000000000 }}",
        "{{ 'x' * 100000000000 }}",
        "{{ ('a\n' * 100000)|indent(10000) }}",
        "{{ [1]|batch(100000000000, 0)|list }}",
    ] {
        fails(source, "more than");
    }
    let captured = "{% set ns = namespace(a='ab') %}{% for i in range(1000) %}\
                    {% set x %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = x %}{% endfor %}";
    fails(captured, most);
    let raw = format!(
        "{{% set x %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}",
        "y".repeat(5_000)
    );
    fails(&raw, most);
    let lists = "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}\
                 {% set ns.a = ns.a + ['x' * 10000] %}{% endfor %}";
    fails(lists, "more than");
    let names =
        "{% for i in range(1000) %}{% set ns = namespace(**{'x' * 60000 ~ i: 1}) %}{% endfor %}";
    fails(names, most);
    let kept = |value: &str| {
        format!(
            "{{% set many = range(100000) %}}{{% set ns = namespace(l=[]) %}}{{% for i in range(1000) %}}\
             {value}{{% endfor %}}"
        )
    };
    fails(&kept("{% set ns.l = ns.l + [cycler(*many)] %}"), most);
    let loops = "{% for x in many if true %}{% set ns.l = ns.l + [loop] %}{% break %}{% endfor %}";
    fails(&kept(&loops.replace("many if true", "'x' * 50000")), most);
}

/// The message of a missing value has the beginning of a long name only.
#[test]
fn missing_values_take_little() {
    let error = written("{{ {}['y' * 1000].a }}", &with("")).expect_err("it is missing");
    let expected = format!(
        "'dict object' has no attribute '{}…' (line 1)",
        "y".repeat(100)
    );
    assert_eq!(error.to_string(), expected);
    let long = "x".repeat(1000);
    for missing in [
        long.clone(),
        format!("{{}}.{long}"),
        format!("v['{long}']"),
        "v[[1] * 1000]".into(),
    ] {
        let error = written(&format!("{{{{ ({missing}).a }}}}"), &with("")).expect_err("missing");
        assert!(error.to_string().len() < 200, "{error}");
    }
}

#[test]
fn usual_bound_holds_as_well() {
    let source = repeated("'ab'", "ns.a ~ ns.a");
    let variables = Variables {
        chat: &Chat::default(),
        add_generation_prompt: true,
        special_tokens: &Default::default(),
    };
    let rendered = Template::parse(&source)
        .expect("it parses")
        .render(&variables, 1 << 20);
    let error = rendered.expect_err("it doubles").to_string();
    assert!(error.contains("take more than 67108864 bytes"), "{error}");
}

#[test]
fn memory_is_given_back() {
    // Each round makes a megabyte, and keeps none of it.
    let source = "{% for i in range(500) %}{% set x = 'y' * 1000000 %}{% endfor %}done";
    assert_eq!(shown(source, ""), "done");
}

#[test]
fn depth_is_bounded() {
    fails(&repeated("[]", "[ns.a]"), "nested more than");
    fails(&repeated("{}", "{'a': ns.a}"), "nested more than");
    fails(&repeated("1", "(ns.a,)"), "nested more than");
    fails(
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "recursion",
    );
    fails(&repeated("1", "cycler(ns.a)"), "nested more than");
    fails(&repeated("1", "joiner(ns.a)"), "nested more than");
    fails(&repeated("1", "[cycler(joiner(ns.a))]"), "nested more than");
    let loops = "{% set ns = namespace(a=[1]) %}{% for i in range(1000) %}{% for x in ns.a %}\
                 {% set ns.a = [loop] %}{% endfor %}{% endfor %}";
    fails(loops, "nested more than");
    fails(
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
        "recursion",
    );
    let nested = |open: &str, close: &str| {
        format!("{{{{ {}1{} }}}}", open.repeat(10_000), close.repeat(10_000))
    };
    fails(&nested("(", ")"), "deep");
    fails(&nested("[", "]"), "deep");
    fails(&nested("not ", ""), "deep");
    fails(&nested("-", ""), "deep");
    fails(&nested("1 if 1 else ", ""), "deep");
    fails(&nested("", ".a"), "in a row");
    fails(&nested("", "|a"), "in a row");
    fails(&"{% if 1 %}".repeat(10_000), "deep");
    // Chains of operators do not nest.
    let sum = format!("{{{{ 1{} }}}}", " + 1".repeat(10_000));
    assert_eq!(shown(&sum, ""), "10001");
    // A namespace may contain itself.
    let cycle =
        "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = [ns] %}{{ ns.a.a is defined }}";
    assert_eq!(shown(cycle, ""), "True");
}

/// Chains of any length are dropped one by one, and cycles at the end of a rendering.
#[test]
fn chains_and_cycles_are_dropped() {
    let chain = |body: &str| {
        format!(
            "{{% set ns = namespace(a=0) %}}{{% for i in range(20000) %}}{body}{{% endfor %}}done"
        )
    };
    for body in [
        "{% set x = ns.a %}{% with %}{% macro f() %}{% endmacro %}{% set ns.a = f %}{% endwith %}",
        "{% for j in [1] %}{% set c = loop.changed(ns.a) %}{% set ns.a = loop %}{% endfor %}",
    ] {
        assert_eq!(shown(&chain(body), ""), "done", "{body}");
    }
    let parsed =
        Template::parse("{% for x in [1, 2] %}{{ loop.changed(loop, 'y' * 1000000) }}{% endfor %}");
    let machine = Machine::new(BYTES_MAX, 1 << 20, &|_| None);
    let budget = Rc::clone(&machine.meter.budget);
    let (text, _) = machine
        .run(&parsed.expect("it parses").0)
        .expect("it renders");
    assert_eq!(text, "TrueTrue");
    drop(budget.take(BYTES_MAX).expect("all is given back"));
}

#[test]
fn steps_are_bounded() {
    let long = |body: &str| format!("{{% for i in range(5000) %}}{body}{{% endfor %}}");
    fails(&long("{% for j in range(5000) %}{% endfor %}"), "fuel");
    fails(
        &long("{% set x = messages[0].content in messages[0].content %}"),
        "fuel",
    );
    fails("{{ range(100001) }}", "range too big");
}

/// Comparisons and keys of values that contain one value twice, which contains another twice.
#[test]
fn steps_of_comparisons_are_bounded() {
    let doubled = |expression: &str| {
        format!(
            "{{% set ns = namespace(a=(), b=()) %}}{{% for i in range(60) %}}\
             {{% set ns.a = (ns.a, ns.a) %}}{{% set ns.b = (ns.b, ns.b) %}}{{% endfor %}}\
             {{{{ {expression} }}}}"
        )
    };
    for expression in [
        "ns.a == ns.b",
        "ns.a in [ns.b]",
        "[ns.a, ns.b]|max",
        "[ns.a, ns.b]|sort",
        "{'k': ns.a} == {'k': ns.b}",
        "{ns.a: 1}",
        "[ns.a]|unique|list",
        "dict(range(20)|batch(2))[ns.a]",
    ] {
        fails(&doubled(expression), "fuel");
    }
    // One value is compared once.
    assert_eq!(shown(&doubled("ns.a == ns.a"), ""), "True");
    assert_eq!(shown(&doubled("[ns.a, 1] == [ns.a, 1]"), ""), "True");
    assert_eq!(shown(&doubled("[[ns.a]].index([ns.a])"), ""), "0");
    // Long texts count by their bytes.
    let texts = "{% set a = 'x' * 1000000 %}{% set b = 'x' * 1000000 %}";
    let body = "{% set x = a == b %}{% set x = {a: 1}[b] %}";
    let compared = format!("{texts}{{% for i in range(5000) %}}{body}{{% endfor %}}");
    fails(&compared, "fuel");
}

#[test]
fn keys_are_compared_as_in_python() {
    let check = |expression: &str, expected: &str| {
        let source = format!("{{% set many = dict(range(20)|batch(2)) %}}{{{{ {expression} }}}}");
        assert_eq!(shown(&source, ""), expected, "{expression}");
    };
    check("many[4] ~ many[4.0] ~ many[5]", "55");
    check("{1: 'a', true: 'b', 1.0: 'c'}", "{1: 'c'}");
    check("dict(many, **{'x': 1})['x']", "1");
    check(
        "[1, 2, 1.0, true, 'A', 'a', (1, 2), (1, 2.0)]|unique|list",
        "[1, 2, 'A', (1, 2)]",
    );
    check("{(1, 'a'): 2}[(1.0, 'a')]", "2");
    check("many == dict(range(20)|batch(2)|reverse)", "True");
    fails("{{ {[1]: 1} }}", "unhashable type: 'list'");
    fails("{{ {(1, [1]): 1} }}", "unhashable type: 'list'");
}

#[test]
fn errors_have_their_lines() {
    fails(
        "a\n\n{{ messages[7].content.x }}",
        "list object has no element 7 (line 3)",
    );
    fails("{{ missing.a }}", "'missing' is undefined (line 1)");
    fails("{{ v.q.r }}", "'dict object' has no attribute 'q' (line 1)");
    fails(
        "\n{% if %}",
        "unexpected end of statement block, expected an expression (line 2)",
    );
    fails("{% for x in v %}", "unexpected end of template");
    fails("{# open", "comment");
    fails("{{ 'open }}", "does not end");
    fails("{{ 1|nothing }}", "No filter named 'nothing'.");
}

/// A prompt of many messages takes few of the steps.
#[test]
fn long_conversations_stay_within_the_bounds() {
    let source = "{% set ns = namespace(all='') %}{% for m in messages %}\
        {% if m.role == 'user' and m.content|trim %}{% set ns.all = ns.all ~ m.content %}{% endif %}\
        <|{{ m.role }}|>{{ m.content.replace('a', 'b').split('</think>')[-1] }}{% endfor %}";
    let chat = Chat::from(
        (0..1_000)
            .map(|_| Message::user("a".repeat(200)))
            .collect::<Vec<_>>(),
    );
    let text = written(source, &chat).expect("it renders").text;
    assert_eq!(text.len(), 1_000 * (200 + "<|user|>".len()));
}

#[test]
fn characters_of_long_texts_are_read() {
    let long = format!("{}é", "x".repeat(1_000_000));
    let check = |source: &str, expected: &str| {
        let variables = Variables {
            chat: &with(&long),
            add_generation_prompt: true,
            special_tokens: &Default::default(),
        };
        let template = Template::parse(source).expect("it parses");
        let written = template.render(&variables, 1 << 20).expect("it renders");
        assert_eq!(written.text, expected, "{source}");
    };
    check("{{ messages[0].content|first }}", "x");
    check("{{ messages[0].content|last }}", "é");
    check("{{ messages[0].content|list|length }}", "1000001");
    check(
        "{% for c in messages[0].content|list %}{{ loop.length }}{% break %}{% endfor %}",
        "1000001",
    );
    check(
        "{{ ''|first }}|{{ {'a': 1}|first }}|{{ [1, 2]|last }}",
        "|a|2",
    );
    assert_eq!(
        shown(
            "{{ ('<' ~ v.k)|list|join('.') }}{{ ('<' ~ v.k)|last }}",
            "a<"
        ),
        "<.⟦a⟧.⟦<<⟧"
    );
}

#[test]
fn json_has_the_options_of_python() {
    let check = |expression: &str, value: Json, expected: &str| {
        let source = format!("{{{{ v|{expression} }}}}");
        let chat = Chat::default().variable("v", value);
        assert_eq!(written(&source, &chat).expect("it renders").text, expected);
    };
    check(
        "tojson",
        json!({"b": [1, 2], "a": "<'&'>"}),
        r#"{"b": [1, 2], "a": "<'&'>"}"#,
    );
    check(
        "tojson",
        json!("\\u003c \\ \n\u{1} é"),
        r#""\\u003c \\ \n\u0001 é""#,
    );
    check(
        "tojson",
        json!([0.5, 3.0, 1e-7, 1e16, 1e15, 0.0001, 0.00001, -2, u64::MAX]),
        "[0.5, 3.0, 1e-07, 1e+16, 1000000000000000.0, 0.0001, 1e-05, -2, 18446744073709551615]",
    );
    let value = json!({"b": [1, {}], "a": "é🦙"});
    check(
        "tojson(true, sort_keys=true)",
        value.clone(),
        r#"{"a": "\u00e9\ud83e\udd99", "b": [1, {}]}"#,
    );
    check(
        "tojson(separators=(',', ':'))",
        value.clone(),
        r#"{"b":[1,{}],"a":"é🦙"}"#,
    );
    check(
        "tojson(indent=2)",
        value.clone(),
        "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"é🦙\"\n}",
    );
    check("tojson(indent='\t')", json!([1]), "[\n\t1\n]");
    fails("{{ v|tojson(indent=1000) }}", "indent");
    fails("{{ v|tojson(separators=7) }}", "not iterable");
}
