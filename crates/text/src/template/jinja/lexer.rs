//! Cuts a template into text and tokens, with the white space rules of `transformers`:
//! `trim_blocks`, `lstrip_blocks`, one line end at the end of the template dropped.

use super::error::Error;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Text(String),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
}

#[derive(Debug)]
pub(super) struct Located {
    pub(super) token: Token,
    pub(super) line: usize,
}

/// The longest come first.
const OPERATORS: [&str; 27] = [
    "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!",
];

pub(super) fn tokens(source: &str) -> Result<Vec<Located>, Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        is_line_start: true,
        tokens: Vec::new(),
    };
    while lexer.at < source.len() {
        lexer.read_text()?;
    }
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// Whether the text after the last tag begins a line.
    is_line_start: bool,
    tokens: Vec<Located>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|byte| *byte == b'\n').count();
        self.at += bytes;
    }

    fn push(&mut self, token: Token) {
        let line = self.line;
        self.tokens.push(Located { token, line });
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.to_owned()));
        }
    }

    /// Reads text, and the tag that ends it.
    fn read_text(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let tags = rest.match_indices('{');
        let mut tags = tags.filter(|(at, _)| rest[at + 1..].starts_with(['{', '%', '#']));
        let Some((end, _)) = tags.next() else {
            self.push_text(rest);
            self.advance(rest.len());
            return Ok(());
        };
        let kind = rest.as_bytes()[end + 1];
        let sign = rest[end + 2..]
            .chars()
            .next()
            .filter(|c| matches!(c, '-' | '+'));
        let text = self.before_tag(&rest[..end], kind != b'{', sign);
        self.push_text(text);
        let line = self.line;
        self.advance(end + 2 + sign.map_or(0, char::len_utf8));
        match kind {
            b'#' => self.skip_comment().map_err(|error| error.at(line)),
            b'{' => self.read_tag(Token::PrintBegin, Token::PrintEnd, "}}"),
            _ if self.is_raw() => self.read_raw().map_err(|error| error.at(line)),
            _ => self.read_tag(Token::BlockBegin, Token::BlockEnd, "%}"),
        }
    }

    /// The text before a tag, without the white space that the tag removes.
    fn before_tag(&self, text: &'a str, is_block: bool, sign: Option<char>) -> &'a str {
        match sign {
            Some('-') => text.trim_end_matches(is_python_space),
            None if is_block => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let begins_line = line > 0 || self.is_line_start;
                let is_blank = text[line..].chars().all(is_python_space);
                if begins_line && is_blank {
                    &text[..line]
                } else {
                    text
                }
            }
            _ => text,
        }
    }

    /// Takes the end of a tag if it is there, and the white space that it removes.
    fn take_end(&mut self, end: &str) -> bool {
        let rest = self.rest();
        let (sign, after) = match rest.strip_prefix(['-', '+']) {
            Some(after) if after.starts_with(end) => (rest.chars().next(), after),
            _ => (None, rest),
        };
        let Some(after) = after.strip_prefix(end) else {
            return false;
        };
        if sign == Some('+') && end == "}}" {
            return false;
        }
        let taken = match sign {
            Some('-') => after.trim_start_matches(is_python_space),
            None if end != "}}" => after.strip_prefix('\n').unwrap_or(after),
            _ => after,
        };
        let bytes = rest.len() - taken.len();
        self.is_line_start = rest[..bytes].ends_with('\n');
        self.advance(bytes);
        true
    }

    fn skip_comment(&mut self) -> Result<(), Error> {
        let end = self.rest().find("#}");
        let end = end.ok_or_else(|| Error::new("missing end of comment tag"))?;
        let comment = &self.rest()[..end];
        // The sign of the closing tag is the comment's last character.
        let has_sign = comment.ends_with(['-', '+']);
        self.advance(end - usize::from(has_sign));
        self.take_end("#}");
        Ok(())
    }

    fn is_raw(&self) -> bool {
        let name = self.rest().trim_start_matches(is_python_space);
        let after = name
            .strip_prefix("raw")
            .map(|after| after.trim_start_matches(is_python_space));
        after.is_some_and(|after| after.starts_with("%}") || after.starts_with("-%}"))
    }

    fn read_raw(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let begin = rest.find("%}").expect("it is there") + 2;
        let strips = rest[..begin].ends_with("-%}");
        self.advance(begin);
        if strips {
            let spaces = self.rest().len() - self.rest().trim_start_matches(is_python_space).len();
            self.advance(spaces);
        }
        self.is_line_start = false;
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let tag = &rest[at + 2..];
            let sign = tag.chars().next().filter(|c| matches!(c, '-' | '+'));
            let name = tag[sign.map_or(0, char::len_utf8)..].trim_start_matches(is_python_space);
            let Some(after) = name.strip_prefix("endraw") else {
                continue;
            };
            let after = after.trim_start_matches(is_python_space);
            if !["%}", "-%}", "+%}"]
                .iter()
                .any(|end| after.starts_with(end))
            {
                continue;
            }
            let text = self.before_tag(&rest[..at], true, sign);
            self.push_text(text);
            self.advance(rest.len() - after.len());
            self.take_end("%}");
            return Ok(());
        }
        Err(Error::new("missing end of raw directive"))
    }

    fn read_tag(&mut self, begin: Token, end: Token, closing: &str) -> Result<(), Error> {
        self.push(begin);
        let line = self.line;
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(is_python_space).len();
            self.advance(spaces);
            if open.is_empty() {
                let tag_line = self.line;
                if self.take_end(closing) {
                    self.tokens.push(Located {
                        token: end,
                        line: tag_line,
                    });
                    return Ok(());
                }
            }
            if self.rest().is_empty() {
                return Err(Error::new(format!(
                    "unexpected end of template, expected `{closing}`"
                ))
                .at(line));
            }
            let token = self.read_token().map_err(|error| error.at(self.line))?;
            balance(&mut open, &token).map_err(|error| error.at(self.line))?;
        }
    }

    fn read_token(&mut self) -> Result<Token, Error> {
        let rest = self.rest();
        let first = rest.chars().next().expect("it is not the end");
        let (token, bytes) = match first {
            '"' | '\'' => read_string(rest, first)?,
            c if c.is_ascii_digit() => read_number(rest, self.is_after_point())?,
            c if c.is_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                (Token::Name(name.to_owned()), name.len())
            }
            c => {
                let operator = OPERATORS.iter().find(|text| rest.starts_with(**text));
                let operator =
                    *operator.ok_or_else(|| Error::new(format!("unexpected char {c:?}")))?;
                (Token::Operator(operator), operator.len())
            }
        };
        self.push(token.clone());
        self.advance(bytes);
        Ok(token)
    }
}

impl Lexer<'_> {
    /// Whether the next token names an item: `a.0`.
    fn is_after_point(&self) -> bool {
        let last = self.tokens.last();
        last.is_some_and(|last| last.token == Token::Operator("."))
    }
}

/// Python's white space.
pub(super) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn balance(open: &mut Vec<&'static str>, token: &Token) -> Result<(), Error> {
    let Token::Operator(operator) = token else {
        return Ok(());
    };
    let expected = match *operator {
        "(" => {
            return {
                open.push(")");
                Ok(())
            };
        }
        "[" => {
            return {
                open.push("]");
                Ok(())
            };
        }
        "{" => {
            return {
                open.push("}");
                Ok(())
            };
        }
        ")" | "]" | "}" => open.pop(),
        _ => return Ok(()),
    };
    match expected {
        Some(expected) if expected == *operator => Ok(()),
        Some(expected) => Err(Error::new(format!(
            "unexpected '{operator}', expected '{expected}'"
        ))),
        None => Err(Error::new(format!("unexpected '{operator}'"))),
    }
}

/// A string and the bytes that it takes, with the escapes of Python.
fn read_string(rest: &str, quote: char) -> Result<(Token, usize), Error> {
    let mut text = String::new();
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == quote {
            return Ok((Token::Str(text), at + 1));
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some((at, escape)) = characters.next() else {
            break;
        };
        let digits = |count: usize, radix| {
            let digits: String = rest[at + 1..].chars().take(count).collect();
            let value = u32::from_str_radix(&digits, radix)
                .ok()
                .and_then(char::from_u32);
            let is_whole = digits.chars().count() == count;
            value
                .filter(|_| is_whole)
                .ok_or_else(|| Error::new("a string has an invalid escape"))
        };
        let (decoded, taken) = match escape {
            'n' => (Some('\n'), 0),
            't' => (Some('\t'), 0),
            'r' => (Some('\r'), 0),
            'a' => (Some('\u{7}'), 0),
            'b' => (Some('\u{8}'), 0),
            'f' => (Some('\u{c}'), 0),
            'v' => (Some('\u{b}'), 0),
            '\\' | '\'' | '"' => (Some(escape), 0),
            '\n' => (None, 0),
            'x' => (Some(digits(2, 16)?), 2),
            'u' => (Some(digits(4, 16)?), 4),
            'U' => (Some(digits(8, 16)?), 8),
            '0'..='7' => {
                let octal = rest[at..]
                    .bytes()
                    .take(3)
                    .take_while(|byte| (b'0'..=b'7').contains(byte));
                let octal: String = octal.map(char::from).collect();
                let value = u32::from_str_radix(&octal, 8).ok().and_then(char::from_u32);
                (value, octal.len() - 1)
            }
            other => {
                text.push('\\');
                (Some(other), 0)
            }
        };
        text.extend(decoded);
        for _ in 0..taken {
            characters.next();
        }
    }
    Err(Error::new("a string does not end"))
}

/// A number and the bytes that it takes.
fn read_number(rest: &str, is_whole: bool) -> Result<(Token, usize), Error> {
    let too_large = |_| Error::new("a number is too large");
    let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => Some(16),
        Some("0o") => Some(8),
        Some("0b") => Some(2),
        _ => None,
    };
    if let Some(radix) = radix {
        let digits = rest[2..]
            .bytes()
            .take_while(|byte| *byte == b'_' || char::from(*byte).is_digit(radix));
        let bytes = digits.count();
        let text = rest[2..2 + bytes].replace('_', "");
        let value =
            i128::from_str_radix(&text, radix).map_err(|_| Error::new("a number has no digits"))?;
        return Ok((Token::Int(value), 2 + bytes));
    }
    let digits = |from: usize| {
        let digits = rest[from..]
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'_');
        digits.count()
    };
    let mut end = digits(0);
    let mut is_float = false;
    if is_whole {
        let value = rest[..end].replace('_', "").parse().map_err(too_large)?;
        return Ok((Token::Int(value), end));
    }
    if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        end += 1 + digits(end + 1);
        is_float = true;
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
        let exponent = end + 1 + sign;
        if rest[exponent..].starts_with(|c: char| c.is_ascii_digit()) {
            end = exponent + digits(exponent);
            is_float = true;
        }
    }
    let text = rest[..end].replace('_', "");
    let token = if is_float {
        Token::Float(
            text.parse()
                .map_err(|_| Error::new("a number is not valid"))?,
        )
    } else {
        Token::Int(text.parse().map_err(too_large)?)
    };
    Ok((token, end))
}
