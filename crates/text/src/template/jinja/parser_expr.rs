//! Parses expressions, with the ranks of operators that Jinja has.

use std::sync::Arc;

use super::ast::{Arguments, Comparison, Expr, ExprKind, FilterCall, Name, Operator};
use super::error::Error;
use super::lexer::Token;
use super::parser::Parser;

/// Most members, items, calls and filters one after the other. Each is a level of the tree.
const POSTFIXES_MAX: usize = 64;

impl Parser {
    fn located(line: usize, kind: ExprKind) -> Expr {
        Expr { line, kind }
    }

    /// An expression, or several with commas between them.
    pub(super) fn tuple(&mut self) -> Result<Expr, Error> {
        self.tuple_of(Self::expression)
    }

    /// As [`tuple`](Self::tuple), where an `if` belongs to the statement.
    pub(super) fn tuple_without_condition(&mut self) -> Result<Expr, Error> {
        self.tuple_of(|parser| parser.nested(Self::or))
    }

    fn tuple_of(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<Expr, Error>,
    ) -> Result<Expr, Error> {
        let line = self.line();
        let first = item(self)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take_operator(",") {
            if self.ends_tuple() {
                break;
            }
            items.push(item(self)?);
        }
        Ok(Self::located(line, ExprKind::Tuple(items)))
    }

    fn ends_tuple(&self) -> bool {
        matches!(
            self.peek(),
            None | Some(Token::BlockEnd | Token::PrintEnd | Token::Operator(")"))
        )
    }

    pub(super) fn expression(&mut self) -> Result<Expr, Error> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr, Error> {
        let line = self.line();
        let mut value = self.or()?;
        let mut conditions = 0;
        while self.take_name("if") {
            conditions += 1;
            if conditions > POSTFIXES_MAX {
                return self.fail("too many conditions in a row");
            }
            let condition = Box::new(self.or()?);
            let otherwise = if self.take_name("else") {
                Some(Box::new(self.nested(Self::conditional)?))
            } else {
                None
            };
            let then = Box::new(value);
            value = Self::located(
                line,
                ExprKind::If {
                    condition,
                    then,
                    otherwise,
                },
            );
        }
        Ok(value)
    }

    /// Operands of one rank with one operator between them.
    fn chain(
        &mut self,
        mut operand: impl FnMut(&mut Self) -> Result<Expr, Error>,
        mut take: impl FnMut(&mut Self) -> bool,
        kind: fn(Vec<Expr>) -> ExprKind,
    ) -> Result<Expr, Error> {
        let line = self.line();
        let first = operand(self)?;
        if !take(self) {
            return Ok(first);
        }
        let mut operands = vec![first, operand(self)?];
        while take(self) {
            operands.push(operand(self)?);
        }
        Ok(Self::located(line, kind(operands)))
    }

    fn or(&mut self) -> Result<Expr, Error> {
        self.chain(Self::and, |parser| parser.take_name("or"), ExprKind::Or)
    }

    fn and(&mut self) -> Result<Expr, Error> {
        self.chain(Self::not, |parser| parser.take_name("and"), ExprKind::And)
    }

    fn not(&mut self) -> Result<Expr, Error> {
        let line = self.line();
        if self.take_name("not") {
            let value = self.nested(Self::not)?;
            return Ok(Self::located(line, ExprKind::Not(Box::new(value))));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr, Error> {
        let line = self.line();
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some(comparison) = self.take_comparison() {
            others.push((comparison, self.sum()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        let first = Box::new(first);
        Ok(Self::located(line, ExprKind::Compare(first, others)))
    }

    fn take_comparison(&mut self) -> Option<Comparison> {
        let (comparison, tokens) = match self.peek()? {
            Token::Operator("==") => (Comparison::Equal, 1),
            Token::Operator("!=") => (Comparison::NotEqual, 1),
            Token::Operator("<") => (Comparison::Less, 1),
            Token::Operator("<=") => (Comparison::LessEqual, 1),
            Token::Operator(">") => (Comparison::Greater, 1),
            Token::Operator(">=") => (Comparison::GreaterEqual, 1),
            Token::Name(name) if name == "in" => (Comparison::In, 1),
            Token::Name(name)
                if name == "not"
                    && matches!(self.peek_after(1), Some(Token::Name(next)) if next == "in") =>
            {
                (Comparison::NotIn, 2)
            }
            _ => return None,
        };
        for _ in 0..tokens {
            self.next();
        }
        Some(comparison)
    }

    /// Operands with operators of one rank between them.
    fn arithmetic(
        &mut self,
        operators: &[(&'static str, Operator)],
        mut operand: impl FnMut(&mut Self) -> Result<Expr, Error>,
    ) -> Result<Expr, Error> {
        let line = self.line();
        let first = operand(self)?;
        let mut others = Vec::new();
        loop {
            let found = operators.iter().find(|(text, _)| self.is_operator(text));
            let Some((text, operator)) = found else { break };
            self.take_operator(text);
            others.push((*operator, operand(self)?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        Ok(Self::located(
            line,
            ExprKind::Arithmetic(Box::new(first), others),
        ))
    }

    fn sum(&mut self) -> Result<Expr, Error> {
        let operators = [("+", Operator::Add), ("-", Operator::Subtract)];
        self.arithmetic(&operators, Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expr, Error> {
        self.chain(
            Self::product,
            |parser| parser.take_operator("~"),
            ExprKind::Concat,
        )
    }

    fn product(&mut self) -> Result<Expr, Error> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.arithmetic(&operators, Self::power)
    }

    fn power(&mut self) -> Result<Expr, Error> {
        let operand = |parser: &mut Self| parser.unary(true);
        self.arithmetic(&[("**", Operator::Power)], operand)
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr, Error> {
        let line = self.line();
        let value = if self.take_operator("-") {
            let value = self.nested(|parser| parser.unary(false))?;
            Self::located(line, ExprKind::Negative(Box::new(value)))
        } else if self.take_operator("+") {
            let value = self.nested(|parser| parser.unary(false))?;
            Self::located(line, ExprKind::Positive(Box::new(value)))
        } else {
            self.primary()?
        };
        let value = self.postfixes(value)?;
        if with_filters {
            self.filters_and_tests(value)
        } else {
            Ok(value)
        }
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        let line = self.line();
        let Some(token) = self.peek().cloned() else {
            return self.unexpected("an expression");
        };
        let kind = match token {
            Token::Name(name) => {
                self.next();
                match &*name {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    name => ExprKind::Name(name.into()),
                }
            }
            Token::Str(mut text) => {
                self.next();
                while let Some(Token::Str(more)) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                ExprKind::Str(text.into())
            }
            Token::Int(value) => {
                self.next();
                ExprKind::Int(value)
            }
            Token::Float(value) => {
                self.next();
                ExprKind::Float(value)
            }
            Token::Operator("(") => return self.parentheses(),
            Token::Operator("[") => ExprKind::List(self.list()?),
            Token::Operator("{") => self.dict()?,
            _ => return self.unexpected("an expression"),
        };
        Ok(Self::located(line, kind))
    }

    fn parentheses(&mut self) -> Result<Expr, Error> {
        let line = self.line();
        self.expect_operator("(")?;
        if self.take_operator(")") {
            return Ok(Self::located(line, ExprKind::Tuple(Vec::new())));
        }
        let value = self.nested(Self::tuple)?;
        self.expect_operator(")")?;
        Ok(value)
    }

    fn list(&mut self) -> Result<Vec<Expr>, Error> {
        self.expect_operator("[")?;
        let mut items = Vec::new();
        while !self.take_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.take_operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn dict(&mut self) -> Result<ExprKind, Error> {
        self.expect_operator("{")?;
        let mut items = Vec::new();
        while !self.take_operator("}") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.take_operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_operator(":")?;
            items.push((key, self.expression()?));
        }
        Ok(ExprKind::Dict(items))
    }

    fn count_postfix(&self, count: &mut usize) -> Result<(), Error> {
        *count += 1;
        if *count > POSTFIXES_MAX {
            return self.fail(format!(
                "more than {POSTFIXES_MAX} members, calls or filters in a row"
            ));
        }
        Ok(())
    }

    fn postfixes(&mut self, mut value: Expr) -> Result<Expr, Error> {
        let mut count = 0;
        loop {
            let line = self.line();
            self.count_postfix(&mut count)?;
            let kind = if self.take_operator(".") {
                self.attribute(value)?
            } else if self.is_operator("[") {
                self.subscript(value)?
            } else if self.is_operator("(") {
                ExprKind::Call(Box::new(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = Self::located(line, kind);
        }
    }

    fn attribute(&mut self, value: Expr) -> Result<ExprKind, Error> {
        let line = self.line();
        if let Some(Token::Int(index)) = self.peek().cloned() {
            self.next();
            let index = Self::located(line, ExprKind::Int(index));
            return Ok(ExprKind::Item(Box::new(value), Box::new(index)));
        }
        Ok(ExprKind::Attribute(Box::new(value), self.name()?))
    }

    fn subscript(&mut self, value: Expr) -> Result<ExprKind, Error> {
        self.expect_operator("[")?;
        let value = Box::new(value);
        let mut bounds = [None, None, None];
        let mut colons = 0;
        while !self.is_operator("]") {
            if self.take_operator(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("`]`");
                }
                continue;
            }
            if bounds[colons].is_some() {
                return self.unexpected("`]`");
            }
            bounds[colons] = Some(Box::new(self.expression()?));
        }
        self.expect_operator("]")?;
        match (colons, bounds) {
            (0, [Some(index), ..]) => Ok(ExprKind::Item(value, index)),
            (0, _) => self.fail("expected subscript expression"),
            (_, bounds) => Ok(ExprKind::Slice(value, bounds)),
        }
    }

    fn arguments(&mut self) -> Result<Arguments, Error> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.take_operator(")") {
            if !std::mem::take(&mut is_first) {
                self.expect_operator(",")?;
                if self.take_operator(")") {
                    break;
                }
            }
            self.argument(&mut arguments)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<(), Error> {
        if self.take_operator("**") {
            arguments.more_named = Some(Box::new(self.expression()?));
            return Ok(());
        }
        if self.take_operator("*") {
            arguments.more_positional = Some(Box::new(self.expression()?));
            return Ok(());
        }
        if let (Some(Token::Name(name)), Some(Token::Operator("="))) =
            (self.peek().cloned(), self.peek_after(1))
        {
            self.next();
            self.next();
            arguments.named.push((Arc::from(name), self.expression()?));
            return Ok(());
        }
        if !arguments.named.is_empty() {
            return self.fail("invalid syntax for function call expression");
        }
        arguments.positional.push(self.expression()?);
        Ok(())
    }

    fn filters_and_tests(&mut self, mut value: Expr) -> Result<Expr, Error> {
        let mut count = 0;
        loop {
            let line = self.line();
            self.count_postfix(&mut count)?;
            let kind = if self.take_operator("|") {
                ExprKind::Filter(Box::new(value), self.filter_call()?)
            } else if self.take_name("is") {
                self.test(value)?
            } else if self.is_operator("(") {
                ExprKind::Call(Box::new(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = Self::located(line, kind);
        }
    }

    pub(super) fn filter_call(&mut self) -> Result<FilterCall, Error> {
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else {
            Arguments::default()
        };
        Ok(FilterCall { name, arguments })
    }

    fn dotted_name(&mut self) -> Result<Name, Error> {
        let mut name = self.name()?.to_string();
        while self.take_operator(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }

    fn test(&mut self, value: Expr) -> Result<ExprKind, Error> {
        let is_negated = self.take_name("not");
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else if self.is_name("is") {
            return self.fail("tests do not follow one another");
        } else if self.begins_argument() {
            let argument = self.primary()?;
            let positional = vec![self.postfixes(argument)?];
            Arguments {
                positional,
                ..Arguments::default()
            }
        } else {
            Arguments::default()
        };
        Ok(ExprKind::Test {
            value: Box::new(value),
            name,
            arguments,
            is_negated,
        })
    }

    /// Whether a test's argument without parentheses follows.
    fn begins_argument(&self) -> bool {
        match self.peek() {
            Some(Token::Name(name)) => !matches!(
                &**name,
                "else" | "or" | "and" | "if" | "in" | "not" | "is" | "recursive"
            ),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(Token::Operator(operator)) => matches!(*operator, "[" | "{"),
            _ => false,
        }
    }
}
