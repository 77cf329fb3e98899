//! The environment of templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, escape_formatter};

use super::{functions, json};

/// Instructions of one rendering: a fraction of a second. A message costs some dozens.
const FUEL: u64 = 1_000_000;

/// The environment of `transformers` for templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the usual delimiters do not clash");
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", functions::python_text);
    environment.add_test("iterable", functions::is_iterable);
    environment.set_formatter(|output, state, value| match functions::float(value) {
        Some(_) => escape_formatter(output, state, &functions::python_text(value)),
        None => escape_formatter(output, state, value),
    });
    environment.add_function("raise_exception", functions::raise_exception);
    environment.add_function("strftime_now", functions::strftime_now);
    environment
}
