//! The texts of llguidance's errors.

/// An error without the state and the backtrace that may follow it.
pub(super) fn first_lines(what: &str) -> String {
    let end = ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"]
        .iter()
        .filter_map(|mark| what.find(mark))
        .min();
    what[..end.unwrap_or(what.len())].trim_end().to_owned()
}
