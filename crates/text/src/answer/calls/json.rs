//! Follows JSON from character to character.

use super::reader::{Calls, Progress, escaped_control};

/// Deepest nesting of a value.
const DEPTH_MAX: u32 = 128;

/// Follows one JSON value. It keeps no text.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    /// A bit for each open object or array: whether it is an object. The lowest is the innermost.
    objects: u128,
    depth: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    Next,
    Text { is_key: bool },
    Escape { is_key: bool },
    Hex { is_key: bool, left: u8 },
    Word(&'static str),
    Number(Number),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

/// The result of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The value goes on.
    More,
    /// The character was its last.
    Done,
    /// The character does not belong to it: it was a number, and whole.
    DoneBefore,
    /// No JSON value goes on so.
    Invalid,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self {
            objects: 0,
            depth: 0,
            state: State::Value,
        }
    }

    /// Whether the next character stands within a string.
    fn is_in_text(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    /// As [`is_in_text`](Self::is_in_text), or within an escape.
    fn is_in_string(&self) -> bool {
        self.is_in_text() || matches!(self.state, State::Escape { .. } | State::Hex { .. })
    }

    fn begins_value(&self) -> bool {
        matches!(self.state, State::Value | State::FirstItem)
    }

    fn begins_key(&self) -> bool {
        matches!(self.state, State::FirstKey | State::Key)
    }

    pub(super) fn push(&mut self, c: char) -> Scan {
        let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
        match self.state {
            State::Value
            | State::FirstItem
            | State::FirstKey
            | State::Key
            | State::Colon
            | State::Next
                if is_space =>
            {
                Scan::More
            }
            State::FirstItem if c == ']' => self.close(false),
            State::Value | State::FirstItem => self.begin(c),
            State::FirstKey if c == '}' => self.close(true),
            State::FirstKey | State::Key if c == '"' => self.go(State::Text { is_key: true }),
            State::Colon if c == ':' => self.go(State::Value),
            State::Next => self.next(c),
            State::Text { is_key } => self.text(c, is_key),
            State::Escape { is_key } => match c {
                'u' => self.go(State::Hex { is_key, left: 4 }),
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go(State::Text { is_key }),
                _ => Scan::Invalid,
            },
            State::Hex { is_key, left } if c.is_ascii_hexdigit() => self.go(match left {
                1 => State::Text { is_key },
                _ => State::Hex {
                    is_key,
                    left: left - 1,
                },
            }),
            State::Word(rest) => match rest.strip_prefix(c) {
                Some("") => self.end_value(),
                Some(rest) => self.go(State::Word(rest)),
                None => Scan::Invalid,
            },
            State::Number(number) => self.number(number, c),
            _ => Scan::Invalid,
        }
    }

    fn go(&mut self, state: State) -> Scan {
        self.state = state;
        Scan::More
    }

    fn begin(&mut self, c: char) -> Scan {
        match c {
            '{' => self.open(true, State::FirstKey),
            '[' => self.open(false, State::FirstItem),
            '"' => self.go(State::Text { is_key: false }),
            't' => self.go(State::Word("rue")),
            'f' => self.go(State::Word("alse")),
            'n' => self.go(State::Word("ull")),
            '-' => self.go(State::Number(Number::Minus)),
            '0' => self.go(State::Number(Number::Zero)),
            '1'..='9' => self.go(State::Number(Number::Digits)),
            _ => Scan::Invalid,
        }
    }

    fn open(&mut self, is_object: bool, inside: State) -> Scan {
        if self.depth == DEPTH_MAX {
            return Scan::Invalid;
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(is_object);
        self.go(inside)
    }

    fn is_in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn close(&mut self, is_object: bool) -> Scan {
        if self.is_in_object() != is_object {
            return Scan::Invalid;
        }
        self.depth -= 1;
        self.objects >>= 1;
        self.end_value()
    }

    fn end_value(&mut self) -> Scan {
        if self.depth == 0 {
            self.state = State::End;
            Scan::Done
        } else {
            self.go(State::Next)
        }
    }

    fn next(&mut self, c: char) -> Scan {
        match c {
            ',' if self.is_in_object() => self.go(State::Key),
            ',' => self.go(State::Value),
            '}' => self.close(true),
            ']' => self.close(false),
            _ => Scan::Invalid,
        }
    }

    fn text(&mut self, c: char, is_key: bool) -> Scan {
        match c {
            '"' if is_key => self.go(State::Colon),
            '"' => self.end_value(),
            '\\' => self.go(State::Escape { is_key }),
            c if c < ' ' => Scan::Invalid,
            _ => Scan::More,
        }
    }

    fn number(&mut self, number: Number, c: char) -> Scan {
        let next = match (number, c) {
            (Number::Minus, '0') => Number::Zero,
            (Number::Minus, '1'..='9') | (Number::Digits, '0'..='9') => Number::Digits,
            (Number::Zero | Number::Digits, '.') => Number::Point,
            (Number::Point | Number::Fraction, '0'..='9') => Number::Fraction,
            (Number::Zero | Number::Digits | Number::Fraction, 'e' | 'E') => Number::E,
            (Number::E, '+' | '-') => Number::ESign,
            (Number::E | Number::ESign | Number::Exponent, '0'..='9') => Number::Exponent,
            (Number::Zero | Number::Digits | Number::Fraction | Number::Exponent, _) => {
                return match self.end_value() {
                    Scan::Done => Scan::DoneBefore,
                    _ => self.push(c),
                };
            }
            _ => return Scan::Invalid,
        };
        self.go(State::Number(next))
    }
}

/// Follows what models write for JSON, and passes JSON on.
///
/// Hermes' own parser reads Python where it finds no JSON, and that of Qwen reads JSON5. Strings in
/// single quotes, `True`, `False`, `None` and a comma behind the last item become JSON here. Characters
/// that JSON strings must escape and models forget to escape, such as line ends, are escaped.
#[derive(Clone, Debug)]
pub(super) struct LenientScanner {
    scanner: JsonScanner,
    /// A comma and the white space behind it: nothing, if no item follows.
    comma: String,
    /// Whether the present string stands in single quotes.
    is_single: bool,
    /// Whether the last character was a backslash within single quotes.
    is_escaped: bool,
    /// The rest of a constant of Python's, and of the same in JSON.
    constant: Option<(&'static str, &'static str)>,
}

/// Most bytes of white space behind a comma.
const COMMA_BYTES_MAX: usize = 1024;

impl LenientScanner {
    pub(super) fn new() -> Self {
        Self {
            scanner: JsonScanner::new(),
            comma: String::new(),
            is_single: false,
            is_escaped: false,
            constant: None,
        }
    }

    /// Takes a character, and gives those of JSON to `pass`. They lag behind where a comma may be
    /// the last.
    pub(super) fn push(&mut self, c: char, pass: &mut impl FnMut(char)) -> Scan {
        if let Some((written, json)) = self.constant {
            return self.read_constant(c, written, json, pass);
        }
        if self.scanner.is_in_string() {
            return self.read_string(c, pass);
        }
        if c == ',' {
            let scan = self.scanner.push(c);
            if scan == Scan::More {
                self.comma.push(c);
            }
            return scan;
        }
        if !self.comma.is_empty() && matches!(c, ' ' | '\t' | '\n' | '\r') {
            self.comma.push(c);
            return if self.comma.len() > COMMA_BYTES_MAX {
                Scan::Invalid
            } else {
                Scan::More
            };
        }
        if !self.comma.is_empty() && matches!(c, '}' | ']') {
            self.scanner.state = State::Next;
            let scan = self.scanner.push(c);
            if matches!(scan, Scan::More | Scan::Done) {
                self.comma.clear();
                pass(c);
            }
            return scan;
        }
        let is_value = self.scanner.begins_value();
        self.constant = match c {
            'T' if is_value => Some(("rue", "rue")),
            'F' if is_value => Some(("alse", "alse")),
            'N' if is_value => Some(("one", "ull")),
            _ => None,
        };
        if self.constant.is_some() {
            return self.pass_on(c.to_ascii_lowercase(), pass);
        }
        self.is_single = c == '\'' && (is_value || self.scanner.begins_key());
        self.pass_on(if self.is_single { '"' } else { c }, pass)
    }

    fn read_constant(
        &mut self,
        c: char,
        written: &'static str,
        json: &'static str,
        pass: &mut impl FnMut(char),
    ) -> Scan {
        let Some(rest) = written.strip_prefix(c) else {
            return Scan::Invalid;
        };
        let (next, json) = json.split_at(1);
        self.constant = (!rest.is_empty()).then_some((rest, json));
        self.pass_all(next, pass)
    }

    fn read_string(&mut self, c: char, pass: &mut impl FnMut(char)) -> Scan {
        if c < ' ' && self.scanner.is_in_text() && !self.is_escaped {
            return self.pass_all(&escaped_control(c), pass);
        }
        if !self.is_single {
            return self.pass_on(c, pass);
        }
        match (std::mem::take(&mut self.is_escaped), c) {
            (false, '\\') => {
                self.is_escaped = true;
                Scan::More
            }
            (false, '\'') => self.pass_on('"', pass),
            (true, '\'') => self.pass_on(c, pass),
            (_, '"') => self.pass_all("\\\"", pass),
            (true, c) => match self.pass_on('\\', pass) {
                Scan::More => self.pass_on(c, pass),
                scan => scan,
            },
            (false, c) => self.pass_on(c, pass),
        }
    }

    fn pass_all(&mut self, json: &str, pass: &mut impl FnMut(char)) -> Scan {
        let mut scan = Scan::More;
        for c in json.chars() {
            scan = self.pass_on(c, pass);
        }
        scan
    }

    fn pass_on(&mut self, c: char, pass: &mut impl FnMut(char)) -> Scan {
        let scan = self.scanner.push(c);
        if matches!(scan, Scan::More | Scan::Done) {
            self.comma.drain(..).for_each(&mut *pass);
            pass(c);
        }
        scan
    }
}

/// Passes the arguments of a call on while they are written: one JSON object, or what models write
/// for it.
#[derive(Clone, Debug)]
pub(in crate::answer) struct ArgumentsReader {
    scanner: LenientScanner,
}

impl ArgumentsReader {
    pub(in crate::answer) fn new() -> Self {
        Self {
            scanner: LenientScanner::new(),
        }
    }

    /// Starts a call of `name` whose arguments begin with `character`. `None` if the tool is not
    /// offered, or the character begins no object.
    pub(in crate::answer) fn start(
        name: &str,
        character: char,
        calls: &mut Calls<'_>,
    ) -> Option<Self> {
        if character != '{' {
            return None;
        }
        calls.start(name)?;
        let mut reader = Self::new();
        reader.read(character, calls);
        Some(reader)
    }

    /// The text that was read and not passed on: a comma that may be the last.
    pub(in crate::answer) fn held(&self) -> &str {
        &self.scanner.comma
    }

    /// Reads the next character of a call that has started, and ends the call.
    pub(in crate::answer) fn read(&mut self, character: char, calls: &mut Calls<'_>) -> Progress {
        let scan = self.scanner.push(character, &mut |c| calls.argument(c));
        match scan {
            Scan::More => Progress::More,
            Scan::Done => {
                calls.end();
                Progress::Done
            }
            Scan::DoneBefore | Scan::Invalid => Progress::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of characters after which a value is whole; `None` if it is none.
    fn scanned(text: &str) -> Option<usize> {
        let mut scanner = JsonScanner::new();
        for (at, c) in text.chars().enumerate() {
            match scanner.push(c) {
                Scan::More => {}
                Scan::Done => return Some(at + 1),
                Scan::DoneBefore => return Some(at),
                Scan::Invalid => return None,
            }
        }
        None
    }

    #[test]
    fn values_end_where_json_does() {
        let check = |text: &str, expected| assert_eq!(scanned(text), expected, "{text}");
        for whole in [
            "{}",
            "[]",
            r#" {"a" : [1, -0.5e+3, true, {"b": null}], "c": "\"\u00e9"}"#,
            r#""x""#,
            "false",
        ] {
            check(whole, Some(whole.chars().count()));
        }
        check("12,", Some(2));
        check("0 ", Some(1));
        for broken in [
            "{,",
            "{\"a\"}",
            "{\"a\" 1",
            "[1 2",
            "[1,]",
            "{\"a\":1,}",
            "[01",
            "-a",
            "1.a",
            "1ea",
            "trux",
            "\"\\x",
            "\"\\u00g",
            "\"\n",
            "]",
            "{\"a\":1]",
            "+1",
            "'a'",
        ] {
            check(broken, None);
        }
        check(&"[".repeat(129), None);
        let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        check(&deep, Some(256));
    }

    proptest! {
        /// The scanner accepts what `serde_json` accepts, and nothing else.
        #[test]
        fn scanner_agrees_with_serde(text in r#"[{}\[\]",:\\ a0-9.eE+-]{0,12}"#) {
            let value = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            // A number ends at the next character only.
            let scanned = scanned(&format!("{text} "));
            let rest = scanned.map(|end| text.chars().skip(end).collect::<String>());
            let is_whole = rest.is_some_and(|rest| rest.trim().is_empty());
            prop_assert_eq!(value.is_ok(), is_whole, "{}", text);
        }
    }

    /// The JSON that is passed on of a text, if it is whole then.
    fn passed(text: &str) -> Option<String> {
        let (mut scanner, mut json) = (LenientScanner::new(), String::new());
        for c in text.chars() {
            match scanner.push(c, &mut |c| json.push(c)) {
                Scan::More => {}
                Scan::Done => return Some(json),
                Scan::DoneBefore | Scan::Invalid => return None,
            }
        }
        None
    }

    #[test]
    fn what_models_write_for_json_becomes_json() {
        let check =
            |text: &str, json: &str| assert_eq!(passed(text).as_deref(), Some(json), "{text}");
        check("{'a': 'b'}", r#"{"a": "b"}"#);
        check(r#"{'it\'s "so"': 'x\n\"'}"#, r#"{"it's \"so\"": "x\n\""}"#);
        check("[True, False, None, true]", "[true, false, null, true]");
        check(
            "{\"a\": [1, 2,], \"b\": {\"c\": 1 ,\n},}",
            "{\"a\": [1, 2], \"b\": {\"c\": 1 }}",
        );
        check("[1,\n 2]", "[1,\n 2]");
        check("{\"a\": \"x\ny, '\"}", "{\"a\": \"x\\ny, '\"}");
        for broken in [
            "{'a\": 1}",
            "[,]",
            "[1,,2]",
            "{a: 1}",
            "[Trux]",
            "[N]",
            "'a\\x41'",
            "{,}",
        ] {
            assert_eq!(passed(broken), None, "{broken}");
        }
    }

    proptest! {
        /// JSON is passed on as it is.
        #[test]
        fn json_stays_as_it_is(text in r#"\[[{}\[\]",:\\ a0-9.eE+-]{0,10}\]"#) {
            let is_json = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            if is_json {
                prop_assert_eq!(passed(&text), Some(text));
            } else if let Some(json) = passed(&text) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{}: {}", text, json);
            }
        }
    }
}
