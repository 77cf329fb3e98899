//! The filters of lists.

use std::cmp::Ordering;

use super::arguments::{Args, integer, needed};
use super::ast::Operator;
use super::error::Error;
use super::meter::Meter;
use super::operators::arithmetic;
use super::text::Str;
use super::value::compare::{self, KeyIndex, compare, is_equal};
use super::value::{SeqKind, Value};
use super::{checks, members, print, strings};

pub(super) fn apply(
    meter: &Meter,
    name: &str,
    value: &Value,
    arguments: Args,
) -> Result<Value, Error> {
    match name {
        "join" => join(meter, value, arguments),
        "select" | "reject" | "selectattr" | "rejectattr" => select(meter, name, value, arguments),
        "sort" => sort(meter, value, arguments),
        "dictsort" => sort_dict(meter, value, arguments),
        "min" | "max" => extreme(meter, name, value, arguments),
        "unique" => unique(meter, value, arguments),
        "groupby" => group(meter, value, arguments),
        "sum" => sum(meter, value, arguments),
        "batch" | "slice" => cut(meter, name, value, arguments),
        // A prompt does not depend on chance.
        "random" => Err(Error::new("the filter 'random' is not supported")),
        _ => {
            arguments.none(name)?;
            end(meter, name == "first", value)
        }
    }
}

/// The first item or the last.
fn end(meter: &Meter, is_first: bool, value: &Value) -> Result<Value, Error> {
    fn of<T>(mut items: impl DoubleEndedIterator<Item = T>, is_first: bool) -> Option<T> {
        if is_first {
            items.next()
        } else {
            items.next_back()
        }
    }
    let item = match value {
        Value::Str(text) => {
            let item = of(text.text().char_indices(), is_first).map(|(at, c)| {
                let parts = text.parts(at..at + c.len_utf8());
                meter.character(c, parts.iter().any(|(_, is_caller)| *is_caller))
            });
            item.transpose()?.map(Value::Str)
        }
        Value::Seq(seq) => of(seq.items.iter(), is_first).cloned(),
        Value::Dict(dict) => of(dict.entries.iter(), is_first).map(|(key, _)| key.clone()),
        other => of(other.items(meter)?.into_iter(), is_first),
    };
    let name = if is_first { "first" } else { "last" };
    let missing = || Value::undefined(format!("No {name} item, sequence was empty."));
    Ok(item.unwrap_or_else(missing))
}

/// A value's member by a path such as `a.0.b`.
pub(super) fn member(meter: &Meter, value: &Value, path: &Value) -> Result<Value, Error> {
    let Value::Str(text) = path else {
        return members::item(meter, value, path);
    };
    let mut value = value.clone();
    for part in text.text().split('.') {
        meter.spend(1)?;
        let index = match part.parse::<i128>() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::own(part),
        };
        value = members::item(meter, &value, &index)?;
    }
    Ok(value)
}

fn member_or_itself(meter: &Meter, value: &Value, path: Option<&Value>) -> Result<Value, Error> {
    match path {
        None | Some(Value::None) => Ok(value.clone()),
        Some(path) => member(meter, value, path),
    }
}

/// Texts in one case, unless cases count.
fn folded(meter: &Meter, value: Value, is_sensitive: bool) -> Result<Value, Error> {
    match &value {
        Value::Str(text) if !is_sensitive => strings::call(meter, text, "lower", Args::default()),
        _ => Ok(value),
    }
}

fn is_set(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn join(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let [separator, attribute] = arguments.bind("join", ["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => print::text(meter, &separator)?,
        None => "".into(),
    };
    let mut output = meter.builder();
    for (index, item) in value.items(meter)?.iter().enumerate() {
        let item = member_or_itself(meter, item, attribute.as_ref())?;
        let item = print::text(meter, &item)?;
        if index > 0 {
            output.push(&separator)?;
        }
        meter.copy(item.text().len())?;
        output.push(&item)?;
    }
    Ok(Value::Str(output.finish()))
}

/// The name of a filter or test, and the other arguments.
pub(super) fn named(mut arguments: Args, what: &str) -> Result<(Str, Args), Error> {
    if arguments.positional.is_empty() {
        return Err(Error::new(format!("map requires a {what} argument")));
    }
    let name = arguments.positional.remove(0);
    match name {
        Value::Str(name) => Ok((name, arguments)),
        other => Err(other.refuse(format!("the name of a {what} is a text"))),
    }
}

/// The same arguments again.
pub(super) fn copied(arguments: &Args) -> Args {
    Args {
        positional: arguments.positional.clone(),
        named: arguments.named.clone(),
    }
}

fn select(meter: &Meter, name: &str, value: &Value, mut arguments: Args) -> Result<Value, Error> {
    let attribute = if name.ends_with("attr") {
        if arguments.positional.is_empty() {
            return Err(Error::new("Missing parameter for attribute name"));
        }
        Some(arguments.positional.remove(0))
    } else {
        None
    };
    let test = if arguments.positional.is_empty() {
        None
    } else {
        Some(named(arguments, "test")?)
    };
    let mut kept = Vec::new();
    for item in value.items(meter)? {
        meter.spend(1)?;
        let examined = member_or_itself(meter, &item, attribute.as_ref())?;
        let holds = match &test {
            None => examined.is_true(),
            Some((test, arguments)) => {
                checks::holds(meter, test.text(), &examined, copied(arguments))?
            }
        };
        if holds == name.starts_with("select") {
            kept.push(item);
        }
    }
    generator(meter, kept)
}

/// Sorts by the keys; equal ones keep their order. The order may be none that is total.
fn sorted(
    meter: &Meter,
    mut items: Vec<(Vec<Value>, Value)>,
    is_reversed: bool,
) -> Result<Vec<(Vec<Value>, Value)>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    meter.spend(items.len() as u64)?;
    let right = items.split_off(items.len() / 2);
    let left = sorted(meter, items, is_reversed)?;
    let right = sorted(meter, right, is_reversed)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let order = order(meter, &one.0, &other.0)?;
        let takes_other = if is_reversed {
            order.is_lt()
        } else {
            order.is_gt()
        };
        merged.extend(if takes_other {
            right.next()
        } else {
            left.next()
        });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

fn order(meter: &Meter, one: &[Value], other: &[Value]) -> Result<Ordering, Error> {
    for (one, other) in one.iter().zip(other) {
        if !is_equal(meter, one, other)? {
            return Ok(compare(meter, one, other, "<")?.unwrap_or(Ordering::Equal));
        }
    }
    Ok(Ordering::Equal)
}

fn sort(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, is_sensitive, attribute] = arguments.bind("sort", names)?;
    let is_sensitive = is_set(is_sensitive);
    let paths: Vec<Value> = match attribute.filter(|path| !matches!(path, Value::None)) {
        Some(Value::Str(paths)) => paths.text().split(',').map(Value::own).collect(),
        other => other.into_iter().collect(),
    };
    let mut keyed = Vec::new();
    for item in value.items(meter)? {
        let mut keys = Vec::new();
        if paths.is_empty() {
            keys.push(folded(meter, item.clone(), is_sensitive)?);
        }
        for path in &paths {
            let key = member(meter, &item, path)?;
            keys.push(folded(meter, key, is_sensitive)?);
        }
        keyed.push((keys, item));
    }
    let items = sorted(meter, keyed, is_set(reverse))?;
    let items = items.into_iter().map(|(_, item)| item).collect();
    Value::list(items, &meter.budget)
}

fn sort_dict(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let [is_sensitive, by, reverse] = arguments.bind("dictsort", names)?;
    let by = by
        .as_ref()
        .and_then(Value::as_str)
        .map_or("key", Str::text)
        .to_owned();
    if !["key", "value"].contains(&&*by) {
        return Err(Error::new(
            "You can only sort by either \"key\" or \"value\"",
        ));
    }
    let Value::Dict(dict) = value else {
        return Err(value.refuse(format!(
            "'{}' object has no attribute 'items'",
            value.type_name()
        )));
    };
    let is_sensitive = is_set(is_sensitive);
    let mut keyed = Vec::new();
    for (key, value) in &dict.entries {
        let by = if by == "key" { key } else { value };
        let folded = folded(meter, by.clone(), is_sensitive)?;
        let pair = vec![key.clone(), value.clone()];
        keyed.push((
            vec![folded],
            Value::seq(SeqKind::Tuple, pair, &meter.budget)?,
        ));
    }
    let items = sorted(meter, keyed, is_set(reverse))?;
    let items = items.into_iter().map(|(_, item)| item).collect();
    Value::list(items, &meter.budget)
}

fn extreme(meter: &Meter, name: &str, value: &Value, arguments: Args) -> Result<Value, Error> {
    let [is_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
    let is_sensitive = is_set(is_sensitive);
    let sign = if name == "min" { "<" } else { ">" };
    let mut best: Option<(Value, Value)> = None;
    for item in value.items(meter)? {
        meter.spend(1)?;
        let key = member_or_itself(meter, &item, attribute.as_ref())?;
        let key = folded(meter, key, is_sensitive)?;
        let is_better = match &best {
            None => true,
            Some((best, _)) => match compare(meter, &key, best, sign)? {
                Some(order) => {
                    if name == "min" {
                        order.is_lt()
                    } else {
                        order.is_gt()
                    }
                }
                None => false,
            },
        };
        if is_better {
            best = Some((key, item));
        }
    }
    let missing = || Value::undefined("No aggregated item, sequence was empty.");
    Ok(best.map_or_else(missing, |(_, item)| item))
}

fn unique(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let [is_sensitive, attribute] = arguments.bind("unique", ["case_sensitive", "attribute"])?;
    let is_sensitive = is_set(is_sensitive);
    let mut index = KeyIndex::default();
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for item in value.items(meter)? {
        meter.spend(1)?;
        let key = member_or_itself(meter, &item, attribute.as_ref())?;
        let key = folded(meter, key, is_sensitive)?;
        compare::check_key(meter, &key)?;
        let hash = compare::hash(meter, &key)?;
        if index.find(meter, hash, &key, |at| &seen[at])?.is_none() {
            index.push(hash);
            seen.push(key);
            kept.push(item);
        }
    }
    generator(meter, kept)
}

fn group(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, is_sensitive] = arguments.bind("groupby", names)?;
    let attribute = needed("groupby", "attribute", attribute)?;
    let is_sensitive = is_set(is_sensitive);
    let mut keyed = Vec::new();
    for item in value.items(meter)? {
        let mut key = member(meter, &item, &attribute)?;
        if key.is_undefined() {
            key = default.clone().unwrap_or(key);
        }
        let folded = folded(meter, key.clone(), is_sensitive)?;
        let pair = Value::seq(SeqKind::Tuple, vec![key, item], &meter.budget)?;
        keyed.push((vec![folded], pair));
    }
    let mut groups: Vec<(Vec<Value>, Value, Vec<Value>)> = Vec::new();
    for (folded, pair) in sorted(meter, keyed, false)? {
        let Value::Seq(pair) = &pair else { continue };
        let (key, item) = (pair.items[0].clone(), pair.items[1].clone());
        match groups.last_mut() {
            Some((known, _, items)) if is_equal(meter, &known[0], &folded[0])? => {
                items.push(item);
            }
            _ => groups.push((folded, key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(_, key, items)| {
        let items = Value::list(items, &meter.budget)?;
        Value::seq(SeqKind::Tuple, vec![key, items], &meter.budget)
    });
    Value::list(groups.collect::<Result<_, _>>()?, &meter.budget)
}

fn sum(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let [attribute, start] = arguments.bind("sum", ["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in value.items(meter)? {
        meter.spend(1)?;
        let item = member_or_itself(meter, &item, attribute.as_ref())?;
        total = arithmetic(meter, Operator::Add, &total, &item)?;
    }
    Ok(total)
}

/// `batch`: lists of so many items; `slice`: so many lists.
fn cut(meter: &Meter, name: &str, value: &Value, arguments: Args) -> Result<Value, Error> {
    let [count, fill] = arguments.bind(name, ["count", "fill_with"])?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let count = integer(name, Some(needed(name, "count", count)?))?;
    let count = count
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| *count > 0);
    let count = count.ok_or_else(|| Error::new(format!("{name}: the number is not positive")))?;
    let items = value.items(meter)?;
    meter.work_items(items.len())?;
    let mut lists: Vec<Vec<Value>> = Vec::new();
    if name == "batch" {
        lists = items.chunks(count).map(<[Value]>::to_vec).collect();
        if let (Some(fill), Some(last)) = (fill, lists.last_mut()) {
            meter.work_items(count)?;
            drop(
                meter
                    .budget
                    .take(count.saturating_mul(size_of::<Value>()))?,
            );
            last.resize(count, fill);
        }
    } else {
        let (each, more) = (items.len() / count, items.len() % count);
        let mut start = 0;
        for number in 0..count {
            meter.spend(1)?;
            let end = start + each + usize::from(number < more);
            let mut list = items[start..end].to_vec();
            if let Some(fill) = fill.as_ref().filter(|_| number >= more) {
                list.push(fill.clone());
            }
            lists.push(list);
            start = end;
        }
    }
    let lists = lists
        .into_iter()
        .map(|list| Value::list(list, &meter.budget));
    generator(meter, lists.collect::<Result<_, _>>()?)
}

/// The items of a generator.
pub(super) fn generator(meter: &Meter, items: Vec<Value>) -> Result<Value, Error> {
    Value::seq(SeqKind::Generator, items, &meter.budget)
}
