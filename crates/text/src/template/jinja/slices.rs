//! Parts of texts and lists, and texts repeated, as Python numbers characters.

use std::ops::Range;

use super::error::Error;
use super::meter::Meter;
use super::text::{Builder, Str};
use super::value::{SeqKind, Value};

/// The bytes at which the characters of a text begin, and its end, where it is not ASCII.
pub(super) fn character_ends(text: &str) -> Option<Vec<usize>> {
    if text.is_ascii() {
        return None;
    }
    Some(
        text.char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .collect(),
    )
}

/// A text's characters from one number to another.
pub(super) fn characters(
    meter: &Meter,
    text: &Str,
    numbers: impl IntoIterator<Item = usize>,
) -> Result<Value, Error> {
    let ends = character_ends(text.text());
    let at = |number: usize| ends.as_ref().map_or(number, |ends| ends[number]);
    let mut output = meter.builder();
    // Neighbours are copied together.
    let mut run: Option<Range<usize>> = None;
    for number in numbers {
        match &mut run {
            Some(run) if run.end == number => run.end += 1,
            _ => {
                flush(&mut output, text, &mut run, &at)?;
                run = Some(number..number + 1);
            }
        }
    }
    flush(&mut output, text, &mut run, &at)?;
    Ok(Value::Str(output.finish()))
}

fn flush(
    output: &mut Builder,
    text: &Str,
    run: &mut Option<Range<usize>>,
    at: &impl Fn(usize) -> usize,
) -> Result<(), Error> {
    match run.take() {
        Some(run) => output.range(text, at(run.start)..at(run.end)),
        None => Ok(()),
    }
}

/// The numbers of a slice of so many items.
pub(super) fn slice_numbers(
    length: usize,
    [start, stop, step]: [Option<i128>; 3],
) -> Result<Box<dyn Iterator<Item = usize>>, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new("slice step cannot be zero"));
    }
    let length = length as i128;
    let (least, most) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(value) if value < 0 => value.saturating_add(length).max(least),
        Some(value) => value.min(most),
    };
    let step_size = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    Ok(if step > 0 {
        let (start, stop) = (bound(start, 0), bound(stop, length));
        let numbers = start as usize..stop.max(start) as usize;
        Box::new(numbers.step_by(step_size))
    } else {
        let (start, stop) = (bound(start, length - 1), bound(stop, -1));
        let numbers = (stop + 1) as usize..(start.max(stop) + 1) as usize;
        Box::new(numbers.rev().step_by(step_size))
    })
}

pub(super) fn slice(
    meter: &Meter,
    value: &Value,
    bounds: [Option<i128>; 3],
) -> Result<Value, Error> {
    match value {
        Value::Str(text) => {
            meter.work(text.text().len())?;
            let length = text.text().chars().count();
            characters(meter, text, slice_numbers(length, bounds)?)
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            meter.work_items(seq.items.len())?;
            let numbers = slice_numbers(seq.items.len(), bounds)?;
            let items = numbers.map(|number| seq.items[number].clone()).collect();
            Value::seq(seq.kind, items, &meter.budget)
        }
        Value::Undefined(what) => Err(Error::new(&**what)),
        // Jinja looks for a member of such a name.
        other => Ok(Value::undefined(format!(
            "'{} object' has no attribute slice",
            other.type_name()
        ))),
    }
}

/// The text so many times.
pub(super) fn repeat(meter: &Meter, text: &Str, times: i128) -> Result<Str, Error> {
    /// Longer texts are copied one by one, shorter ones together.
    const TOGETHER_BYTES: usize = 4096;
    let length = text.text().len();
    let mut output = meter.builder();
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if length == 0 || times == 0 {
        return Ok(output.finish());
    }
    // Taken before anything is written, so that too many are rejected at once.
    drop(meter.budget.take(length.saturating_mul(times))?);
    meter.copy(length * times)?;
    let together = (TOGETHER_BYTES / length).clamp(1, times);
    let mut several = meter.builder();
    for _ in 0..together {
        several.push(text)?;
    }
    let several = several.finish();
    for _ in 0..times / together {
        output.push(&several)?;
    }
    output.range(&several, 0..times % together * length)?;
    Ok(output.finish())
}
