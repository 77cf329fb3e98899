//! A template as a tree.

use std::sync::Arc;

pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) enum Statement {
    /// Text as it is.
    Text(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Arc<For>),
    Set(Target, Expr),
    /// The text of a body, after filters.
    SetText(Target, Vec<FilterCall>, Vec<Statement>),
    /// A body with variables of its own.
    With(Vec<(Target, Expr)>, Vec<Statement>),
    Macro(Arc<MacroDef>),
    /// A call of a macro with a body, which it may call as `caller`.
    Call(Expr, Arc<MacroDef>),
    Filter(Vec<FilterCall>, Vec<Statement>),
    Break,
    Continue,
    /// A statement that needs other templates.
    Unsupported(&'static str, Expr),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iterable: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
    pub(super) is_recursive: bool,
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub(super) name: Name,
    /// Each with the value that it has by default.
    pub(super) parameters: Vec<(Name, Option<Expr>)>,
    pub(super) body: Vec<Statement>,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    /// A member of a namespace.
    Member(Name, Name),
    Tuple(Vec<Target>),
}

/// An expression and its line.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    pub(super) kind: ExprKind,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Operators of one rank, from the left to the right.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    Concat(Vec<Expr>),
    If {
        condition: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    /// A member: `a.b`.
    Attribute(Box<Expr>, Name),
    /// An item: `a[b]`.
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Arguments),
    Filter(Box<Expr>, FilterCall),
    Test {
        value: Box<Expr>,
        name: Name,
        arguments: Arguments,
        is_negated: bool,
    },
}

#[derive(Debug)]
pub(super) struct FilterCall {
    pub(super) name: Name,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Name, Expr)>,
    /// `*a`
    pub(super) more_positional: Option<Box<Expr>>,
    /// `**a`
    pub(super) more_named: Option<Box<Expr>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}
