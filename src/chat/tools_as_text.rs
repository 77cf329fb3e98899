//! Tools for templates that know none.
//!
//! Such a template writes neither the tools nor the calls of earlier answers, and may reject a
//! message of the role `tool`. The system message then describes the tools, an answer's text has
//! its calls, and a result is a message of the user.

use motet_text::{AnswerFormat, Chat, Message, Tools};
use serde_json::Value;

/// Rewrites the messages so that the model knows the tools, its calls and their results.
pub(super) fn write(chat: &mut Chat, format: &AnswerFormat, tools: Option<&Tools>) {
    for message in &mut chat.messages {
        write_calls(message, format);
        write_result(message);
    }
    let Some(tools) = tools else {
        return;
    };
    let instructions = format.instructions(tools);
    match chat.messages.first_mut() {
        Some(first) if first.role == "system" => {
            let before = if first.content.is_empty() { "" } else { "\n\n" };
            first.content = format!("{}{before}{instructions}", first.content);
        }
        _ => chat.messages.insert(0, Message::system(instructions)),
    }
}

/// Moves the calls of an answer into its text.
fn write_calls(message: &mut Message, format: &AnswerFormat) {
    let Some(Value::Array(calls)) = message.more.remove("tool_calls") else {
        return;
    };
    let calls = calls.iter().map(|call| {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = match &function["arguments"] {
            // Text that is no JSON, and no arguments at all.
            Value::Null => "{}".to_owned(),
            other => other.to_string(),
        };
        (name, arguments)
    });
    let calls: Vec<(&str, String)> = calls.collect();
    let calls = calls
        .iter()
        .map(|(name, arguments)| (*name, arguments.as_str()));
    let calls = format.written_calls(calls);
    let before = if message.content.is_empty() { "" } else { "\n" };
    message.content = format!("{}{before}{calls}", message.content);
}

/// Makes a result a message of the user.
fn write_result(message: &mut Message) {
    if message.role != "tool" {
        return;
    }
    let name = message.more.remove("name");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    *message = Message::user(format!("Result of {name}:\n{}", message.content));
}

#[cfg(test)]
mod tests {
    use motet_text::ChatTemplate;
    use serde_json::json;

    use super::*;
    use crate::chat::fixtures::{clock, tokenizer};

    #[test]
    fn tools_calls_and_results_become_text() {
        let template = ChatTemplate::new("{{ messages }}", []).expect("a template");
        let format = AnswerFormat::new(Some(&template), &tokenizer());
        assert!(!format.template_knows_tools());
        let tools = Tools::new(vec![clock()]).expect("tools");
        let mut called = Message::assistant("Let me look.");
        called.add_call("1", "clock", json!({"zone": 2}));
        let result = Message::result("1", "clock", "noon");
        let mut chat = Chat::from([Message::user("What time?"), called, result]);
        write(&mut chat, &format, Some(&tools));
        let [system, _, called, result] = &chat.messages[..] else {
            panic!("{} messages", chat.messages.len());
        };
        assert_eq!(system.role, "system");
        assert!(
            system.content.contains("Tells the time."),
            "{}",
            system.content
        );
        let written = "Let me look.\n{\"name\": \"clock\", \"arguments\": {\"zone\":2}}";
        assert_eq!(called.content, written);
        assert!(called.more.is_empty());
        assert_eq!(result.role, "user");
        assert_eq!(result.content, "Result of clock:\nnoon");
    }
}
