//! Parses statements.

use std::sync::Arc;

use super::ast::{Expr, FilterCall, For, MacroDef, Name, Statement, Target};
use super::error::Error;
use super::lexer::{Located, Token, tokens};

/// Deepest nesting of statements and of expressions. A rendering recurses as deep.
const DEPTH_MAX: usize = 64;

pub(super) fn parse(source: &str) -> Result<Vec<Statement>, Error> {
    let tokens = tokens(source)?;
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        loops: 0,
    };
    let (body, end) = parser.body(&[])?;
    debug_assert!(end.is_empty(), "the template ends");
    Ok(body)
}

pub(super) struct Parser {
    tokens: Vec<Located>,
    at: usize,
    pub(super) depth: usize,
    /// Loops around the present statement.
    loops: usize,
}

/// Tokens.
impl Parser {
    pub(super) fn peek(&self) -> Option<&Token> {
        self.peek_after(0)
    }

    pub(super) fn peek_after(&self, tokens: usize) -> Option<&Token> {
        self.tokens
            .get(self.at + tokens)
            .map(|located| &located.token)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let token = self.peek()?.clone();
        self.at += 1;
        Some(token)
    }

    pub(super) fn line(&self) -> usize {
        let located = self.tokens.get(self.at).or(self.tokens.last());
        located.map_or(1, |located| located.line)
    }

    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(what).at(self.line()))
    }

    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T, Error> {
        let found = match self.peek() {
            None => "end of template".to_owned(),
            Some(Token::Text(_)) => "text".to_owned(),
            Some(Token::BlockBegin) => "`{%`".to_owned(),
            Some(Token::BlockEnd) => "end of statement block".to_owned(),
            Some(Token::PrintBegin) => "`{{`".to_owned(),
            Some(Token::PrintEnd) => "end of print statement".to_owned(),
            Some(Token::Name(name)) => format!("`{name}`"),
            Some(Token::Str(_)) => "a string".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(Token::Operator(operator)) => format!("`{operator}`"),
        };
        self.fail(format!("unexpected {found}, expected {expected}"))
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Token::Operator(found)) if *found == operator)
    }

    pub(super) fn take_operator(&mut self, operator: &str) -> bool {
        let is_present = self.is_operator(operator);
        self.at += usize::from(is_present);
        is_present
    }

    pub(super) fn expect_operator(&mut self, operator: &str) -> Result<(), Error> {
        if self.take_operator(operator) {
            return Ok(());
        }
        self.unexpected(&format!("`{operator}`"))
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    pub(super) fn take_name(&mut self, name: &str) -> bool {
        let is_present = self.is_name(name);
        self.at += usize::from(is_present);
        is_present
    }

    pub(super) fn name(&mut self) -> Result<Name, Error> {
        let Some(Token::Name(name)) = self.peek() else {
            return self.unexpected("a name");
        };
        let name = Arc::from(name.as_str());
        self.at += 1;
        Ok(name)
    }

    fn expect_block_end(&mut self) -> Result<(), Error> {
        if self.peek() != Some(&Token::BlockEnd) {
            return self.unexpected("end of statement block");
        }
        self.at += 1;
        Ok(())
    }

    /// Parses what nests.
    pub(super) fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.depth == DEPTH_MAX {
            return self.fail(format!("nested more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}

/// Statements.
impl Parser {
    /// Statements up to a tag of one of these names, which is returned; it and its end are taken
    /// up to what follows the name.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String), Error> {
        self.nested(|parser| parser.body_inside(ends))
    }

    fn body_inside(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String), Error> {
        let mut body = Vec::new();
        loop {
            match self.next() {
                None if ends.is_empty() => return Ok((body, String::new())),
                None => return self.unexpected(&format!("`{}`", ends.join("` or `"))),
                Some(Token::Text(text)) => body.push(Statement::Text(text.into())),
                Some(Token::PrintBegin) => {
                    body.push(Statement::Print(self.tuple()?));
                    if self.next() != Some(Token::PrintEnd) {
                        self.at -= 1;
                        return self.unexpected("end of print statement");
                    }
                }
                Some(_) => {
                    let Some(Token::Name(name)) = self.peek().cloned() else {
                        return self.unexpected("a tag name");
                    };
                    if ends.contains(&&*name) {
                        self.at += 1;
                        return Ok((body, name));
                    }
                    self.statement(&name, &mut body)?;
                }
            }
        }
    }

    /// A body that one tag ends.
    fn body_to(&mut self, end: &str) -> Result<Vec<Statement>, Error> {
        self.expect_block_end()?;
        let (body, _) = self.body(&[end])?;
        self.expect_block_end()?;
        Ok(body)
    }

    fn statement(&mut self, name: &str, body: &mut Vec<Statement>) -> Result<(), Error> {
        let line = self.line();
        self.at += 1;
        let statement = match name {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "with" => self.with_statement()?,
            "macro" => self.macro_statement()?,
            "call" => self.call_statement()?,
            "filter" => {
                let filters = self.filters()?;
                Statement::Filter(filters, self.body_to("endfilter")?)
            }
            // Its text is the assistant's, which only training must know.
            "generation" => Statement::With(Vec::new(), self.body_to("endgeneration")?),
            "autoescape" => {
                self.expression()?;
                Statement::With(Vec::new(), self.body_to("endautoescape")?)
            }
            "block" => self.block_statement()?,
            "print" => Statement::Print(self.tuple()?),
            "break" | "continue" if self.loops == 0 => {
                return Err(Error::new(format!("`{name}` outside of a loop")).at(line));
            }
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            "include" => self.other_template("include")?,
            "import" => self.other_template("import")?,
            "from" => self.other_template("from")?,
            "extends" => self.other_template("extends")?,
            _ => return Err(Error::new(format!("unknown tag `{name}`")).at(line)),
        };
        if !matches!(
            statement,
            Statement::If { .. }
                | Statement::For(_)
                | Statement::SetText(..)
                | Statement::With(..)
                | Statement::Macro(_)
                | Statement::Call(..)
                | Statement::Filter(..)
        ) {
            self.expect_block_end()?;
        }
        body.push(statement);
        Ok(())
    }

    fn if_statement(&mut self) -> Result<Statement, Error> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple_without_condition()?;
            self.expect_block_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            let otherwise = match &*end {
                "elif" => continue,
                "else" => self.body_to("endif")?,
                _ => {
                    self.expect_block_end()?;
                    Vec::new()
                }
            };
            return Ok(Statement::If {
                branches,
                otherwise,
            });
        }
    }

    fn for_statement(&mut self) -> Result<Statement, Error> {
        let target = self.target()?;
        if !self.take_name("in") {
            return self.unexpected("`in`");
        }
        let iterable = self.tuple_without_condition()?;
        let condition = if self.take_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let is_recursive = self.take_name("recursive");
        self.expect_block_end()?;
        self.loops += 1;
        let parsed = self.body(&["else", "endfor"]);
        self.loops -= 1;
        let (body, end) = parsed?;
        let otherwise = if end == "else" {
            self.body_to("endfor")?
        } else {
            self.expect_block_end()?;
            Vec::new()
        };
        Ok(Statement::For(Arc::new(For {
            target,
            iterable,
            condition,
            body,
            otherwise,
            is_recursive,
        })))
    }

    fn set_statement(&mut self) -> Result<Statement, Error> {
        let target = self.target()?;
        if self.take_operator("=") {
            return Ok(Statement::Set(target, self.tuple()?));
        }
        let filters = if self.take_operator("|") {
            self.filters()?
        } else {
            Vec::new()
        };
        Ok(Statement::SetText(target, filters, self.body_to("endset")?))
    }

    fn with_statement(&mut self) -> Result<Statement, Error> {
        let mut values = Vec::new();
        while self.peek() != Some(&Token::BlockEnd) {
            if !values.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target()?;
            self.expect_operator("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Statement::With(values, self.body_to("endwith")?))
    }

    fn macro_statement(&mut self) -> Result<Statement, Error> {
        let name = self.name()?;
        let parameters = self.signature()?;
        Ok(Statement::Macro(
            self.macro_body(name, parameters, "endmacro")?,
        ))
    }

    fn call_statement(&mut self) -> Result<Statement, Error> {
        let parameters = if self.is_operator("(") {
            self.signature()?
        } else {
            Vec::new()
        };
        let call = self.expression()?;
        let caller = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Statement::Call(call, caller))
    }

    /// A body of its own: no loop is around it.
    fn macro_body(
        &mut self,
        name: Name,
        parameters: Vec<(Name, Option<Expr>)>,
        end: &str,
    ) -> Result<Arc<MacroDef>, Error> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body_to(end);
        self.loops = loops;
        Ok(Arc::new(MacroDef {
            name,
            parameters,
            body: body?,
        }))
    }

    fn signature(&mut self) -> Result<Vec<(Name, Option<Expr>)>, Error> {
        let mut parameters: Vec<(Name, Option<Expr>)> = Vec::new();
        self.expect_operator("(")?;
        while !self.take_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.name()?;
            let default = if self.take_operator("=") {
                Some(self.expression()?)
            } else if parameters
                .last()
                .is_some_and(|(_, default)| default.is_some())
            {
                return self.fail("non-default argument follows default argument");
            } else {
                None
            };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn block_statement(&mut self) -> Result<Statement, Error> {
        self.name()?;
        while self.take_name("scoped") || self.take_name("required") {}
        self.expect_block_end()?;
        let (body, _) = self.body(&["endblock"])?;
        if matches!(self.peek(), Some(Token::Name(_))) {
            self.at += 1;
        }
        self.expect_block_end()?;
        Ok(Statement::With(Vec::new(), body))
    }

    /// A statement that names another template.
    fn other_template(&mut self, name: &'static str) -> Result<Statement, Error> {
        let template = self.expression()?;
        while !matches!(self.peek(), None | Some(Token::BlockEnd)) {
            self.at += 1;
        }
        Ok(Statement::Unsupported(name, template))
    }

    /// `a|b(c)`, without a value before it.
    fn filters(&mut self) -> Result<Vec<FilterCall>, Error> {
        let mut filters = vec![self.filter_call()?];
        while self.take_operator("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    fn target(&mut self) -> Result<Target, Error> {
        let first = self.single_target()?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.take_operator(",") {
            if !matches!(self.peek(), Some(Token::Name(name)) if name != "in")
                && !self.is_operator("(")
            {
                break;
            }
            targets.push(self.single_target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self) -> Result<Target, Error> {
        if self.take_operator("(") {
            let target = self.nested(Self::target)?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if matches!(
            &*name,
            "true" | "false" | "none" | "True" | "False" | "None"
        ) {
            return self.fail(format!("cannot assign to `{name}`"));
        }
        if self.take_operator(".") {
            return Ok(Target::Member(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
