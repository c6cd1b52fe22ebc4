//! Words of an expression.

use super::{FilterError, MAX_EXPRESSION_BYTES};
use crate::text::clip;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FilterToken {
    Name(String),
    Text(String),
    Number(i64),
    /// An operator or bracket.
    Sign(&'static str),
}

impl FilterToken {
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Name(name) => clip(name),
            Self::Text(text) => format!("'{}'", clip(text)),
            Self::Number(number) => number.to_string(),
            Self::Sign(sign) => (*sign).to_owned(),
        }
    }
}

/// Longer ones first.
const SIGNS: [&str; 17] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")", "[", "]", ",", ".", "?", ":",
];

pub(super) fn words(source: &str) -> Result<Vec<FilterToken>, FilterError> {
    if source.len() > MAX_EXPRESSION_BYTES {
        let message = format!("the expression has more than {MAX_EXPRESSION_BYTES} bytes");
        return Err(FilterError::new(message, ""));
    }
    let mut words = Vec::new();
    let mut rest = source.trim_ascii_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '\'' | '"' => text(rest, first)?,
            '0'..='9' | '-' => number(rest)?,
            first if first.is_ascii_alphabetic() || first == '_' => {
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                (FilterToken::Name(rest[..end].to_owned()), &rest[end..])
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let sign = sign.ok_or_else(|| {
                    let message =
                        format!("`{}` has no meaning here", clip(&rest[..first.len_utf8()]));
                    FilterError::new(message, "")
                })?;
                (FilterToken::Sign(sign), &rest[sign.len()..])
            }
        };
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(words)
}

fn number(rest: &str) -> Result<(FilterToken, &str), FilterError> {
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let end = digits
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
        .unwrap_or(digits.len());
    let end = end + rest.len() - digits.len();
    let (written, after) = rest.split_at(end);
    let number = written.parse().map_err(|_| {
        let message = format!("`{}` is not a whole number", clip(written));
        FilterError::new(message, "numbers are whole and have no suffix")
    })?;
    Ok((FilterToken::Number(number), after))
}

/// A text in quotes of either kind, with CEL's usual escapes.
fn text(rest: &str, quote: char) -> Result<(FilterToken, &str), FilterError> {
    let mut value = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            letter if letter == quote => return Ok((FilterToken::Text(value), &rest[at + 1..])),
            '\\' => match letters.next() {
                Some((_, letter @ ('\\' | '\'' | '"' | '`' | '?'))) => value.push(letter),
                Some((_, 'n')) => value.push('\n'),
                Some((_, 'r')) => value.push('\r'),
                Some((_, 't')) => value.push('\t'),
                other => {
                    let shown = other.map_or_else(String::new, |(_, letter)| letter.to_string());
                    let message = format!("the escape `\\{}` is not understood", clip(&shown));
                    return Err(FilterError::new(
                        message,
                        r#"\\, \', \", \n, \r and \t are"#,
                    ));
                }
            },
            letter => value.push(letter),
        }
    }
    Err(FilterError::new(
        "the text has no closing quote",
        format!("end it with {quote}"),
    ))
}
