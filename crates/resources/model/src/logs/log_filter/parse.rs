//! From words to a typed expression.

use std::sync::Arc;

use super::attribute::{Attribute, AttributeType};
use super::scan::{FilterToken, words};
use super::{Comparison, Expression, FilterError, Literal, MAX_EXPRESSION_DEPTH, Operand, Search};
use crate::logs::log_format::HeaderSource;
use crate::text::{clip, nearest, parse_duration};

const MAPS: [(&str, HeaderSource); 3] = [
    ("request.headers", HeaderSource::Request),
    ("response.headers", HeaderSource::Response),
    ("response.trailers", HeaderSource::Trailer),
];

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

const SEARCHES: [(&str, Search); 3] = [
    ("contains", Search::Contains),
    ("startsWith", Search::StartsWith),
    ("endsWith", Search::EndsWith),
];

pub(super) fn parse(source: &str) -> Result<Expression, FilterError> {
    let mut parser = Parser {
        words: words(source)?,
        at: 0,
        depth: 0,
    };
    let expression = parser.any()?;
    match parser.peek() {
        None => Ok(expression),
        Some(FilterToken::Sign("?")) => Err(FilterError::new(
            "`? :` is not supported",
            "write it with && and ||",
        )),
        Some(word) => Err(FilterError::new(
            format!("`{}` is not expected here", word.shown()),
            "",
        )),
    }
}

struct Parser {
    words: Vec<FilterToken>,
    at: usize,
    depth: usize,
}

/// One side of a relation, with its type; a boolean expression is possible too.
enum Term {
    Value(Operand, AttributeType),
    Expression(Expression),
    List(Vec<(Literal, AttributeType)>),
    /// A whole map of headers, on the right of `in`.
    Map(HeaderSource),
}

impl Parser {
    fn peek(&self) -> Option<&FilterToken> {
        self.words.get(self.at)
    }

    fn next(&mut self) -> Option<FilterToken> {
        let word = self.words.get(self.at).cloned();
        self.at += 1;
        word
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(FilterToken::Sign(found)) if *found == sign);
        self.at += usize::from(found);
        found
    }

    fn wants(&mut self, sign: &str) -> Result<(), FilterError> {
        if self.takes(sign) {
            return Ok(());
        }
        let found = self
            .peek()
            .map_or("the end".to_owned(), |word| format!("`{}`", word.shown()));
        Err(FilterError::new(
            format!("`{sign}` is expected, not {found}"),
            "",
        ))
    }

    fn any(&mut self) -> Result<Expression, FilterError> {
        self.depth += 1;
        if self.depth > MAX_EXPRESSION_DEPTH {
            let message = format!("nested deeper than {MAX_EXPRESSION_DEPTH}");
            return Err(FilterError::new(message, ""));
        }
        let mut parts = vec![self.all()?];
        while self.takes("||") {
            parts.push(self.all()?);
        }
        self.depth -= 1;
        Ok(one_or(parts, Expression::Or))
    }

    fn all(&mut self) -> Result<Expression, FilterError> {
        let mut parts = vec![self.unary()?];
        while self.takes("&&") {
            parts.push(self.unary()?);
        }
        Ok(one_or(parts, Expression::And))
    }

    fn unary(&mut self) -> Result<Expression, FilterError> {
        let mut negated = false;
        while self.takes("!") {
            negated = !negated;
        }
        let expression = self.relation()?;
        Ok(match negated {
            true => Expression::Not(Box::new(expression)),
            false => expression,
        })
    }

    fn relation(&mut self) -> Result<Expression, FilterError> {
        let left = self.term()?;
        if let Some(FilterToken::Name(name)) = self.peek()
            && name == "in"
        {
            self.at += 1;
            let right = self.term()?;
            return membership(left, right);
        }
        let comparison = match self.peek() {
            Some(FilterToken::Sign(sign)) => COMPARISONS.iter().find(|(known, _)| known == sign),
            _ => None,
        };
        let Some((sign, comparison)) = comparison else {
            return truth(left);
        };
        self.at += 1;
        let right = self.term()?;
        match (left, right) {
            (Term::Value(one, kind), Term::Value(other, other_kind)) if kind == other_kind => {
                let ordered = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
                if kind == AttributeType::Bool && ordered {
                    let message = format!("`{sign}` does not order true and false");
                    return Err(FilterError::new(message, ""));
                }
                Ok(Expression::Compare(*comparison, one, other))
            }
            (Term::Value(_, kind), Term::Value(_, other)) => {
                let message = format!("{} is compared with {}", kind.word(), other.word());
                Err(FilterError::new(
                    message,
                    "both sides of a comparison have one type",
                ))
            }
            _ => Err(FilterError::new(
                format!("`{sign}` compares two values"),
                "",
            )),
        }
    }

    fn term(&mut self) -> Result<Term, FilterError> {
        let value = |literal, kind| Ok(Term::Value(Operand::Literal(literal), kind));
        match self.next() {
            Some(FilterToken::Text(text)) => value(Literal::Text(text.into()), AttributeType::Text),
            Some(FilterToken::Number(number)) => {
                value(Literal::Number(number), AttributeType::Number)
            }
            Some(FilterToken::Sign("(")) => {
                let inner = self.any()?;
                self.wants(")")?;
                Ok(match inner {
                    Expression::Is(operand) => Term::Value(operand, AttributeType::Bool),
                    inner => Term::Expression(inner),
                })
            }
            Some(FilterToken::Sign("[")) => self.list(),
            Some(FilterToken::Name(name)) => match name.as_str() {
                "true" => value(Literal::Bool(true), AttributeType::Bool),
                "false" => value(Literal::Bool(false), AttributeType::Bool),
                "has" => self.has(),
                "duration" => self.duration(),
                _ => self.path(name),
            },
            Some(word) => Err(FilterError::new(
                format!("`{}` is not expected here", word.shown()),
                "",
            )),
            None => Err(FilterError::new("the expression ends too early", "")),
        }
    }

    fn list(&mut self) -> Result<Term, FilterError> {
        let mut items = Vec::new();
        while !self.takes("]") {
            if !items.is_empty() {
                self.wants(",")?;
            }
            match self.term()? {
                Term::Value(Operand::Literal(literal), kind) => items.push((literal, kind)),
                _ => return Err(FilterError::new("a list holds plain values", "")),
            }
        }
        Ok(Term::List(items))
    }

    fn has(&mut self) -> Result<Term, FilterError> {
        self.wants("(")?;
        let term = match self.next() {
            Some(FilterToken::Name(name)) => self.path(name)?,
            _ => {
                return Err(FilterError::new(
                    "`has` takes an attribute",
                    "write has(request.headers['name'])",
                ));
            }
        };
        self.wants(")")?;
        match term {
            Term::Value(operand, _) => Ok(Term::Expression(Expression::Has(operand))),
            _ => Err(FilterError::new("`has` takes an attribute", "")),
        }
    }

    fn duration(&mut self) -> Result<Term, FilterError> {
        self.wants("(")?;
        let Some(FilterToken::Text(text)) = self.next() else {
            return Err(FilterError::new(
                "`duration` takes a text",
                "write duration('250ms')",
            ));
        };
        self.wants(")")?;
        let nanoseconds =
            parse_duration(&text).and_then(|span| i64::try_from(span.as_nanos()).ok());
        let nanoseconds = nanoseconds.ok_or_else(|| {
            FilterError::new(
                format!("`{}` is no duration", clip(&text)),
                "write one such as 250ms or 10s",
            )
        })?;
        Ok(Term::Value(
            Operand::Literal(Literal::Number(nanoseconds)),
            AttributeType::Duration,
        ))
    }

    /// `request.path`, `request.headers['x']`, `request.headers.x`, and a method behind one.
    fn path(&mut self, first: String) -> Result<Term, FilterError> {
        let mut path = first;
        loop {
            if let Some((_, direction)) = MAPS.iter().find(|(name, _)| *name == path) {
                return self.header(&path, *direction);
            }
            let found = Attribute::NAMES.iter().find(|(name, _)| *name == path);
            let dotted = matches!(
                (self.peek(), self.words.get(self.at + 1)),
                (Some(FilterToken::Sign(".")), Some(FilterToken::Name(_)))
            );
            if let Some((_, attribute)) = found {
                return self.method(Operand::Attribute(*attribute), attribute.kind());
            }
            if !dotted {
                return Err(unknown(
                    &path,
                    matches!(self.peek(), Some(FilterToken::Sign("("))),
                ));
            }
            self.at += 1;
            if let Some(FilterToken::Name(name)) = self.next() {
                path = format!("{path}.{name}");
            }
        }
    }

    fn header(&mut self, path: &str, direction: HeaderSource) -> Result<Term, FilterError> {
        if self.takes("[") {
            let Some(FilterToken::Text(name)) = self.next() else {
                return Err(FilterError::new(
                    format!("`{path}[…]` takes a text"),
                    format!("write {path}['name']"),
                ));
            };
            self.wants("]")?;
            return self.method(
                Operand::Header(direction, name.to_ascii_lowercase().into()),
                AttributeType::Text,
            );
        }
        if self.takes(".") {
            let Some(FilterToken::Name(name)) = self.next() else {
                return Err(FilterError::new(
                    format!("`{path}.` names no header"),
                    format!("write {path}['name']"),
                ));
            };
            return self.method(
                Operand::Header(direction, name.to_ascii_lowercase().into()),
                AttributeType::Text,
            );
        }
        Ok(Term::Map(direction))
    }

    fn method(&mut self, operand: Operand, kind: AttributeType) -> Result<Term, FilterError> {
        if !self.takes(".") {
            return Ok(Term::Value(operand, kind));
        }
        let name = match self.next() {
            Some(FilterToken::Name(name)) => name,
            _ => return Err(FilterError::new("a name is expected after `.`", "")),
        };
        let Some((_, search)) = SEARCHES.iter().find(|(known, _)| *known == name) else {
            let message = format!("`{}()` is not supported", clip(&name));
            return Err(FilterError::new(
                message,
                "contains(), startsWith() and endsWith() are",
            ));
        };
        if kind != AttributeType::Text {
            return Err(FilterError::new(
                format!("`{name}()` looks into text, not into {}", kind.word()),
                "",
            ));
        }
        self.wants("(")?;
        let Some(FilterToken::Text(text)) = self.next() else {
            return Err(FilterError::new(format!("`{name}()` takes a text"), ""));
        };
        self.wants(")")?;
        Ok(Term::Expression(Expression::Search(
            *search,
            operand,
            text.into(),
        )))
    }
}

fn unknown(path: &str, called: bool) -> FilterError {
    if called {
        let message = format!("`{}()` is not supported", clip(path));
        return FilterError::new(message, "has() and duration() are");
    }
    let known = Attribute::NAMES.iter().map(|(name, _)| *name);
    let help = nearest(path, known.chain(MAPS.iter().map(|(name, _)| *name))).map_or_else(
        || "docs/reference/telemetry.md lists the attributes".to_owned(),
        |near| format!("did you mean `{near}`?"),
    );
    FilterError::new(format!("unknown attribute `{}`", clip(path)), help)
}

fn one_or(mut parts: Vec<Expression>, several: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => several(parts),
    }
}

fn truth(term: Term) -> Result<Expression, FilterError> {
    match term {
        Term::Expression(expression) => Ok(expression),
        Term::Value(operand, AttributeType::Bool) => Ok(Expression::Is(operand)),
        Term::Value(_, kind) => {
            let message = format!("{} is neither true nor false", kind.word());
            Err(FilterError::new(message, "compare it with something"))
        }
        Term::List(_) | Term::Map(_) => {
            Err(FilterError::new("a list is neither true nor false", ""))
        }
    }
}

fn membership(left: Term, right: Term) -> Result<Expression, FilterError> {
    match (left, right) {
        (Term::Value(Operand::Literal(Literal::Text(name)), _), Term::Map(direction)) => {
            let name: Arc<str> = name.to_ascii_lowercase().into();
            Ok(Expression::Has(Operand::Header(direction, name)))
        }
        (Term::Value(operand, kind), Term::List(items)) => {
            if let Some((_, other)) = items.iter().find(|(_, other)| *other != kind) {
                let message = format!("{} is looked for among {}", kind.word(), other.word());
                return Err(FilterError::new(
                    message,
                    "all values of the list have one type",
                ));
            }
            let items = items.into_iter().map(|(literal, _)| literal).collect();
            Ok(Expression::In(operand, items))
        }
        _ => Err(FilterError::new(
            "`in` wants a value and a list",
            "write request.method in ['GET', 'HEAD']",
        )),
    }
}
