//! Plain text for a terminal of 80 columns.

/// Columns of a terminal.
pub(super) const WIDTH: usize = 80;

/// Eighths of a block, for bars finer than a column.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A number with separated thousands.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 step`, `2 steps`.
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(number))
}

/// Milliseconds, in a unit that keeps them short.
pub(super) fn duration(milliseconds: f64) -> String {
    match milliseconds {
        ms if ms < 9.995 => format!("{ms:.2} ms"),
        ms if ms < 99.95 => format!("{ms:.1} ms"),
        ms if ms < 9_999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
}

/// A bar that fills `part / whole` of `columns` columns. A part above 0 is always visible.
pub(super) fn bar(part: u64, whole: u64, columns: usize) -> String {
    let eighths = (part * columns as u64 * 8)
        .div_ceil(whole.max(1))
        .max(u64::from(part > 0)) as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Wraps text in lines of at most [`WIDTH`] columns. The first line begins with `label`,
/// the others with as many spaces. Line breaks in the text are kept.
pub(super) fn paragraph(label: &str, text: &str) -> String {
    let indent = label.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for source in text.trim().lines() {
        let mut line = String::new();
        let mut columns = indent;
        for word in source.split_whitespace() {
            let length = word.chars().count();
            if !line.is_empty() && columns + 1 + length > WIDTH {
                lines.push(std::mem::take(&mut line));
                columns = indent;
            }
            if !line.is_empty() {
                line.push(' ');
                columns += 1;
            }
            line.push_str(word);
            columns += length;
        }
        lines.push(line);
    }
    let mut output = String::new();
    let margin = " ".repeat(indent);
    for (number, line) in lines.iter().enumerate() {
        let start = if number == 0 { label } else { &margin };
        output.push_str(format!("{start}{line}").trim_end());
        output.push('\n');
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let check = |number, text| assert_eq!(thousands(number), text);
        check(0, "0");
        check(999, "999");
        check(1_000, "1,000");
        check(1_234_567, "1,234,567");
        let check = |ms, text| assert_eq!(duration(ms), text);
        check(0.0, "0.00 ms");
        check(9.996, "10.0 ms");
        check(99.96, "100 ms");
        check(1_234.5, "1234 ms");
        check(12_345.0, "12.3 s");
        assert_eq!(counted(1, "step"), "1 step");
        assert_eq!(counted(1_200, "step"), "1,200 steps");
    }

    #[test]
    fn bars_fill_their_columns() {
        let check = |part, whole, text| assert_eq!(bar(part, whole, 4), text);
        check(0, 8, "");
        check(8, 8, "████");
        check(4, 8, "██");
        check(1, 8, "▌");
        check(1, 1_000_000, "▏");
        check(0, 0, "");
    }

    #[test]
    fn paragraphs_keep_to_their_columns() {
        let words = "word ".repeat(60);
        let text = paragraph("label  ", &words);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("label  word word"));
        assert!(lines[1].starts_with("       word word"));
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(text.split_whitespace().count(), 61);
        assert_eq!(paragraph("a ", "b\n\nc "), "a b\n\n  c\n");
        let long = "x".repeat(200);
        assert_eq!(paragraph("a ", &long), format!("a {long}\n"));
    }
}
