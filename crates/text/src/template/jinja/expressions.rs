//! Evaluates expressions.

use std::sync::Arc;

use super::arguments::Args;
use super::ast::{Arguments, Comparison, Expr, ExprKind};
use super::error::Error;
use super::interpreter::Machine;
use super::text::Str;
use super::value::{SeqKind, Value};
use super::{calls, checks, filters, members, methods, operators, print, slices};

impl Machine<'_> {
    pub(super) fn eval(&mut self, expression: &Expr) -> Result<Value, Error> {
        let value = self.nested(|machine| machine.eval_kind(&expression.kind));
        value.map_err(|error| error.at(expression.line))
    }

    fn eval_all(&mut self, expressions: &[Expr]) -> Result<Vec<Value>, Error> {
        expressions
            .iter()
            .map(|expression| self.eval(expression))
            .collect()
    }

    fn eval_kind(&mut self, kind: &ExprKind) -> Result<Value, Error> {
        match kind {
            ExprKind::None => Ok(Value::None),
            ExprKind::Bool(value) => Ok(Value::Bool(*value)),
            ExprKind::Int(value) => Ok(Value::Int(*value)),
            ExprKind::Float(value) => Ok(Value::Float(*value)),
            ExprKind::Str(text) => Ok(Value::Str(Str::Own(Arc::clone(text)))),
            ExprKind::Name(name) => Ok(self.lookup(name)),
            ExprKind::List(items) => {
                let items = self.eval_all(items)?;
                Value::list(items, &self.meter.budget)
            }
            ExprKind::Tuple(items) => {
                let items = self.eval_all(items)?;
                Value::seq(SeqKind::Tuple, items, &self.meter.budget)
            }
            ExprKind::Dict(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value)| Ok((self.eval(key)?, self.eval(value)?)));
                let entries = entries.collect::<Result<_, Error>>()?;
                Value::dict(&self.meter, entries)
            }
            ExprKind::Or(operands) => self.first_that(operands, true),
            ExprKind::And(operands) => self.first_that(operands, false),
            ExprKind::Not(value) => Ok(Value::Bool(!self.eval(value)?.is_true())),
            ExprKind::Negative(value) => operators::negative(&self.eval(value)?),
            ExprKind::Positive(value) => operators::positive(&self.eval(value)?),
            ExprKind::Compare(first, others) => self.compare(first, others),
            ExprKind::Arithmetic(first, others) => {
                let mut value = self.eval(first)?;
                for (operator, other) in others {
                    let other = self.eval(other)?;
                    value = operators::arithmetic(&self.meter, *operator, &value, &other)?;
                }
                Ok(value)
            }
            ExprKind::Concat(operands) => {
                let texts = self.eval_all(operands)?;
                let texts = texts.iter().map(|value| print::text(&self.meter, value));
                let texts: Vec<Str> = texts.collect::<Result<_, _>>()?;
                operators::joined(&self.meter, &texts.iter().collect::<Vec<_>>())
            }
            ExprKind::If {
                condition,
                then,
                otherwise,
            } => {
                if self.eval(condition)?.is_true() {
                    return self.eval(then);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined",
                    )),
                }
            }
            ExprKind::Attribute(value, name) => {
                let value = self.eval(value)?;
                members::attribute(&self.meter, &value, name)
            }
            ExprKind::Item(value, index) => {
                let value = self.eval(value)?;
                let index = self.eval(index)?;
                members::item(&self.meter, &value, &index)
            }
            ExprKind::Slice(value, bounds) => self.slice(value, bounds),
            ExprKind::Call(called, arguments) => self.call_parts(called, arguments, None),
            ExprKind::Filter(value, call) => {
                let value = self.eval(value)?;
                let arguments = self.arguments(&call.arguments)?;
                filters::apply(&self.meter, &call.name, value, arguments)
            }
            ExprKind::Test {
                value,
                name,
                arguments,
                is_negated,
            } => {
                let value = self.eval(value)?;
                let arguments = self.arguments(arguments)?;
                let holds = checks::holds(&self.meter, name, &value, arguments)?;
                Ok(Value::Bool(holds != *is_negated))
            }
        }
    }

    /// The first operand that is as true as asked, or the last.
    fn first_that(&mut self, operands: &[Expr], is_true: bool) -> Result<Value, Error> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand)?;
            if value.is_true() == is_true {
                break;
            }
        }
        Ok(value)
    }

    fn compare(&mut self, first: &Expr, others: &[(Comparison, Expr)]) -> Result<Value, Error> {
        let mut left = self.eval(first)?;
        for (comparison, other) in others {
            let right = self.eval(other)?;
            if !operators::holds(&self.meter, *comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(&mut self, value: &Expr, bounds: &[Option<Box<Expr>>; 3]) -> Result<Value, Error> {
        let value = self.eval(value)?;
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            let Some(bound) = bound else { continue };
            let bound = self.eval(bound)?;
            *number = match (&bound, bound.as_int()) {
                (_, Some(int)) => Some(int),
                (Value::None, None) => None,
                _ => {
                    let what = "slice indices must be integers or None or have an __index__ method";
                    return Err(bound.refuse(what));
                }
            };
        }
        slices::slice(&self.meter, &value, numbers)
    }

    pub(super) fn arguments(&mut self, arguments: &Arguments) -> Result<Args, Error> {
        let mut positional = self.eval_all(&arguments.positional)?;
        let named = arguments
            .named
            .iter()
            .map(|(name, value)| Ok((Arc::clone(name), self.eval(value)?)));
        let mut named: Vec<_> = named.collect::<Result<_, Error>>()?;
        if let Some(more) = &arguments.more_positional {
            let more = self.eval(more)?;
            positional.extend(more.items(&self.meter)?);
        }
        if let Some(more) = &arguments.more_named {
            let more = self.eval(more)?;
            let Value::Dict(more) = &more else {
                return Err(more.refuse("argument after ** must be a mapping"));
            };
            for (key, value) in &more.entries {
                let Some(name) = key.as_str() else {
                    return Err(Error::new("keywords must be strings"));
                };
                named.push((name.text().into(), value.clone()));
            }
        }
        Ok(Args { positional, named })
    }

    /// Evaluates an expression that is a call, with a body for the macro that it calls.
    pub(super) fn call_expression(
        &mut self,
        call: &Expr,
        caller: Option<Value>,
    ) -> Result<Value, Error> {
        let ExprKind::Call(called, arguments) = &call.kind else {
            return Err(Error::new("expected call").at(call.line));
        };
        let value = self.call_parts(called, arguments, caller);
        value.map_err(|error| error.at(call.line))
    }

    fn call_parts(
        &mut self,
        called: &Expr,
        arguments: &Arguments,
        caller: Option<Value>,
    ) -> Result<Value, Error> {
        // A method needs no value of its own.
        if let ExprKind::Attribute(value, name) = &called.kind {
            let value = self.eval(value)?;
            if members::is_method(&value, name) {
                let arguments = self.arguments(arguments)?;
                return methods::call(&self.meter, &value, name, arguments);
            }
            let called = members::attribute(&self.meter, &value, name)?;
            return self.call_value(&called, arguments, caller);
        }
        let called = self.eval(called)?;
        self.call_value(&called, arguments, caller)
    }

    fn call_value(
        &mut self,
        called: &Value,
        arguments: &Arguments,
        caller: Option<Value>,
    ) -> Result<Value, Error> {
        let mut arguments = self.arguments(arguments)?;
        arguments
            .named
            .extend(caller.map(|caller| ("caller".into(), caller)));
        calls::call(self, called, arguments)
    }
}
