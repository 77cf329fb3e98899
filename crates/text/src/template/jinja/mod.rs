//! A template engine: Jinja as `transformers` runs it, on values that know what callers wrote.
//!
//! It is an engine of its own for two promises that no other makes. A rendering is bounded in steps,
//! in recursion and in the memory of its values. And each character of its text is known to be the
//! template's or a caller's, whatever the template does to strings: only the template's own spell
//! special tokens.
//!
//! Each row uses those above it.
//!
//! | file | content |
//! |---|---|
//! | `lexer.rs`, `parser.rs`, `parser_expr.rs`, `ast.rs`, `names.rs` | a template as a tree |
//! | `text.rs`, `meter.rs` | texts, the bytes that they take, and the steps that a rendering takes |
//! | `value/` | values, how they compare, and their items |
//! | `print.rs`, `slices.rs`, `members.rs`, `printf.rs`, `operators.rs`, `strings.rs`, `methods.rs` | what Python does with them |
//! | `json.rs`, `checks.rs`, `item_filters.rs`, `text_filters.rs`, `filters.rs` | the tests and filters of Jinja |
//! | `interpreter.rs`, `expressions.rs`, `calls.rs` | runs a template |

mod arguments;
mod ast;
mod calls;
mod checks;
mod error;
mod expressions;
mod filters;
mod interpreter;
mod item_filters;
mod json;
mod lexer;
mod members;
mod meter;
mod methods;
mod names;
mod operators;
mod parser;
mod parser_expr;
mod print;
mod printf;
mod slices;
mod strings;
#[cfg(test)]
mod tests;
mod text;
mod text_filters;
mod value;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::template::chat::{Chat, Message};
use ast::Statement;
pub(super) use error::Error;
use interpreter::Machine;
use meter::VALUE_BYTES_MAX;
use text::{Budget, Str};
use value::Value;

/// A parsed template.
pub(super) struct Template(Vec<Statement>);

/// A conversation as its template writes it.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) text: String,
    /// The bytes that callers wrote, in order.
    pub(crate) callers: Vec<Range<usize>>,
}

impl Written {
    /// Removes all from this offset on.
    pub(crate) fn truncate(&mut self, at: usize) {
        self.text.truncate(at);
        let end = self.text.len();
        self.callers.retain(|bytes| bytes.start < end);
        if let Some(last) = self.callers.last_mut() {
            last.end = last.end.min(end);
        }
    }

    /// The last bytes of the text.
    pub(crate) fn end(&self, bytes: usize) -> &str {
        let from = self.text.len().saturating_sub(bytes);
        &self.text[self.text.floor_char_boundary(from)..]
    }
}

/// The variables that a template may read.
pub(super) struct Variables<'a> {
    pub(super) chat: &'a Chat,
    pub(super) add_generation_prompt: bool,
    /// Texts of the model's own, such as `bos_token`.
    pub(super) special_tokens: &'a BTreeMap<String, String>,
}

impl Template {
    pub(super) fn parse(source: &str) -> Result<Self, Error> {
        parser::parse(source).map(Self)
    }

    /// Whether there are all filters and tests that it names.
    pub(super) fn check_names(&self) -> Result<(), Error> {
        names::check(&self.0)
    }

    /// Writes at most `bytes_max` bytes.
    pub(super) fn render(
        &self,
        variables: &Variables<'_>,
        bytes_max: usize,
    ) -> Result<Written, Error> {
        self.render_within(variables, VALUE_BYTES_MAX, bytes_max)
    }

    fn render_within(
        &self,
        variables: &Variables<'_>,
        value_bytes_max: usize,
        bytes_max: usize,
    ) -> Result<Written, Error> {
        // Callers bound what they give; the budget of the rendering is for what the template makes.
        let given = Budget::new(usize::MAX, Error::too_much_memory);
        let globals = variables.read(&given)?;
        let global = |name: &str| globals.get(name).cloned();
        let machine = Machine::new(value_bytes_max, bytes_max, &global);
        let (text, callers) = machine.run(&self.0)?;
        Ok(Written { text, callers })
    }
}

impl Variables<'_> {
    fn read(&self, given: &Rc<Budget>) -> Result<BTreeMap<&str, Value>, Error> {
        // Later entries hide earlier ones.
        let mut globals = BTreeMap::new();
        for (name, text) in self.special_tokens {
            globals.insert(&**name, Value::own(text));
        }
        globals.insert("tools", Value::None);
        globals.insert("documents", Value::None);
        for (name, value) in &self.chat.variables {
            globals.insert(name, Value::of_caller(value, given)?);
        }
        let messages = self.chat.messages.iter();
        let messages = messages.map(|message| read_message(message, given));
        let messages = Value::list(messages.collect::<Result<_, _>>()?, given)?;
        globals.insert("messages", messages);
        let add = Value::Bool(self.add_generation_prompt);
        globals.insert("add_generation_prompt", add);
        Ok(globals)
    }
}

fn read_message(message: &Message, given: &Rc<Budget>) -> Result<Value, Error> {
    let text = |text: &str| Value::Str(Str::of_caller(text));
    // Templates spell tokens with roles.
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let role = if message.role.chars().all(is_word) {
        Value::own(&message.role)
    } else {
        text(&message.role)
    };
    let mut entries = vec![
        (Value::own("role"), role),
        (Value::own("content"), text(&message.content)),
    ];
    for (name, value) in &message.more {
        let value = Value::of_caller(value, given)?;
        match ["role", "content"].iter().position(|own| own == name) {
            Some(at) => entries[at].1 = value,
            None => entries.push((text(name), value)),
        }
    }
    Value::dict_of(entries, given)
}
