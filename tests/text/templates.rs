//! Chat templates: their variables, their bounds.

use motet::text::{Chat, ChatTemplate, Message, TextCodec, TextError};
use motet_text::Detokenizer;
use serde_json::json;

#[test]
fn templates_get_the_variables_of_transformers() {
    let chat = [
        Message::system(" be <brief> "),
        Message::user("it's \"you\""),
        Message::assistant("ok"),
    ];
    let check = |template: &str, expected: &str| {
        assert_eq!(
            render(template, &chat).as_deref(),
            Ok(expected),
            "{template}"
        );
    };
    check(
        "{{ bos_token }}{{ eos_token }}{{ unk_token }}|{{ tools is none }}",
        "<s></s>|True",
    );
    check(
        "{{ messages[0]['content'].strip() }}|{{ messages[1:] | length }}",
        "be <brief>|2",
    );
    check(
        "{{ messages[1] | tojson }}",
        r#"{"role": "user", "content": "it's \"you\""}"#,
    );
    check(
        "{{ {'b': 1, 'a': [true]} | tojson(indent=1, ensure_ascii=False) }}",
        "{\n \"b\": 1,\n \"a\": [\n  true\n ]\n}",
    );
    check(
        "{% for m in messages %}\n  {% if loop.index0 == 1 %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}\n.\n",
        "system\n.",
    );
    check(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n }}",
        "24",
    );
    check(
        "{% for m in messages %}{%- generation %}{{ m.role[0] }}{% endgeneration -%} {% endfor %}",
        "sua",
    );
    check(
        "{{ strftime_now('%Y') | length }}{{ messages[2].tool_calls is defined }}",
        "4False",
    );
    check(
        "{% macro say(x) %}<{{ x }}>{% endmacro %}{{ say(messages | map(attribute='role') | join(',')) }}",
        "<system,user,assistant>",
    );
}

#[test]
fn templates_may_reject_and_are_bounded() {
    let check = |template: &str, needle: &str| {
        let message = render(template, &[Message::user("x".repeat(100_000))]).expect_err(needle);
        assert!(message.contains(needle), "{message} should say {needle}");
    };
    check(
        "{{ raise_exception('Roles must alternate') }}",
        "Roles must alternate",
    );
    check("a\n{{ messages[7].content.x }}", "line 2");
    let forever =
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    check(forever, "fuel");
    check(
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "recursion",
    );
    check(
        "{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}",
        "writes more than 67108864 bytes",
    );
    check("{% include 'other' %}", "other");
    check("{{ strftime_now('%Q') }}", "%Q");
    check("{% if %}", "does not compile");
}

#[test]
fn templates_read_tools_calls_and_variables() {
    let source = "{% for tool in tools %}{{ tool.function.name }};{% endfor %}\
        {% for m in messages %}{{ m.role }}{% if m.tool_calls %}({{ m.tool_calls[0].name }}){% endif %}\
        {% if m.tool_call_id is defined %}<{{ m.tool_call_id }}>{% endif %} {% endfor %}\
        {{ thinking }}{{ bos_token }}";
    let template = ChatTemplate::new(source, [("bos_token", "<s>")]).expect("it compiles");
    let called = serde_json::from_value(json!({
        "role": "assistant", "content": "", "tool_calls": [{"name": "now"}]
    }));
    let answered = serde_json::from_value(json!({
        "role": "tool", "content": "noon", "tool_call_id": "c1"
    }));
    let chat = Chat::from([
        Message::user("What time is it?"),
        called.expect("a message"),
        answered.expect("a message"),
    ])
    .variable("tools", json!([{"function": {"name": "now"}}]))
    .variable("thinking", json!(true))
    // The engine's own variables cannot be replaced.
    .variable("messages", json!([]));
    let spelled = template.render(&chat, true).expect("it renders");
    assert_eq!(spelled, "now;user assistant(now) tool<c1> True<s>");
}

#[test]
fn text_that_is_not_written_as_it_is_cannot_go_on() {
    for source in [
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        "{{ messages[0].content }}",
        "{{ messages[1].content | length }}",
    ] {
        let template = ChatTemplate::new(source, []).expect("it compiles");
        let chat = Chat::from([Message::user("a"), Message::assistant("b")]).continue_last();
        let error = template.render(&chat, true).expect_err(source);
        assert!(
            matches!(error, TextError::Template { .. }),
            "{source}: {error}"
        );
    }
    // A template that trims takes white space away, but not that before the text.
    let source = "{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}</s>{% endfor %}";
    let template = ChatTemplate::new(source, []).expect("it compiles");
    let begun = |text: &str| {
        let chat = Chat::from([Message::user("a"), Message::assistant(text)]).continue_last();
        template.render(&chat, true).expect("it goes on")
    };
    assert_eq!(begun("b \n"), "<user>\na</s><assistant>\nb");
    assert_eq!(begun(""), "<user>\na</s><assistant>\n");
}

#[test]
fn the_parts_are_shared_between_threads() {
    fn check<T: Clone + Send + Sync + 'static>() {}
    check::<TextCodec>();
    check::<Detokenizer>();
    check::<motet_text::StopMatcher>();
    check::<ChatTemplate>();
}

fn render(template: &str, messages: &[Message]) -> Result<String, String> {
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let template = ChatTemplate::new(template, special).map_err(|error| error.to_string())?;
    let rendered = template.render(&messages.to_vec().into(), true);
    rendered.map_err(|error| match error {
        TextError::Template { what } => what.reveal().to_owned(),
        error @ TextError::TooLong { .. } => error.to_string(),
        other => panic!("a template refuses, or is over its bounds: {other}"),
    })
}
