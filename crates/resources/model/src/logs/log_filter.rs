//! Filters of access logs: the part of CEL that Istio documents for them, as a small grammar of our own. Every
//! expression is typed before use. An expression outside the grammar is refused by name.
//!
//! ```text
//! or   := and ('||' and)*            unary := '!' unary | relation
//! and  := unary ('&&' unary)*        relation := operand (('=='|'!='|'<'|'<='|'>'|'>='|'in') operand)?
//! operand := literal | list | '(' or ')' | 'has' '(' path ')' | 'duration' '(' text ')' | path ('.' method '(' text ')')?
//! path := name ('.' name)* ('[' text ']')?
//! ```

mod attribute;
mod parse;
mod scan;

use std::fmt;
use std::sync::Arc;

pub use attribute::{Attribute, AttributeType};

use crate::logs::log_format::HeaderSource;

/// Longest expression, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 16 * 1024;
/// Deepest nesting: keeps the recursion of parsing and evaluating small.
pub const MAX_EXPRESSION_DEPTH: usize = 32;

/// An error in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// The problem, with the word concerned.
    pub message: String,
    /// The correction; may be empty.
    pub help: String,
}

impl FilterError {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: help.into(),
        }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.help.as_str() {
            "" => f.write_str(&self.message),
            help => write!(f, "{} ({help})", self.message),
        }
    }
}

impl std::error::Error for FilterError {}

/// Comparison of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`.
    Equal,
    /// `!=`.
    NotEqual,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
}

/// Search within a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// `contains`.
    Contains,
    /// `startsWith`.
    StartsWith,
    /// `endsWith`.
    EndsWith,
}

/// A value written in the expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// `'text'`.
    Text(Arc<str>),
    /// A whole number, or nanoseconds of a duration.
    Number(i64),
    /// `true` or `false`.
    Bool(bool),
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// A value.
    Literal(Literal),
    /// Something of the request or connection.
    Attribute(Attribute),
    /// `request.headers['name']` and the like; the name in lower case.
    Header(HeaderSource, Arc<str>),
}

/// A typed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Any of.
    Or(Vec<Expression>),
    /// All of.
    And(Vec<Expression>),
    /// Not.
    Not(Box<Expression>),
    /// Two values of one type.
    Compare(Comparison, Operand, Operand),
    /// A value among several.
    In(Operand, Arc<[Literal]>),
    /// A text within a text.
    Search(Search, Operand, Arc<str>),
    /// A value is present.
    Has(Operand),
    /// A boolean as it is.
    Is(Operand),
}

/// A checked filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    source: Arc<str>,
    expression: Expression,
}

impl LogFilter {
    /// Checks an expression.
    ///
    /// # Errors
    /// When it is not one, or names what there is not.
    pub fn parse(source: &str) -> Result<Self, FilterError> {
        Ok(Self {
            expression: parse::parse(source)?,
            source: source.into(),
        })
    }

    /// As written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The parsed expression.
    #[must_use]
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// Returns true if it uses latencies or the gRPC status, which are known only from the response.
    #[must_use]
    pub fn looks_at_response(&self) -> bool {
        self.operands().iter().any(|operand| {
            let late = [
                Attribute::ResponseGrpcStatus,
                Attribute::ResponseBackendLatency,
            ];
            matches!(operand, Operand::Attribute(attribute) if late.contains(attribute))
        })
    }

    /// The headers and trailers it asks for, and the request id by its header's name.
    #[must_use]
    pub fn headers(&self) -> Vec<(HeaderSource, &Arc<str>)> {
        fn header(operand: &Operand) -> Option<(HeaderSource, &Arc<str>)> {
            match operand {
                Operand::Header(direction, name) => Some((*direction, name)),
                Operand::Literal(_) | Operand::Attribute(_) => None,
            }
        }
        self.operands().into_iter().filter_map(header).collect()
    }

    fn operands(&self) -> Vec<&Operand> {
        fn of<'a>(expression: &'a Expression, found: &mut Vec<&'a Operand>) {
            match expression {
                Expression::Or(all) | Expression::And(all) => {
                    all.iter().for_each(|one| of(one, found));
                }
                Expression::Not(inner) => of(inner, found),
                Expression::Compare(_, one, other) => found.extend([one, other]),
                Expression::In(one, _)
                | Expression::Search(_, one, _)
                | Expression::Has(one)
                | Expression::Is(one) => found.push(one),
            }
        }
        let mut found = Vec::new();
        of(&self.expression, &mut found);
        found
    }
}
