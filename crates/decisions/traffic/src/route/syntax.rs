//! RE2's dialect, built on another parser: letters, digits and blanks of `\w`, `\d` and `\s` are ASCII's. Syntax that
//! RE2 would refuse or read otherwise is refused by name, never matched in silence.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    Assertion, AssertionKind, Ast, ClassBracketed, ClassPerl, ClassPerlKind, ClassSet,
    ClassSetItem, ClassSetRange, ClassSetUnion, Flag, Flags, FlagsItem, FlagsItemKind, Group,
    GroupKind, Literal, LiteralKind, Span,
};
use regex_syntax::hir::Hir;
use regex_syntax::hir::translate::TranslatorBuilder;

use super::regex::{MAX_PATTERN, RegexError};

/// Maximum depth of nested groups.
const MAX_DEPTH: u32 = 100;

/// Reads an expression.
pub(super) fn parse(pattern: &str) -> Result<Hir, RegexError> {
    if pattern.len() > MAX_PATTERN {
        let what = format!("longer than {MAX_PATTERN} bytes");
        return Err(RegexError::new(pattern, what));
    }
    let mut ast = ParserBuilder::new()
        .nest_limit(MAX_DEPTH)
        .build()
        .parse(pattern)
        .map_err(|error| RegexError::new(pattern, error.kind().to_string()))?;
    re2(&mut ast).map_err(|what| RegexError::new(pattern, what))?;
    TranslatorBuilder::new()
        .utf8(false)
        .build()
        .translate(pattern, &ast)
        .map_err(|error| RegexError::new(pattern, error.kind().to_string()))
}

/// Changes an expression to RE2's reading of it.
fn re2(ast: &mut Ast) -> Result<(), String> {
    match ast {
        Ast::Empty(_) | Ast::Literal(_) | Ast::Dot(_) | Ast::ClassUnicode(_) => {}
        Ast::Flags(set) => known_flags(&set.flags)?,
        Ast::Assertion(assertion) => {
            if let Some(group) = word_boundary(assertion)? {
                *ast = group;
            }
        }
        Ast::ClassPerl(class) => *ast = Ast::class_bracketed(ascii(class)),
        Ast::ClassBracketed(class) => match &mut class.kind {
            ClassSet::Item(item) => re2_item(item)?,
            ClassSet::BinaryOp(_) => {
                return Err("RE2 does not support `&&`, `--` and `~~` between classes".to_owned());
            }
        },
        Ast::Repetition(repetition) => re2(&mut repetition.ast)?,
        Ast::Group(group) => {
            if let GroupKind::NonCapturing(flags) = &group.kind {
                known_flags(flags)?;
            }
            re2(&mut group.ast)?;
        }
        Ast::Alternation(alternation) => alternation.asts.iter_mut().try_for_each(re2)?,
        Ast::Concat(concat) => concat.asts.iter_mut().try_for_each(re2)?,
    }
    Ok(())
}

fn re2_item(item: &mut ClassSetItem) -> Result<(), String> {
    match item {
        ClassSetItem::Empty(_)
        | ClassSetItem::Literal(_)
        | ClassSetItem::Range(_)
        | ClassSetItem::Ascii(_)
        | ClassSetItem::Unicode(_) => {}
        ClassSetItem::Perl(class) => *item = ClassSetItem::Bracketed(Box::new(ascii(class))),
        ClassSetItem::Bracketed(_) => {
            let what =
                r"RE2 does not support a class in a class; write a bracket in a class as `\[`";
            return Err(what.to_owned());
        }
        ClassSetItem::Union(union) => union.items.iter_mut().try_for_each(re2_item)?,
    }
    Ok(())
}

fn known_flags(flags: &Flags) -> Result<(), String> {
    for item in &flags.items {
        let letter = match item.kind {
            FlagsItemKind::Flag(Flag::IgnoreWhitespace) => 'x',
            FlagsItemKind::Flag(Flag::Unicode) => 'u',
            FlagsItemKind::Flag(Flag::CRLF) => 'R',
            _ => continue,
        };
        return Err(format!("RE2 does not support the flag `{letter}`"));
    }
    Ok(())
}

/// For `\b` and `\B`, those between ASCII's words.
fn word_boundary(assertion: &Assertion) -> Result<Option<Ast>, String> {
    let span = assertion.span;
    match assertion.kind {
        AssertionKind::StartLine
        | AssertionKind::EndLine
        | AssertionKind::StartText
        | AssertionKind::EndText => Ok(None),
        AssertionKind::WordBoundary | AssertionKind::NotWordBoundary => {
            let item = |kind| FlagsItem { span, kind };
            let items = vec![
                item(FlagsItemKind::Negation),
                item(FlagsItemKind::Flag(Flag::Unicode)),
            ];
            Ok(Some(Ast::group(Group {
                span,
                kind: GroupKind::NonCapturing(Flags { span, items }),
                ast: Box::new(Ast::assertion(assertion.clone())),
            })))
        }
        _ => Err(r"RE2's word boundaries are `\b` and `\B`".to_owned()),
    }
}

/// RE2's `\d`, `\s` and `\w`.
fn ascii(class: &ClassPerl) -> ClassBracketed {
    let ranges: &[(char, char)] = match class.kind {
        ClassPerlKind::Digit => &[('0', '9')],
        ClassPerlKind::Space => &[('\t', '\n'), ('\u{c}', '\r'), (' ', ' ')],
        ClassPerlKind::Word => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
    };
    let span: Span = class.span;
    let kind = LiteralKind::Verbatim;
    let literal = |c| Literal {
        span,
        kind: kind.clone(),
        c,
    };
    let items = ranges.iter().map(|&(start, end)| {
        ClassSetItem::Range(ClassSetRange {
            span,
            start: literal(start),
            end: literal(end),
        })
    });
    let items = items.collect();
    ClassBracketed {
        span,
        negated: class.negated,
        kind: ClassSet::Item(ClassSetItem::Union(ClassSetUnion { span, items })),
    }
}

/// Characters for which `{*}` and `{**}` stand, without the slash.
const UNESCAPED: &str = r"A-Za-z0-9\-._~%!$&'()+,;:@=*";

/// A path template as an expression.
pub(super) fn of_template(template: &str) -> Result<String, RegexError> {
    let refuse = |what: &str| Err(RegexError::new(template, what));
    let Some(rest) = template.strip_prefix('/') else {
        return refuse("a template begins with a slash");
    };
    let (mut pattern, mut open_end) = (String::new(), false);
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        pattern.push('/');
        match segment {
            "{*}" | "{**}" if open_end => return refuse("{**} is the last operator"),
            "{*}" => pattern += &format!("[{UNESCAPED}]+"),
            "{**}" => {
                open_end = true;
                pattern += &format!("[/{UNESCAPED}]*");
            }
            "" if segments.peek().is_some() => return refuse("an empty segment"),
            literal if literal.contains(['{', '}']) => {
                return refuse("braces mean {*} or {**} as a whole segment");
            }
            literal => {
                let plain =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&byte);
                if !literal.bytes().all(plain) {
                    return refuse("a template holds only unreserved bytes");
                }
                regex_syntax::escape_into(literal, &mut pattern);
            }
        }
    }
    Ok(pattern)
}
