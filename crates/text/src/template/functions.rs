//! Functions of templates beyond Jinja's own.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// Python's `json.dumps` without escapes for HTML, as `transformers` defines the filter. Only its
/// option `indent` has an effect.
pub(super) fn to_json(
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = indent
        .or(options.get("indent")?)
        .filter(|value| !value.is_none());
    let escaped = minijinja::filters::tojson(value, indent, no_options())?;
    let escaped = escaped.as_str().unwrap_or_default();
    Ok(Value::from(without_html_escapes(escaped)))
}

fn no_options() -> Kwargs {
    Kwargs::from_iter(std::iter::empty::<(&str, Value)>())
}

/// JSON in which `<`, `>`, `&` and `'` stand for themselves again.
fn without_html_escapes(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(start) = rest.find('\\') {
        let (before, escape) = rest.split_at(start);
        plain.push_str(before);
        let (character, length) = match escape.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // An escaped backslash must not be read as the start of the next.
            _ => (&escape[..2], 2),
        };
        plain.push_str(character);
        rest = &escape[length..];
    }
    plain.push_str(rest);
    plain
}

/// Lets a template reject its input.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The present time in UTC. `transformers` takes the local time, which the
/// standard library does not know.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    strftime(format, seconds)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// C's `strftime` in English; `%-` leaves out the padding.
fn strftime(format: &str, unix_seconds: u64) -> Result<String, Error> {
    let days = unix_seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute) = (unix_seconds / 3600 % 24, unix_seconds / 60 % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1 January 1970 was a Thursday.
    let day_name = DAYS[(days as usize + 4) % 7];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut code = characters.next();
        let padded = code != Some('-');
        if !padded {
            code = characters.next();
        }
        let two = |number: u64| {
            if padded {
                format!("{number:02}")
            } else {
                number.to_string()
            }
        };
        text.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => two(minute),
            Some('S') => two(unix_seconds % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let what = format!("strftime_now: `%{}` is not supported", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        });
    }
    Ok(text)
}

/// Year, month and day of a day since 1970 (Hinnant, "chrono-compatible low-level
/// date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_strftime() {
        let check = |seconds, format, expected| {
            assert_eq!(strftime(format, seconds).expect("supported"), expected);
        };
        check(0, "%Y-%m-%d %H:%M:%S %a", "1970-01-01 00:00:00 Thu");
        check(951_827_696, "%d %b %Y, %A", "29 Feb 2000, Tuesday");
        check(1_709_251_199, "%F %I:%M %p", "2024-02-29 11:59 PM");
        check(1_709_251_200, "%-d %B %y 100%% %-I", "1 March 24 100% 12");
        check(4_102_444_800, "%e|%F", " 1|2100-01-01");
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }

    #[test]
    fn json_matches_python() {
        let check = |value: Value, expected: &str| {
            let json = to_json(&value, None, no_options()).expect("can be JSON");
            assert_eq!(json.as_str(), Some(expected));
        };
        check(
            minijinja::context! { b => vec![1, 2], a => "<'&'>" },
            r#"{"b": [1, 2], "a": "<'&'>"}"#,
        );
        check(Value::from("\\u003c \\ \n é"), r#""\\u003c \\ \n é""#);
        check(Value::from(()), "null");
    }
}
