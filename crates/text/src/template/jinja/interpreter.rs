//! Runs a template.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Expr, FilterCall, For, MacroDef, Name, Statement, Target};
use super::error::Error;
use super::meter::Meter;
use super::text::{Budget, Builder, Str};
use super::value::{Frame, Function, Loop, Macro, Namespace, Seq, SeqKind, Shown, Value};
use super::{filters, print};

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Normal,
    Break,
    Continue,
}

/// The state of one rendering.
pub(super) struct Machine<'a> {
    /// The caller's variables and the template's special tokens.
    globals: &'a dyn Fn(&str) -> Option<Value>,
    /// Dropped before the frames, whose values it empties.
    pub(super) meter: Meter,
    frames: Vec<Rc<Frame>>,
    output: Builder,
}

impl<'a> Machine<'a> {
    /// Values take at most `value_bytes_max` and the text `output_bytes_max`; `globals` finds the
    /// variables of the rendering.
    pub(super) fn new(
        value_bytes_max: usize,
        output_bytes_max: usize,
        globals: &'a dyn Fn(&str) -> Option<Value>,
    ) -> Self {
        Self {
            globals,
            meter: Meter::new(value_bytes_max),
            frames: vec![Rc::default()],
            output: Builder::new(&Budget::new(output_bytes_max, Error::output_too_long)),
        }
    }

    /// The text, and where callers wrote it.
    pub(super) fn run(
        mut self,
        body: &[Statement],
    ) -> Result<(String, Vec<std::ops::Range<usize>>), Error> {
        self.body(body)?;
        let empty = Builder::new(&self.meter.budget);
        Ok(std::mem::replace(&mut self.output, empty).into_parts())
    }

    /// Runs what recurses.
    pub(super) fn nested<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.meter.enter()?;
        let result = run(self);
        self.meter.leave();
        result
    }

    pub(super) fn lookup(&self, name: &str) -> Value {
        let local = self.frames.iter().rev().find_map(|frame| frame.get(name));
        local
            .or_else(|| (self.globals)(name))
            .or_else(|| function(name))
            .unwrap_or_else(|| Value::undefined(format!("'{}' is undefined", Shown(name))))
    }

    pub(super) fn new_namespace(&self) -> Result<Rc<Namespace>, Error> {
        self.meter.spend(1)?;
        let namespace = Rc::new(Namespace::new(&self.meter)?);
        self.meter.empty_at_end(&namespace);
        Ok(namespace)
    }

    fn set(&self, name: &Arc<str>, value: Value) {
        self.frames
            .last()
            .expect("there is always a scope")
            .set(name, value);
    }

    fn assign(&self, target: &Target, value: Value) -> Result<(), Error> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Member(name, member) => match self.lookup(name) {
                Value::Namespace(namespace) => namespace.set(&self.meter, member, value)?,
                _ => {
                    return Err(Error::new(
                        "cannot assign attribute on non-namespace object",
                    ));
                }
            },
            Target::Tuple(targets) => {
                let items = value.items(&self.meter)?;
                if items.len() != targets.len() {
                    let what = format!(
                        "expected {} values to unpack, got {}",
                        targets.len(),
                        items.len()
                    );
                    return Err(Error::new(what));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }
}

/// Functions of every template.
fn function(name: &str) -> Option<Value> {
    Some(Value::Function(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "cycler" => Function::Cycler,
        "joiner" => Function::Joiner,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    }))
}

/// Statements.
impl Machine<'_> {
    fn body(&mut self, body: &[Statement]) -> Result<Flow, Error> {
        for statement in body {
            let flow = self.nested(|machine| machine.statement(statement))?;
            if flow != Flow::Normal {
                return Ok(flow);
            }
        }
        Ok(Flow::Normal)
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow, Error> {
        match statement {
            Statement::Text(text) => {
                self.meter.copy(text.len())?;
                self.output.own(text)?;
            }
            Statement::Print(expression) => self.print(expression)?,
            Statement::If {
                branches,
                otherwise,
            } => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            Statement::For(of) => {
                let items = self.eval(&of.iterable)?;
                return self.run_loop(of, &items, 0);
            }
            Statement::Set(target, value) => {
                let line = value.line;
                let value = self.eval(value)?;
                self.assign(target, value).map_err(|error| error.at(line))?;
            }
            Statement::SetText(target, filters, body) => {
                let text = self.filtered_body(filters, body)?;
                self.assign(target, text)?;
            }
            Statement::With(values, body) => return self.with(values, body),
            Statement::Macro(def) => {
                let value = self.closure(def);
                self.set(&def.name, value);
            }
            Statement::Call(call, caller) => self.call_with_body(call, caller)?,
            Statement::Filter(filters, body) => {
                let text = self.filtered_body(filters, body)?;
                self.print_value(&text)?;
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Unsupported(tag, template) => {
                let name = self.eval(template)?;
                let name = print::text(&self.meter, &name)?;
                let what = format!("`{tag}` of '{}': a chat template stands alone", name.text());
                return Err(Error::new(what).at(template.line));
            }
        }
        Ok(Flow::Normal)
    }

    fn print(&mut self, expression: &Expr) -> Result<(), Error> {
        let value = self.eval(expression)?;
        self.print_value(&value)
            .map_err(|error| error.at(expression.line))
    }

    fn print_value(&mut self, value: &Value) -> Result<(), Error> {
        let text = print::text(&self.meter, value)?;
        self.meter.copy(text.text().len())?;
        self.output.push(&text)
    }

    fn with(&mut self, values: &[(Target, Expr)], body: &[Statement]) -> Result<Flow, Error> {
        let values = values
            .iter()
            .map(|(target, value)| Ok((target, self.eval(value)?)));
        let values: Vec<_> = values.collect::<Result<_, Error>>()?;
        self.scoped(|machine| {
            for (target, value) in values {
                machine.assign(target, value)?;
            }
            machine.body(body)
        })
    }

    /// Runs with a scope of its own.
    fn scoped<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.frames.push(Rc::default());
        let result = run(self);
        self.frames.pop();
        result
    }

    /// The text that a body writes.
    fn captured(&mut self, body: &[Statement]) -> Result<Str, Error> {
        let outer = std::mem::replace(&mut self.output, Builder::of_value(&self.meter.budget));
        let result = self.body(body);
        let inner = std::mem::replace(&mut self.output, outer);
        result.map(|_| inner.finish())
    }

    fn filtered_body(&mut self, calls: &[FilterCall], body: &[Statement]) -> Result<Value, Error> {
        let text = self.scoped(|machine| machine.captured(body))?;
        let mut value = Value::Str(text);
        for call in calls {
            let arguments = self.arguments(&call.arguments)?;
            value = filters::apply(&self.meter, &call.name, value, arguments)?;
        }
        Ok(value)
    }

    fn run_loop(&mut self, of: &Arc<For>, items: &Value, depth0: usize) -> Result<Flow, Error> {
        let mut items = items
            .sequence(&self.meter)
            .map_err(|error| error.at(of.iterable.line))?;
        if let Some(condition) = &of.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                let is_kept = self.scoped(|machine| {
                    machine.assign(&of.target, item.clone())?;
                    Ok(machine.eval(condition)?.is_true())
                })?;
                kept.extend(is_kept.then(|| item.clone()));
            }
            items = Seq::new(SeqKind::List, kept, &self.meter.budget)?;
        }
        if items.items.is_empty() {
            return self.scoped(|machine| machine.body(&of.otherwise));
        }
        let changed = Rc::default();
        for (index0, item) in items.items.iter().enumerate() {
            let state = Loop {
                index0,
                items: Rc::clone(&items),
                depth0,
                changed: Rc::clone(&changed),
                body: of.is_recursive.then(|| Arc::clone(of)),
            };
            let flow = self.scoped(|machine| {
                machine.set(&"loop".into(), Value::Loop(Rc::new(state)));
                machine.assign(&of.target, item.clone())?;
                machine.nested(|machine| machine.body(&of.body))
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::Normal)
    }

    /// The text of a recursive loop over other items.
    pub(super) fn call_loop(&mut self, of: &Loop, items: &Value) -> Result<Value, Error> {
        let Some(body) = &of.body else {
            return Err(Error::new(
                "the loop must have the 'recursive' marker to be called",
            ));
        };
        let outer = std::mem::replace(&mut self.output, Builder::of_value(&self.meter.budget));
        let result = self.nested(|machine| machine.run_loop(body, items, of.depth0 + 1));
        let inner = std::mem::replace(&mut self.output, outer);
        result.map(|_| Value::Str(inner.finish()))
    }
}

/// Macros.
impl Machine<'_> {
    fn closure(&self, def: &Arc<MacroDef>) -> Value {
        let frames = self.frames.clone();
        for frame in &frames {
            if !frame.is_closure.replace(true) {
                self.meter.empty_at_end(frame);
            }
        }
        Value::Macro(Rc::new(Macro {
            def: Arc::clone(def),
            frames,
        }))
    }

    fn call_with_body(&mut self, call: &Expr, caller: &Arc<MacroDef>) -> Result<(), Error> {
        let caller = self.closure(caller);
        let value = self.call_expression(call, Some(caller))?;
        self.print_value(&value)
    }

    /// The text of a macro. A name that the caller did not give is undefined.
    pub(super) fn call_macro(
        &mut self,
        called: &Macro,
        mut positional: Vec<Value>,
        mut named: Vec<(Name, Value)>,
    ) -> Result<Value, Error> {
        let def = &called.def;
        let more = positional.split_off(positional.len().min(def.parameters.len()));
        let outer_frames = std::mem::replace(&mut self.frames, called.frames.clone());
        let result = self.scoped(|machine| {
            let mut given = positional.into_iter();
            for (name, default) in &def.parameters {
                let at = named.iter().position(|(known, _)| known == name);
                let value = match (given.next(), at, default) {
                    (Some(value), ..) => value,
                    (None, Some(at), _) => named.remove(at).1,
                    (None, None, Some(default)) => machine.eval(default)?,
                    (None, None, None) => {
                        let name = Shown(name);
                        Value::undefined(format!("parameter '{name}' was not provided"))
                    }
                };
                machine.set(name, value);
            }
            machine.set_rest(more, named)?;
            let body = |machine: &mut Self| machine.captured(&def.body);
            machine.nested(body).map(Value::Str)
        });
        self.frames = outer_frames;
        result
    }

    /// The arguments that a macro has no names for.
    fn set_rest(&self, positional: Vec<Value>, mut named: Vec<(Name, Value)>) -> Result<(), Error> {
        if let Some(at) = named.iter().position(|(name, _)| &**name == "caller") {
            self.set(&"caller".into(), named.remove(at).1);
        }
        let positional = Value::seq(SeqKind::Tuple, positional, &self.meter.budget)?;
        self.set(&"varargs".into(), positional);
        let named = named
            .into_iter()
            .map(|(name, value)| (Value::Str(Str::Own(name)), value));
        self.set(&"kwargs".into(), Value::dict(&self.meter, named.collect())?);
        Ok(())
    }
}
