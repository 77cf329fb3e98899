//! Tools as text, for templates that know none.

use super::format::{AnswerFormat, Form, Syntax};
use super::tools::Tools;

impl AnswerFormat {
    /// The text that tells the model about the tools and how to call them. It belongs into the
    /// system message if the template [does not know tools](Self::template_knows_tools).
    #[must_use]
    pub fn instructions(&self, tools: &Tools) -> String {
        let mut text = String::from(
            "You may call functions to answer the user. These are the functions, each with a JSON \
             schema of its parameters:\n",
        );
        for tool in tools {
            text.push_str(&tool.for_template()["function"].to_string());
            text.push('\n');
        }
        text.push_str("\nTo call a function, answer only with a line of JSON for each call:\n");
        let example = ("<function name>", "{\"<parameter>\": <value>}");
        text.push_str(&self.written_calls([example]));
        text
    }

    /// The text of calls in this format, each a name and arguments in JSON: the content of an
    /// earlier answer, if the template [does not know tools](Self::template_knows_tools).
    #[must_use]
    pub fn written_calls<'a>(&self, calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let syntax = &self.format().syntax;
        let key = match syntax {
            Syntax::Marked(marked) if marked.form == Form::ObjectOfParameters => "parameters",
            _ => "arguments",
        };
        let (open, close) = match syntax {
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
}
