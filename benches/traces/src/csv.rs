//! Comma-separated lengths, in Azure's form, whose cells have no quotes.
//!
//! Not by the crate `csv`: it gives a row the number of the blank line before it, and one stray quote
//! makes the rest of a file one cell, where errors here name the line. It would replace 15 lines.

use std::path::Path;
use std::time::Duration;

use crate::error::Place;
use crate::{Answer, Dated, Prompt, TraceError};

const TIME: &str = "TIMESTAMP";
const PROMPT: &str = "ContextTokens";
const ANSWER: &str = "GeneratedTokens";
const SECONDS_PER_DAY: i64 = 86_400;

/// Adds the requests of a file. Its first line names the columns.
pub(crate) fn read(path: &Path, text: &str, dated: &mut Vec<Dated>) -> Result<(), TraceError> {
    let place = |line| Place { path, line };
    let mut lines = (1..).zip(text.lines());
    let Some((_, names)) = lines.next() else {
        return Ok(());
    };
    let column = |name: &'static str| {
        let mut names = names.trim().split(',');
        let found = names.position(|found| found.trim() == name);
        found.ok_or_else(|| place(1).missing(name))
    };
    let (time, prompt, answer) = (column(TIME)?, column(PROMPT)?, column(ANSWER)?);
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let place = place(number);
        let cells: Vec<&str> = line.trim().split(',').map(str::trim).collect();
        let cell = |column: usize, name| cells.get(column).ok_or_else(|| place.missing(name));
        let length = |column, name| {
            let found = cell(column, name)?;
            let length = found.parse::<usize>();
            length.map_err(|_| place.unexpected(name, (*found).into(), "a number of tokens"))
        };
        let found = cell(time, TIME)?;
        let time = parse_time(found).ok_or_else(|| {
            place.unexpected(TIME, (*found).into(), "a time like 2023-11-16 18:15:46.68")
        })?;
        dated.push((
            time,
            Prompt::Length(length(prompt, PROMPT)?),
            Answer::Length(length(answer, ANSWER)?),
        ));
    }
    Ok(())
}

/// Time since 1970 of `2023-11-16 18:15:46.6805900`.
fn parse_time(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let hours: f64 = time.next()?.parse().ok()?;
    let minutes: f64 = time.next()?.parse().ok()?;
    let seconds: f64 = time.next()?.trim_end_matches('Z').parse().ok()?;
    let is_date =
        (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let days = is_date.then(|| days_since_1970(year, month, day))?;
    let midnight = Duration::from_secs(u64::try_from(days * SECONDS_PER_DAY).ok()?);
    let since_midnight = hours.mul_add(3_600.0, minutes.mul_add(60.0, seconds));
    Some(midnight + Duration::try_from_secs_f64(since_midnight).ok()?)
}

/// Howard Hinnant's `days_from_civil`, for years from 1970 on.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let check = |text: &str, seconds: Option<f64>| {
            let found = parse_time(text).map(|time| time.as_secs_f64());
            assert_eq!(found, seconds, "{text}");
        };
        check("1970-01-01 00:00:00", Some(0.0));
        check("2000-03-01 00:00:01.5", Some(951_868_801.5));
        check("2024-02-29T12:30:00Z", Some(1_709_209_800.0));
        for text in ["", "2023-11-16", "2023-13-01 00:00:00", "2023-11-16 a:b:c"] {
            check(text, None);
        }
    }

    #[test]
    fn errors_name_line_and_column() {
        let fails = |text: &str, expected: &str| {
            let error = read("X".as_ref(), text, &mut Vec::new()).expect_err("it is no trace");
            assert_eq!(error.to_string(), expected);
        };
        fails(
            "TIMESTAMP,ContextTokens\n",
            "line 1 of X: field `GeneratedTokens` is missing",
        );
        let names = "TIMESTAMP,ContextTokens,GeneratedTokens";
        fails(
            &format!("{names}\n2023-11-16 18:15:46.68,many,4"),
            "line 2 of X: field `ContextTokens` is many; expected a number of tokens",
        );
        fails(
            &format!("{names}\nnow,3,4"),
            "line 2 of X: field `TIMESTAMP` is now; expected a time like 2023-11-16 18:15:46.68",
        );
        fails(
            &format!("{names}\n\n2023-11-16 18:15:46.68,3"),
            "line 3 of X: field `GeneratedTokens` is missing",
        );
    }

    #[test]
    fn lengths_come_with_their_times() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2023-11-16 18:15:46.5,374,44\r\n2023-11-16 18:15:50.0,396,109\r\n";
        let mut dated = Vec::new();
        read("X".as_ref(), text, &mut dated).expect("a trace");
        let trace = crate::in_order("x".into(), dated).expect("two requests");
        assert_eq!(trace.requests[1].at, Duration::from_millis(3_500));
        assert_eq!(trace.requests[1].prompt, Prompt::Length(396));
        assert_eq!(trace.requests[0].answer, Answer::Length(44));
    }
}
