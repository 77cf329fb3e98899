//! The date, for templates.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time in UTC. `transformers` takes the local time, which the
/// standard library does not know.
pub(super) fn strftime_now(format: &str) -> Result<String, String> {
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
fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
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
                let code = other.unwrap_or(' ');
                return Err(format!("strftime_now: `%{code}` is not supported"));
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
}
