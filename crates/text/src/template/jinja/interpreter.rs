//! Runs a template.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ast::{Expr, FilterCall, For, MacroDef, Name, Statement, Target};
use super::error::Error;
use super::namespace::Namespace;
use super::text::{Budget, Builder, Str};
use super::value::{Changed, Function, Loop, Macro, Seq, SeqKind, Shown, Value};
use super::{filters, print};

/// Steps of one rendering: a few seconds at most. A message costs some dozens.
const STEPS_MAX: u64 = 1_000_000;
/// Bytes that are examined, bytes that are copied, and items that are visited in one step.
const STEP_BYTES: usize = 256;
const STEP_BYTES_COPIED: usize = 4096;
const STEP_ITEMS: usize = 16;
/// Bytes of the values that a template makes, at any time.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 20;
/// Deepest recursion of statements, expressions and macros, which take the stack of the thread.
const DEPTH_MAX: usize = 200;

/// Variables of one scope.
#[derive(Default)]
pub(super) struct Frame {
    variables: RefCell<Vec<(Arc<str>, Value)>>,
    /// Whether a macro sees it.
    is_closure: Cell<bool>,
}

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
    pub(super) budget: Rc<Budget>,
    steps: Cell<u64>,
    /// Items that were visited since the last step was counted for them.
    visits: Cell<usize>,
    /// The texts of one character, and whether a caller wrote it.
    characters: RefCell<FxHashMap<(char, bool), Str>>,
    depth: usize,
    frames: Vec<Rc<Frame>>,
    output: Builder,
    /// Namespaces may contain themselves, or chains of any length: they are emptied at the end. The
    /// variables that macros see, and the arguments that loops remember, are emptied as well.
    namespaces: Vec<Rc<Namespace>>,
    closures: Vec<Rc<Frame>>,
    changed: Vec<Rc<Changed>>,
}

impl Frame {
    fn get(&self, name: &str) -> Option<Value> {
        let variables = self.variables.borrow();
        let variable = variables.iter().find(|(known, _)| **known == *name);
        variable.map(|(_, value)| value.clone())
    }

    fn set(&self, name: &Arc<str>, value: Value) {
        let mut variables = self.variables.borrow_mut();
        let variable = variables.iter_mut().find(|(known, _)| known == name);
        let _old = match variable {
            Some((_, variable)) => Some(std::mem::replace(variable, value)),
            None => {
                variables.push((Arc::clone(name), value));
                None
            }
        };
        drop(variables);
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            namespace.empty();
        }
        for frame in &self.closures {
            drop(frame.variables.take());
        }
        for changed in &self.changed {
            drop(changed.0.take());
        }
    }
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
            budget: Budget::new(value_bytes_max, Error::too_much_memory),
            steps: Cell::new(STEPS_MAX),
            visits: Cell::new(0),
            characters: RefCell::default(),
            depth: 0,
            frames: vec![Rc::default()],
            output: Builder::new(&Budget::new(output_bytes_max, Error::output_too_long)),
            namespaces: Vec::new(),
            closures: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// The text, and where callers wrote it.
    pub(super) fn run(
        mut self,
        body: &[Statement],
    ) -> Result<(String, Vec<std::ops::Range<usize>>), Error> {
        self.body(body)?;
        let empty = Builder::new(&self.budget);
        Ok(std::mem::replace(&mut self.output, empty).into_parts())
    }

    pub(super) fn spend(&self, steps: u64) -> Result<(), Error> {
        let left = self.steps.get().checked_sub(steps);
        let left = left.ok_or_else(|| {
            Error::new(format!("out of fuel: it takes more than {STEPS_MAX} steps"))
        })?;
        self.steps.set(left);
        Ok(())
    }

    /// Counts the copying of so many bytes.
    pub(super) fn copy(&self, bytes: usize) -> Result<(), Error> {
        self.spend((bytes / STEP_BYTES_COPIED) as u64)
    }

    /// Counts the work on so many bytes.
    pub(super) fn work(&self, bytes: usize) -> Result<(), Error> {
        self.spend((bytes / STEP_BYTES) as u64)
    }

    /// Counts the work on so many items.
    pub(super) fn work_items(&self, items: usize) -> Result<(), Error> {
        self.spend((items / STEP_ITEMS) as u64)
    }

    /// Counts the work on one item.
    pub(super) fn visit(&self) -> Result<(), Error> {
        let visits = self.visits.get() + 1;
        self.visits.set(visits % STEP_ITEMS);
        self.work_items(if visits == STEP_ITEMS { visits } else { 0 })
    }

    pub(super) fn builder(&self) -> Builder {
        Builder::of_value(&self.budget)
    }

    pub(super) fn joined(&self, texts: &[&Str]) -> Result<Value, Error> {
        let mut output = self.builder();
        for text in texts {
            self.copy(text.text().len())?;
            output.push(text)?;
        }
        Ok(Value::Str(output.finish()))
    }

    /// Runs what recurses.
    pub(super) fn nested<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.depth == DEPTH_MAX {
            return Err(Error::new(format!(
                "recursion: more than {DEPTH_MAX} levels deep"
            )));
        }
        self.spend(1)?;
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    pub(super) fn lookup(&self, name: &str) -> Value {
        let local = self.frames.iter().rev().find_map(|frame| frame.get(name));
        local
            .or_else(|| (self.globals)(name))
            .or_else(|| function(name))
            .unwrap_or_else(|| Value::undefined(format!("'{}' is undefined", Shown(name))))
    }

    pub(super) fn new_namespace(&mut self) -> Result<Rc<Namespace>, Error> {
        self.spend(1)?;
        let namespace = Rc::new(Namespace::new(self)?);
        self.namespaces.push(Rc::clone(&namespace));
        Ok(namespace)
    }

    pub(super) fn empty_at_end(&mut self, changed: &Rc<Changed>) {
        self.changed.push(Rc::clone(changed));
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
                Value::Namespace(namespace) => namespace.set(self, member, value)?,
                _ => {
                    return Err(Error::new(
                        "cannot assign attribute on non-namespace object",
                    ));
                }
            },
            Target::Tuple(targets) => {
                let items = self.items(&value)?;
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

    /// The items that Python's `for` visits.
    pub(super) fn items(&self, value: &Value) -> Result<Vec<Value>, Error> {
        let items = match value {
            Value::Undefined(_) => Vec::new(),
            Value::Seq(seq) => seq.items.clone(),
            Value::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Str(text) => return self.single_characters(text),
            other => {
                return Err(Error::new(format!(
                    "'{}' object is not iterable",
                    other.type_name()
                )));
            }
        };
        self.work_items(items.len())?;
        Ok(items)
    }

    /// The items that Python's `for` visits, as a value.
    fn sequence(&self, value: &Value) -> Result<Rc<Seq>, Error> {
        match value {
            Value::Seq(seq) => {
                self.work_items(seq.items.len())?;
                Ok(Rc::clone(seq))
            }
            other => Seq::new(SeqKind::List, self.items(other)?, &self.budget),
        }
    }

    fn single_characters(&self, text: &Str) -> Result<Vec<Value>, Error> {
        let count = text.text().chars().count();
        self.work_items(count)?;
        // Taken before the list exists.
        drop(self.budget.take(count * size_of::<Value>())?);
        let mut items = Vec::with_capacity(count);
        for (part, is_caller) in text.parts(0..text.text().len()) {
            for c in part.chars() {
                items.push(Value::Str(self.character(c, is_caller)?));
            }
        }
        Ok(items)
    }

    /// One character as a text. Equal ones are the same.
    pub(super) fn character(&self, c: char, is_caller: bool) -> Result<Str, Error> {
        if let Some(known) = self.characters.borrow().get(&(c, is_caller)) {
            return Ok(known.clone());
        }
        let mut text = self.builder();
        text.part(c.encode_utf8(&mut [0; 4]), is_caller)?;
        let text = text.finish();
        let mut characters = self.characters.borrow_mut();
        characters.insert((c, is_caller), text.clone());
        Ok(text)
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
                self.copy(text.len())?;
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
                let name = print::text(self, &name)?;
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
        let text = print::text(self, value)?;
        self.copy(text.text().len())?;
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
        let outer = std::mem::replace(&mut self.output, Builder::of_value(&self.budget));
        let result = self.body(body);
        let inner = std::mem::replace(&mut self.output, outer);
        result.map(|_| inner.finish())
    }

    fn filtered_body(&mut self, calls: &[FilterCall], body: &[Statement]) -> Result<Value, Error> {
        let text = self.scoped(|machine| machine.captured(body))?;
        let mut value = Value::Str(text);
        for call in calls {
            let arguments = self.arguments(&call.arguments)?;
            value = filters::apply(self, &call.name, value, arguments)?;
        }
        Ok(value)
    }

    fn run_loop(&mut self, of: &Arc<For>, items: &Value, depth0: usize) -> Result<Flow, Error> {
        let mut items = self
            .sequence(items)
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
            items = Seq::new(SeqKind::List, kept, &self.budget)?;
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
        let outer = std::mem::replace(&mut self.output, Builder::of_value(&self.budget));
        let result = self.nested(|machine| machine.run_loop(body, items, of.depth0 + 1));
        let inner = std::mem::replace(&mut self.output, outer);
        result.map(|_| Value::Str(inner.finish()))
    }
}

/// Macros.
impl Machine<'_> {
    fn closure(&mut self, def: &Arc<MacroDef>) -> Value {
        let frames = self.frames.clone();
        let unknown = frames
            .iter()
            .filter(|frame| !frame.is_closure.replace(true));
        self.closures.extend(unknown.cloned());
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
        let positional = Value::seq(SeqKind::Tuple, positional, &self.budget)?;
        self.set(&"varargs".into(), positional);
        let named = named
            .into_iter()
            .map(|(name, value)| (Value::Str(Str::Own(name)), value));
        self.set(&"kwargs".into(), Value::dict(self, named.collect())?);
        Ok(())
    }
}
