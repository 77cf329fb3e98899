//! The grammar of an answer.
//!
//! It is Lark for llguidance. Marks that are special tokens are written by their ids, others as
//! text. Free text before a mark that is a special token is any text that does not spell the
//! mark; before other marks it ends with the first of them (`[lazy]`).
//!
//! Arguments are always JSON, in the marks of the model. Where the model's own form is no JSON
//! (Python, XML, Gemma), it could not follow a schema exactly: the form has no quotes, or
//! strings without escapes. The parser reads both.

use serde_json::{Value, json};

use super::format::{
    AnswerFormat, Form, HarmonyMarks, Mark, Marked, Reasoning, ReasoningStart, Syntax,
};
use super::tools::{Tool, ToolChoice, ToolError, Tools};
use crate::grammar::{AnswerGrammar, AnswerSchema, GrammarSource};
use crate::schema::closed::closed;

/// Most calls of an answer that a grammar allows after the first.
const MORE_CALLS_MAX: usize = 15;

impl AnswerFormat {
    /// The grammar that constrains an answer to calls of `tools`; `None` if the answer is free.
    ///
    /// | choice | the answer |
    /// |---|---|
    /// | `Required` | reasoning, if it may reason; then calls, each by its tool's schema |
    /// | `Named` | the same, with one call |
    /// | `Auto`, a tool is strict | free; but a call that begins is of an offered tool, and follows its schema if the tool is strict |
    /// | `Auto`, `None` | free |
    ///
    /// With `parallel`, an answer has up to 16 calls; without, one. Objects in schemas have no
    /// members beside those that are named, unless the schema says that they may
    /// (`additionalProperties`).
    ///
    /// A schema that cannot be a grammar is an error when the grammar is compiled,
    /// [`GrammarError::Tool`](crate::grammar::GrammarError::Tool), with the tool's name.
    ///
    /// # Errors
    ///
    /// [`ToolError::NoTools`], [`ToolError::UnknownTool`].
    pub fn grammar(
        &self,
        tools: &Tools,
        choice: &ToolChoice,
        parallel: bool,
        reasoning: ReasoningStart,
    ) -> Result<Option<GrammarSource>, ToolError> {
        let rules = match choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if !tools.has_strict() => return Ok(None),
            ToolChoice::Auto => {
                let schema = |tool: &Tool| {
                    if tool.is_strict {
                        closed(&tool.parameters)
                    } else {
                        json!({"type": "object"})
                    }
                };
                let mut rules = Rules::new(parallel);
                rules.answer(self, tools.iter(), &schema, true, reasoning);
                rules
            }
            ToolChoice::Required if tools.is_empty() => return Err(ToolError::NoTools),
            ToolChoice::Required => {
                let mut rules = Rules::new(parallel);
                let schema = |tool: &Tool| closed(&tool.parameters);
                rules.answer(self, tools.iter(), &schema, false, reasoning);
                rules
            }
            ToolChoice::Named(name) => {
                let tool = tools
                    .get(name)
                    .ok_or_else(|| ToolError::UnknownTool { name: name.clone() })?;
                let mut rules = Rules::new(false);
                let schema = |tool: &Tool| closed(&tool.parameters);
                rules.answer(self, [tool], &schema, false, reasoning);
                rules
            }
        };
        Ok(Some(rules.into_source()))
    }

    /// The grammar of an answer whose text is JSON by a schema, after reasoning if the model may
    /// reason. `None` stands for any object. Without reasoning and channels, it is the schema's
    /// own.
    #[must_use]
    pub fn json_grammar(&self, schema: Option<&Value>, reasoning: ReasoningStart) -> GrammarSource {
        let format = self.format();
        let is_plain = reasoning == ReasoningStart::Absent || format.reasoning.is_none();
        if is_plain && matches!(format.syntax, Syntax::Marked(_)) {
            return schema.map_or(GrammarSource::Json, |schema| {
                GrammarSource::JsonSchema(schema.to_string())
            });
        }
        let mut rules = Rules::new(false);
        let schema = schema.map_or_else(|| json!({"type": "object"}), Value::clone);
        rules.schema("text", None, schema);
        match (&format.syntax, &format.reasoning) {
            (Syntax::Harmony(marks), _) => {
                let before = rules.analysis(marks, reasoning);
                let (channel, message) = (spelled(&marks.channel), spelled(&marks.message));
                rules.rule(
                    "start",
                    &format!("{before} {channel} \"final\" {message} text"),
                );
            }
            (Syntax::Marked(_), Some(marks)) => {
                let before = rules.reasoning(marks, reasoning);
                rules.rule("start", &format!("{before} text"));
            }
            (Syntax::Marked(_), None) => rules.rule("start", "text"),
        }
        rules.into_source()
    }
}

/// Rules in Lark.
struct Rules {
    text: String,
    schemas: Vec<AnswerSchema>,
    parallel: bool,
}

impl Rules {
    fn new(parallel: bool) -> Self {
        Self {
            text: String::new(),
            schemas: Vec::new(),
            parallel,
        }
    }

    fn into_source(self) -> GrammarSource {
        GrammarSource::Answer(AnswerGrammar::new(self.text, self.schemas))
    }

    fn rule(&mut self, name: &str, body: &str) {
        self.text.push_str(&format!("{name}: {body}\n"));
    }

    fn schema(&mut self, rule: &str, tool: Option<&Tool>, schema: Value) {
        self.schemas.push(AnswerSchema {
            rule: rule.to_owned(),
            tool: tool.map(|tool| tool.name.clone()),
            schema,
        });
    }

    /// The rules of an answer with calls of these tools; `is_free` allows text instead.
    fn answer<'a>(
        &mut self,
        format: &AnswerFormat,
        tools: impl IntoIterator<Item = &'a Tool>,
        schema: &dyn Fn(&Tool) -> Value,
        is_free: bool,
        reasoning: ReasoningStart,
    ) {
        let format = format.format();
        let mut calls = Vec::new();
        for (number, tool) in tools.into_iter().enumerate() {
            let arguments = format!("arguments_{number}");
            self.schema(&arguments, Some(tool), schema(tool));
            let call = match &format.syntax {
                Syntax::Harmony(marks) => {
                    let begin = format!("commentary to=functions.{} ", tool.name);
                    let (begin, message) = (literal(&begin), spelled(&marks.message));
                    let constrain = spelled(&marks.constrain);
                    format!("{begin} {constrain} \"json\" {message} {arguments}")
                }
                Syntax::Marked(marked) => call_rule(marked, tool, &arguments),
            };
            let name = format!("call_{number}");
            self.rule(&name, &call);
            calls.push(name);
        }
        self.rule("call", &calls.join(" | "));
        match &format.syntax {
            Syntax::Harmony(marks) => self.harmony(marks, is_free, reasoning),
            Syntax::Marked(marked) => {
                let before = match &format.reasoning {
                    Some(marks) => self.reasoning(marks, reasoning),
                    None => String::new(),
                };
                if marked.is_bare_written {
                    self.bare(marked, is_free, &before);
                } else {
                    self.marked(marked, is_free, &before);
                }
            }
        }
    }

    /// Repeats a rule, if there may be several calls.
    fn more(&self, rule: &str) -> String {
        if self.parallel {
            format!("({rule}){{0,{MORE_CALLS_MAX}}}")
        } else {
            String::new()
        }
    }

    /// Calls on lines of their own.
    fn bare(&mut self, marked: &Marked, is_free: bool, before: &str) {
        let separator = match marked.form {
            Form::ObjectOfParameters => "\"; \" call",
            _ => "\"\\n\" call",
        };
        let more = self.more(separator);
        self.rule("calls", &format!("call {more}"));
        if !is_free {
            self.rule("start", &format!("{before} calls"));
            return;
        }
        // Lines that begin with a brace are calls.
        let line = "[ \\t]*([^ \\t\\n{][^\\n]*)?";
        self.rule("LINES", &format!("/({line}\\n)+/"));
        self.rule("TEXT", &format!("/({line}\\n)*[ \\t]*[^ \\t\\n{{][^\\n]*/"));
        self.rule("start", &format!("{before} (LINES? calls | TEXT? | LINES)"));
    }

    /// Calls within marks.
    fn marked(&mut self, marked: &Marked, is_free: bool, before: &str) {
        let pair = &marked.pairs[0];
        let open = spelled(&pair.open);
        let close = pair.close.as_ref().map_or_else(String::new, spelled);
        let is_on_lines = pair
            .close
            .as_ref()
            .is_some_and(|mark| mark.text == "</tool_call>");
        let line = if is_on_lines { "\"\\n\"" } else { "" };
        // The text between the first opening mark and the end.
        let body = match marked.form {
            Form::List => {
                let more = self.more("\", \" call");
                format!("\"[\" call {more} \"]\" {close}")
            }
            Form::Object | Form::ObjectOfParameters | Form::Named => {
                let more = self.more(&format!("{line} {open} {line} call {line} {close}"));
                format!("{line} call {line} {close} {more}")
            }
        };
        self.rule("body", &body);
        if !is_free {
            self.rule("start", &format!("{before} {open} body"));
            return;
        }
        self.rule("TEXT", &text_without(&[&pair.open]));
        if pair.open.token.is_some() {
            self.rule("start", &format!("{before} TEXT? ({open} body)?"));
        } else {
            self.rule("opened[lazy]", &format!("/(?s:.)*/ {open}"));
            self.rule("start", &format!("{before} (opened body | TEXT?)"));
        }
    }

    /// Messages on channels.
    fn harmony(&mut self, marks: &HarmonyMarks, is_free: bool, reasoning: ReasoningStart) {
        let before = self.analysis(marks, reasoning);
        let (channel, message) = (spelled(&marks.channel), spelled(&marks.message));
        if is_free {
            let next = next_message(marks);
            self.rule(
                "preamble",
                &format!("{channel} \"commentary\" {message} TEXT? {next}"),
            );
            let last = format!("({channel} call | {channel} \"final\" {message} TEXT?)");
            self.rule("start", &format!("{before} preamble? {last}"));
        } else {
            self.rule("start", &format!("{before} {channel} call"));
        }
    }

    /// The rules of reasoning on its channel; returns what the answer begins with.
    fn analysis(&mut self, marks: &HarmonyMarks, reasoning: ReasoningStart) -> String {
        let all = [
            &marks.start,
            &marks.channel,
            &marks.message,
            &marks.constrain,
            &marks.end,
        ];
        self.rule("TEXT", &text_without(&all));
        let next = next_message(marks);
        match reasoning {
            ReasoningStart::Absent => String::new(),
            ReasoningStart::Open => format!("TEXT? {next}"),
            ReasoningStart::Possible => {
                let (channel, message) = (spelled(&marks.channel), spelled(&marks.message));
                let message = format!("{channel} \"analysis\" {message} TEXT? {next}");
                self.rule("analysis", &message);
                "analysis?".to_owned()
            }
        }
    }

    /// The rules of reasoning within marks; returns what the answer begins with.
    fn reasoning(&mut self, marks: &Reasoning, start: ReasoningStart) -> String {
        if start == ReasoningStart::Absent {
            return String::new();
        }
        let close = spelled(&marks.close);
        if marks.close.token.is_some() {
            self.rule("THOUGHT", &text_without(&[&marks.close]));
            self.rule("thought", &format!("THOUGHT? {close} GAP?"));
        } else {
            self.rule("closed[lazy]", &format!("/(?s:.)*/ {close}"));
            self.rule("thought", "closed GAP?");
        }
        self.rule("GAP", "/[ \\n]{1,4}/");
        if start == ReasoningStart::Open {
            return "thought".to_owned();
        }
        let open = spelled(&marks.open);
        self.rule("reasoning", &format!("{open} thought"));
        "reasoning?".to_owned()
    }
}

/// The text of one call of a tool, without its marks.
fn call_rule(marked: &Marked, tool: &Tool, arguments: &str) -> String {
    let key = match marked.form {
        Form::Named => {
            let (name, mark) = (literal(&tool.name), spelled(&marked.arguments));
            return format!("{name} {mark} {arguments}");
        }
        Form::Object | Form::List => "arguments",
        Form::ObjectOfParameters => "parameters",
    };
    let begin = format!("{{\"name\": \"{}\", \"{key}\": ", tool.name);
    format!("{} {arguments} \"}}\"", literal(&begin))
}

/// The end of a message, and the beginning of the next.
fn next_message(marks: &HarmonyMarks) -> String {
    let (end, start) = (spelled(&marks.end), spelled(&marks.start));
    format!("{end} {start} \"assistant\"")
}

/// A mark as Lark writes it.
fn spelled(mark: &Mark) -> String {
    let rest = &mark.text[mark.token_bytes..];
    match mark.token {
        Some(token) if rest.is_empty() => format!("<[{token}]>"),
        Some(token) => format!("<[{token}]> {}", literal(rest)),
        None => literal(&mark.text),
    }
}

/// A text as Lark writes it: as JSON does.
fn literal(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// Text that contains none of these marks as text.
fn text_without(marks: &[&Mark]) -> String {
    let marks: Vec<String> = marks.iter().map(|mark| literal(&mark.text)).collect();
    let any = "/(?s:.)*/";
    format!("/(?s:.)+/ & ~({any} ({}) {any})", marks.join(" | "))
}
