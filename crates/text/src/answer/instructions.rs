//! Tools as text, for templates that know none.

use super::format::{Form, Format, Syntax};
use super::tools::Tools;

/// The text that tells the model about the tools.
pub(super) fn instructions(format: &Format, tools: &Tools) -> String {
    let mut text = String::from(
        "You may call functions to answer the user. These are the functions, each with a JSON \
         schema of its parameters:\n",
    );
    for tool in tools {
        text.push_str(&tool.for_template()["function"].to_string());
        text.push('\n');
    }
    text.push_str("\nTo call a function, answer only with a line of JSON for each call:\n");
    text.push_str(&written_calls(
        format,
        [("<function name>", "{\"<parameter>\": <value>}")],
    ));
    text
}

/// The text of calls in a format.
pub(super) fn written_calls<'a>(
    format: &Format,
    calls: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let key = match &format.syntax {
        Syntax::Marked(marked) if marked.form == Form::ObjectOfParameters => "parameters",
        _ => "arguments",
    };
    let (open, close) = match &format.syntax {
        Syntax::Marked(marked) if !marked.is_bare_written => {
            let pair = &marked.pairs[0];
            let close = pair.close.as_ref().map_or("", |close| &close.text);
            (pair.open.text.as_str(), close)
        }
        _ => ("", ""),
    };
    let calls = calls.into_iter().map(|(name, arguments)| {
        format!("{open}{{\"name\": \"{name}\", \"{key}\": {arguments}}}{close}")
    });
    calls.collect::<Vec<_>>().join("\n")
}
