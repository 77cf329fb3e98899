//! The text that a prompt ends with.
//!
//! A template may open the reasoning itself, or close it where reasoning is turned off. The parser
//! of the answer has to know. The end depends on the template, on the variables and on the role of
//! the last message, and not on texts, so a small conversation shows it at no cost.

use motet::text::{Chat, ChatTemplate, Message};
use serde_json::{Value, json};

/// The text of a message whose words do not matter.
const ANY: &str = "-";
/// Longest text of a variable that may be a switch, in bytes.
const SWITCH_BYTES_MAX: usize = 64;
/// Longest system message that may have a switch in its text, in bytes.
const SYSTEM_BYTES_MAX: usize = 4 << 10;

/// The text that the template writes behind the last message of such a conversation; empty if the
/// template rejects a conversation as small as this one.
pub(super) fn prompt_end(template: &ChatTemplate, chat: &Chat) -> String {
    let last_role = chat.messages.last().map_or("user", |last| &*last.role);
    let short = |messages| Chat {
        messages,
        variables: switches(chat),
        with_special_tokens: false,
    };
    let after_user = vec![Message::user(ANY)];
    let messages = match last_role {
        "tool" => after_result(),
        _ => after_user.clone(),
    };
    let with_system = [system(chat), messages.clone()].concat();
    let ends =
        [with_system, messages, after_user].map(|messages| end_of(template, &short(messages)));
    ends.into_iter().flatten().next().unwrap_or_default()
}

/// What the template writes for the answer's beginning.
fn end_of(template: &ChatTemplate, chat: &Chat) -> Option<String> {
    let with_end = template.render(chat, true).ok()?;
    let without_end = template.render(chat, false).unwrap_or_default();
    let pairs = with_end.char_indices().zip(without_end.chars());
    let differs = pairs.into_iter().find(|((_, one), other)| one != other);
    let common = differs.map_or(without_end.len().min(with_end.len()), |((at, _), _)| at);
    Some(with_end[common..].to_owned())
}

/// The short variables: a switch is one of them.
fn switches(chat: &Chat) -> std::collections::BTreeMap<String, Value> {
    let is_switch = |value: &Value| match value {
        Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => text.len() <= SWITCH_BYTES_MAX,
        _ => false,
    };
    let variables = chat.variables.iter().filter(|(_, value)| is_switch(value));
    variables
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn system(chat: &Chat) -> Vec<Message> {
    let first = chat.messages.first();
    let first =
        first.filter(|first| first.role == "system" && first.content.len() <= SYSTEM_BYTES_MAX);
    first
        .map(|first| Message::system(&*first.content))
        .into_iter()
        .collect()
}

/// A conversation that ends with the result of a call.
fn after_result() -> Vec<Message> {
    const ID: &str = "000000000";
    let mut call = Message::assistant("");
    let function = json!({"name": ANY, "arguments": {}});
    let calls = json!([{"id": ID, "type": "function", "function": function}]);
    call.more.insert("tool_calls".to_owned(), calls);
    let mut result = Message::new("tool", ANY);
    result.more.insert("tool_call_id".to_owned(), json!(ID));
    result.more.insert("name".to_owned(), json!(ANY));
    vec![Message::user(ANY), call, result]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, chat: &Chat, expected: &str) {
        let template = ChatTemplate::new(template, []).expect(template);
        assert_eq!(prompt_end(&template, chat), expected);
    }

    #[test]
    fn end_is_what_follows_the_last_message() {
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
            {% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not \
            enable_thinking %}<think></think>{% endif %}{% endif %}";
        let chat = Chat::from([Message::user("What? <think>")]);
        check(template, &chat, "<assistant>");
        let chat = chat.variable("enable_thinking", json!(false));
        check(template, &chat, "<assistant><think></think>");
        check("{{ messages[0].content }}", &chat, "");
        check("{{ raise_exception('no') }}", &chat, "");
    }

    #[test]
    fn end_depends_on_the_role_of_the_last_message() {
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}\
            {% if add_generation_prompt and messages[-1].role != 'tool' %}<think>{% endif %}";
        let question = Message::user("What?");
        check(template, &Chat::from([question.clone()]), "<think>");
        let result = Message::new("tool", "noon");
        check(template, &Chat::from([question, result]), "");
    }

    #[test]
    fn switch_in_the_system_message_counts() {
        let template = "{% set system = messages[0].content if messages[0].role == 'system' %}\
            {% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}A:\
            {% if '/no_think' in (system or '') %}<think></think>{% endif %}{% endif %}";
        let chat = Chat::from([Message::system("/no_think"), Message::user("What?")]);
        check(template, &chat, "A:<think></think>");
    }
}
