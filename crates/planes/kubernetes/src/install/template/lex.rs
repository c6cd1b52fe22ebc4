//! Splits a template into text and actions, and an action into tokens.

/// Line and reason.
pub(super) type ParseFailure = (usize, String);

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TemplatePiece {
    /// Text that is copied.
    Text(String),
    /// The inside of `{{ … }}`.
    Action {
        /// Its tokens.
        tokens: Vec<TemplateToken>,
        /// Its line, from 1.
        line: usize,
    },
}

/// A token of an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TemplateToken {
    /// A keyword, a function, `true` or `false`.
    Word(String),
    /// `.a.b`; `.` has no names.
    Field(Vec<String>),
    /// `$a.b`; `$` has an empty name.
    Variable(String, Vec<String>),
    /// A quoted text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// `(`
    Open,
    /// `)`, with the fields that follow it directly.
    Close(Vec<String>),
    /// `|`
    Pipe,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    /// `,`
    Comma,
}

/// Splits a template.
pub(super) fn split(source: &str) -> Result<Vec<TemplatePiece>, ParseFailure> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trim) = (source, 1, false);
    while let Some((text, after)) = rest.split_once("{{") {
        let begun = line + newlines(text);
        let (inside, after) = close(after, begun)?;
        let mut text = if trim { text.trim_start() } else { text };
        let mut body = inside;
        if let Some(trimmed) = body.strip_prefix("- ") {
            text = text.trim_end();
            body = trimmed;
        }
        trim = false;
        if let Some(trimmed) = body.strip_suffix(" -") {
            trim = true;
            body = trimmed;
        }
        pieces.push(TemplatePiece::Text(text.to_owned()));
        if !body.trim_start().starts_with("/*") {
            let tokens = tokens(body.trim()).map_err(|reason| (begun, reason))?;
            pieces.push(TemplatePiece::Action {
                tokens,
                line: begun,
            });
        }
        line = begun + newlines(inside);
        rest = after;
    }
    let text = if trim { rest.trim_start() } else { rest };
    pieces.push(TemplatePiece::Text(text.to_owned()));
    Ok(pieces)
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// The inside of an action, and the text after it. A comment may contain braces.
fn close(after: &str, line: usize) -> Result<(&str, &str), ParseFailure> {
    let begin = after.strip_prefix("- ").unwrap_or(after);
    let skipped = match begin.starts_with("/*") {
        true => after.find("*/").map(|end| end + "*/".len()),
        false => Some(0),
    };
    let end = skipped.and_then(|from| Some(from + after[from..].find("}}")?));
    let end = end.ok_or_else(|| (line, "`{{` is not closed".to_owned()))?;
    Ok((&after[..end], &after[end + "}}".len()..]))
}

fn tokens(body: &str) -> Result<Vec<TemplateToken>, String> {
    let mut tokens = Vec::new();
    let mut rest = body;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            _ if first.is_whitespace() => {
                rest = &rest[first.len_utf8()..];
                continue;
            }
            '(' => (TemplateToken::Open, 1),
            ')' => {
                let (names, length) = names(&rest[1..]);
                (TemplateToken::Close(names), 1 + length)
            }
            '|' => (TemplateToken::Pipe, 1),
            ',' => (TemplateToken::Comma, 1),
            ':' if rest.starts_with(":=") => (TemplateToken::Declare, 2),
            '=' => (TemplateToken::Assign, 1),
            '"' => quoted(rest)?,
            '.' => {
                let (names, length) = names(rest);
                (TemplateToken::Field(names), length.max(1))
            }
            '$' => {
                let name = word(&rest[1..]);
                let (names, length) = names(&rest[1 + name.len()..]);
                (
                    TemplateToken::Variable(name.to_owned(), names),
                    1 + name.len() + length,
                )
            }
            '0'..='9' => {
                let digits = word(rest);
                let number = digits.parse().map_err(|_| format!("`{digits}`"))?;
                (TemplateToken::Number(number), digits.len())
            }
            _ => match word(rest) {
                "" => return Err(format!("`{first}` is not known here")),
                name => (TemplateToken::Word(name.to_owned()), name.len()),
            },
        };
        tokens.push(token);
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// The letters, digits and underscores at the beginning.
fn word(text: &str) -> &str {
    let end = text.find(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    &text[..end.unwrap_or(text.len())]
}

/// `.a.b` at the beginning, and its length.
fn names(text: &str) -> (Vec<String>, usize) {
    let (mut names, mut length) = (Vec::new(), 0);
    while let Some(after) = text[length..].strip_prefix('.') {
        match word(after) {
            "" => break,
            name => {
                names.push(name.to_owned());
                length += 1 + name.len();
            }
        }
    }
    (names, length)
}

/// A text in quotes, whose escapes are those of JSON.
fn quoted(text: &str) -> Result<(TemplateToken, usize), String> {
    let mut letters = serde_json::Deserializer::from_str(text).into_iter::<String>();
    match letters.next() {
        Some(Ok(read)) => Ok((TemplateToken::Text(read), letters.byte_offset())),
        _ => Err(format!("{text}: a text is not closed")),
    }
}
