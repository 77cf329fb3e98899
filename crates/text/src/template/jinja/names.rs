//! The filters and tests that a template names.
//!
//! Jinja2 rejects unknown ones when it compiles. Here a branch that no conversation takes may have
//! them, so that the template is used without that branch.

use super::ast::{Arguments, Expr, ExprKind, FilterCall, MacroDef, Statement};
use super::error::Error;

/// Filters of texts, of numbers, and of any value.
const FILTERS: [&str; 32] = [
    "abs",
    "attr",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "items",
    "length",
    "list",
    "lower",
    "pprint",
    "replace",
    "reverse",
    "round",
    "safe",
    "string",
    "striptags",
    "title",
    "tojson",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "wordcount",
];

/// Filters of lists, and of what else has items.
const ITEM_FILTERS: [&str; 18] = [
    "batch",
    "dictsort",
    "first",
    "groupby",
    "join",
    "last",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
    "random",
];

const TESTS: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name) || is_item_filter(name)
}

pub(super) fn is_item_filter(name: &str) -> bool {
    ITEM_FILTERS.contains(&name)
}

pub(super) fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}

pub(super) fn unknown_filter(name: &str) -> Error {
    Error::new(format!("No filter named '{name}'."))
}

pub(super) fn unknown_test(name: &str) -> Error {
    Error::new(format!("No test named '{name}'."))
}

type Checked = Result<(), Error>;

/// # Errors
///
/// The first unknown name of a filter or test, as where it is applied.
pub(super) fn check(body: &[Statement]) -> Checked {
    body.iter().try_for_each(statement)
}

fn statement(statement: &Statement) -> Checked {
    match statement {
        Statement::Text(_) | Statement::Break | Statement::Continue => Ok(()),
        Statement::Print(value) | Statement::Set(_, value) | Statement::Unsupported(_, value) => {
            expression(value)
        }
        Statement::If {
            branches,
            otherwise,
        } => {
            for (condition, body) in branches {
                expression(condition)?;
                check(body)?;
            }
            check(otherwise)
        }
        Statement::For(of) => {
            expression(&of.iterable)?;
            of.condition.iter().try_for_each(expression)?;
            check(&of.body)?;
            check(&of.otherwise)
        }
        Statement::SetText(_, calls, body) | Statement::Filter(calls, body) => {
            // Such a filter has no line of its own.
            calls.iter().try_for_each(filter)?;
            check(body)
        }
        Statement::With(values, body) => {
            values.iter().try_for_each(|(_, value)| expression(value))?;
            check(body)
        }
        Statement::Macro(def) => definition(def),
        Statement::Call(call, caller) => {
            expression(call)?;
            definition(caller)
        }
    }
}

fn definition(def: &MacroDef) -> Checked {
    let defaults = def
        .parameters
        .iter()
        .filter_map(|(_, default)| default.as_ref());
    defaults.into_iter().try_for_each(expression)?;
    check(&def.body)
}

fn expression(of: &Expr) -> Checked {
    kind(&of.kind).map_err(|error| error.at(of.line))
}

fn boxed<'a>(expressions: impl IntoIterator<Item = &'a Box<Expr>>) -> Checked {
    expressions.into_iter().try_for_each(|of| expression(of))
}

fn kind(kind: &ExprKind) -> Checked {
    match kind {
        ExprKind::None
        | ExprKind::Bool(_)
        | ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Str(_)
        | ExprKind::Name(_) => Ok(()),
        ExprKind::List(all)
        | ExprKind::Tuple(all)
        | ExprKind::Or(all)
        | ExprKind::And(all)
        | ExprKind::Concat(all) => all.iter().try_for_each(expression),
        ExprKind::Dict(entries) => entries.iter().try_for_each(|(key, value)| {
            expression(key)?;
            expression(value)
        }),
        ExprKind::Not(value)
        | ExprKind::Negative(value)
        | ExprKind::Positive(value)
        | ExprKind::Attribute(value, _) => expression(value),
        ExprKind::Compare(first, others) => {
            expression(first)?;
            others.iter().try_for_each(|(_, other)| expression(other))
        }
        ExprKind::Arithmetic(first, others) => {
            expression(first)?;
            others.iter().try_for_each(|(_, other)| expression(other))
        }
        ExprKind::If {
            condition,
            then,
            otherwise,
        } => boxed([condition, then].into_iter().chain(otherwise)),
        ExprKind::Item(value, index) => boxed([value, index]),
        ExprKind::Slice(value, bounds) => {
            expression(value)?;
            boxed(bounds.iter().flatten())
        }
        ExprKind::Call(called, given) => {
            expression(called)?;
            arguments(given)
        }
        ExprKind::Filter(value, call) => {
            expression(value)?;
            filter(call)
        }
        ExprKind::Test {
            value,
            name,
            arguments: given,
            ..
        } => {
            if !is_test(name) {
                return Err(unknown_test(name));
            }
            expression(value)?;
            arguments(given)
        }
    }
}

fn filter(call: &FilterCall) -> Checked {
    if !is_filter(&call.name) {
        return Err(unknown_filter(&call.name));
    }
    arguments(&call.arguments)
}

fn arguments(given: &Arguments) -> Checked {
    given.positional.iter().try_for_each(expression)?;
    given
        .named
        .iter()
        .try_for_each(|(_, value)| expression(value))?;
    boxed(given.more_positional.iter().chain(&given.more_named))
}
