//! Events to tree, without recursion, under the limits of the parent module.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use granit_parser::{
    ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, StructureStyle, Tag,
};

use super::lenient;
use super::node::{MappingKey, ResolvedScalar, Scalar, SourcePosition, Value, YamlNode};
use super::{MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_NODES};
use crate::codes;

/// Why a document gives no tree.
#[derive(Debug)]
pub(crate) struct YamlError {
    pub(crate) code: &'static str,
    pub(crate) place: SourcePosition,
    pub(crate) message: String,
    pub(crate) help: &'static str,
}

/// Help for an error in a line with `{{`.
pub(crate) const TEMPLATE: &str = "this looks like a template; render it first";

/// Parses one document whose first character stands at `origin` of its file.
pub(crate) fn parse_document(
    text: &str,
    origin: SourcePosition,
) -> Result<Option<YamlNode>, YamlError> {
    if text.len() > MAX_DOCUMENT_BYTES {
        let message = format!(
            "the document has {} bytes, more than the {MAX_DOCUMENT_BYTES} allowed",
            text.len()
        );
        return Err(YamlError {
            code: codes::LIMIT,
            place: origin,
            message,
            help: "split it into several documents",
        });
    }
    refuse_control_characters(text, origin)?;
    let may_substitute = !lenient::has_stand_ins(text);
    let substituted = may_substitute.then(|| lenient::substitute(text)).flatten();
    let mut given = substituted.map_or(Cow::Borrowed(text), Cow::Owned);
    let mut first = None;
    for _ in 0..=MAX_REPAIRS {
        let mut builder = Builder::new(text, origin);
        builder.is_substituted = matches!(given, Cow::Owned(_));
        let error = match builder.read(&given) {
            Ok(()) => return Ok(builder.root),
            Err(ParseFailure::Refused(error)) => return Err(first.unwrap_or(error)),
            Err(ParseFailure::Scan(error)) => error,
        };
        let repaired = match may_substitute {
            true => lenient::repair(&given, &error, builder.is_in_flow()),
            false => None,
        };
        let error = first.unwrap_or_else(|| builder.scan_error(&error));
        let Some(repaired) = repaired else {
            return Err(error);
        };
        given = Cow::Owned(repaired);
        first = Some(error);
    }
    Err(first.unwrap_or_else(|| error(codes::NOT_YAML, origin, "not YAML")))
}

/// Repairs of one document. Each costs another pass over the text.
const MAX_REPAIRS: usize = 16;

/// Why a pass over a text gave no tree.
enum ParseFailure {
    Scan(ScanError),
    Refused(YamlError),
}

/// YAML 1.2 section 5.1: text is printable. The parser takes a NUL for the end of the text, which would hide what follows.
fn refuse_control_characters(text: &str, origin: SourcePosition) -> Result<(), YamlError> {
    let bad = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    for (line, number) in text.lines().zip(origin.line..) {
        if let Some((column, found)) = line
            .chars()
            .zip(1u32..)
            .map(|(c, n)| (n, c))
            .find(|(_, c)| bad(*c))
        {
            let place = SourcePosition {
                line: number,
                column,
            };
            return Err(error(
                codes::NOT_YAML,
                place,
                format!("not YAML: the control character {}", found.escape_unicode()),
            ));
        }
    }
    Ok(())
}

/// A list or mapping that is not yet closed.
struct OpenCollection {
    anchor: usize,
    place: SourcePosition,
    /// In brackets or braces.
    is_flow: bool,
    items: TreeBuilder,
}

enum TreeBuilder {
    List(Vec<YamlNode>),
    Map {
        entries: Vec<(MappingKey, YamlNode)>,
        keys: HashSet<Arc<str>>,
        pending: Option<Pending>,
        /// Entries from merge keys, in order.
        merged: Vec<(MappingKey, YamlNode)>,
    },
}

/// A key whose value comes next.
enum Pending {
    Field(MappingKey),
    /// `<<`.
    Merge,
}

struct Builder<'a> {
    lines: Vec<&'a str>,
    /// Line of the file for each of YAML's lines. Empty when both are the same.
    file_lines: Vec<u32>,
    origin: SourcePosition,
    open: Vec<OpenCollection>,
    root: Option<YamlNode>,
    anchors: HashMap<usize, (YamlNode, usize)>,
    nodes: usize,
    /// The parser's text has substitutes for some characters.
    is_substituted: bool,
}

/// Lines as YAML counts them, and the file's line of each. YAML ends a line at a carriage return without a line feed, too; editors
/// and positions in messages do not.
fn yaml_lines(text: &str) -> (Vec<&str>, Vec<u32>) {
    let mut lines = Vec::new();
    let mut file_lines = Vec::new();
    for (line, number) in text.lines().zip(1u32..) {
        for part in line.split('\r') {
            lines.push(part);
            file_lines.push(number);
        }
    }
    if file_lines.last().copied().unwrap_or(0) as usize == lines.len() {
        file_lines = Vec::new();
    }
    (lines, file_lines)
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, origin: SourcePosition) -> Self {
        let (lines, file_lines) = yaml_lines(text);
        Self {
            lines,
            file_lines,
            origin,
            open: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            nodes: 0,
            is_substituted: false,
        }
    }

    /// One pass over the text for the parser.
    fn read(&mut self, given: &str) -> Result<(), ParseFailure> {
        let mut options = Options::default();
        options.set_emit_comments(false);
        options.block_scalar_eof_without_line_feed = true;
        let mut parser = Parser::new_from_str_with_options(given, options);
        while let Some(next) = parser.next_event() {
            let (event, span) = next.map_err(ParseFailure::Scan)?;
            if let Event::StreamEnd = event {
                break;
            }
            self.event(event, span.start)
                .map_err(ParseFailure::Refused)?;
        }
        Ok(())
    }

    fn is_in_flow(&self) -> bool {
        self.open.last().is_some_and(|open| open.is_flow)
    }

    fn place(&self, mark: Marker) -> SourcePosition {
        let line = mark.line().max(1);
        let of_file = self.file_lines.get(line - 1).or(self.file_lines.last());
        let line = of_file.copied().unwrap_or(line as u32);
        let column = mark.col() as u32 + 1;
        SourcePosition {
            line: self.origin.line + line - 1,
            column: self.origin.column + column - 1,
        }
    }

    fn event(&mut self, event: Event<'_>, mark: Marker) -> Result<(), YamlError> {
        let place = self.place(mark);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => Err(error(
                codes::NOT_YAML,
                place,
                "a second document begins without a `---` line",
            )),
            Event::Scalar(mut text, style, anchor, tag) => {
                if self.is_substituted {
                    text = lenient::restore(&text).into();
                }
                let scalar = self.scalar(&text, style, tag.as_deref(), place, mark)?;
                self.add(
                    YamlNode {
                        place,
                        value: Value::Scalar(scalar),
                    },
                    anchor,
                    1,
                )
            }
            Event::SequenceStart(style, anchor, _) => self.push(OpenCollection {
                anchor,
                place,
                is_flow: matches!(style, StructureStyle::Flow),
                items: TreeBuilder::List(Vec::new()),
            }),
            Event::MappingStart(style, anchor, _) => {
                let items = TreeBuilder::Map {
                    entries: Vec::new(),
                    keys: HashSet::new(),
                    pending: None,
                    merged: Vec::new(),
                };
                self.push(OpenCollection {
                    anchor,
                    place,
                    is_flow: matches!(style, StructureStyle::Flow),
                    items,
                })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, place),
            // Begin and end of streams and documents, and optional events.
            _ => Ok(()),
        }
    }

    fn push(&mut self, open: OpenCollection) -> Result<(), YamlError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(error(
                codes::LIMIT,
                open.place,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.open.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), YamlError> {
        let Some(OpenCollection {
            anchor,
            place,
            items,
            ..
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let value = match items {
            TreeBuilder::List(list) => Value::List(list),
            TreeBuilder::Map {
                mut entries,
                mut keys,
                merged,
                ..
            } => {
                // The mapping's own entries precede merged ones.
                let new = |(key, _): &(MappingKey, YamlNode)| keys.insert(key.text.clone());
                entries.extend(merged.into_iter().filter(new));
                Value::Map(entries)
            }
        };
        let node = YamlNode { place, value };
        self.add(node, anchor, 1)
    }

    /// Puts a finished node where it belongs, and remembers it when it has a name.
    fn add(&mut self, node: YamlNode, anchor: usize, count: usize) -> Result<(), YamlError> {
        self.nodes += count;
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} values after aliases are expanded");
            return Err(error(codes::LIMIT, node.place, message));
        }
        if anchor != 0 {
            let size = count_nodes(&node);
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(node),
            Some(TreeBuilder::List(list)) => list.push(node),
            Some(TreeBuilder::Map {
                entries,
                pending,
                keys,
                merged,
            }) => match pending.take() {
                Some(Pending::Field(key)) => entries.push((key, node)),
                Some(Pending::Merge) => merge(node, merged)?,
                None => *pending = Some(new_key(node, keys)?),
            },
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, place: SourcePosition) -> Result<(), YamlError> {
        let Some((_, size)) = self.anchors.get(&anchor) else {
            return Err(error(
                codes::YAML_FEATURE,
                place,
                "the alias refers to a value that contains it",
            ));
        };
        let size = *size;
        // Look before the copy: a bomb must not even be built.
        if self.nodes + size > MAX_NODES {
            let message = format!("more than {MAX_NODES} values after aliases are expanded");
            return Err(error(codes::LIMIT, place, message));
        }
        let node = self.anchors[&anchor].0.clone();
        if self.open.len() + depth(&node) > MAX_DEPTH {
            return Err(error(
                codes::LIMIT,
                place,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.add(node, 0, size)
    }

    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        place: SourcePosition,
        mark: Marker,
    ) -> Result<Scalar, YamlError> {
        let tag = tag.map(|tag| (is_core(tag), tag.core_suffix().unwrap_or(tag.suffix())));
        // Tags other than YAML's own mean nothing to the decoder.
        let (decoded, plain) = match tag {
            Some((true, "str")) => (None, false),
            Some((true, "int" | "float" | "bool" | "null")) => (None, true),
            Some((true, "binary")) => (Some(binary(text, place)?), false),
            Some((false, "" | "!")) => (None, false),
            _ => (None, style == ScalarStyle::Plain),
        };
        let text = decoded.as_deref().unwrap_or(text);
        // Lines that carriage returns end are lines of the text and not of the file.
        let keeps_lines = style == ScalarStyle::Literal && self.file_lines.is_empty();
        let content = keeps_lines.then(|| {
            // The parser's mark is on the first line that has text; blank lines before it are part of the content.
            let line = self
                .lines
                .get(mark.line().max(1) - 1)
                .copied()
                .unwrap_or("");
            let indent = line.len() - line.trim_start_matches(' ').len();
            let blank = text.len() - text.trim_start_matches('\n').len();
            let column = self.origin.column + indent as u32;
            SourcePosition {
                line: place.line.saturating_sub(blank as u32).max(1),
                column,
            }
        });
        Ok(Scalar {
            text: text.into(),
            plain,
            content,
        })
    }

    fn scan_error(&self, error: &ScanError) -> YamlError {
        let mark = *error.marker();
        let line = self
            .lines
            .get(mark.line().max(1) - 1)
            .copied()
            .unwrap_or("");
        let at_end = mark.line() > self.lines.len()
            || (mark.line() == self.lines.len() && mark.col() >= line.chars().count());
        let indent = line.len() - line.trim_start().len();
        let help = if line[..indent].contains('\t') {
            "the line is indented with a tab; YAML is indented with spaces"
        } else if line.contains("{{") {
            TEMPLATE
        } else if at_end || is_unclosed(error.kind()) {
            "the document ends too early: it may have been cut off"
        } else {
            ""
        };
        // The scanner has bounds of its own, behind which nesting is not even counted.
        let too_deep = *error.kind() == ErrorKind::RecursionLimitExceeded;
        YamlError {
            code: if too_deep {
                codes::LIMIT
            } else {
                codes::NOT_YAML
            },
            place: self.place(mark),
            message: format!("not YAML: {}", error.info()),
            help,
        }
    }
}

fn error(code: &'static str, place: SourcePosition, message: impl Into<String>) -> YamlError {
    YamlError {
        code,
        place,
        message: message.into(),
        help: "",
    }
}

/// The place is where it was opened.
fn is_unclosed(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnclosedFlowCollection { .. } | ErrorKind::UnclosedQuotedScalar
    )
}

fn is_core(tag: &Tag) -> bool {
    tag.is_yaml_core_schema() || tag.handle() == "tag:yaml.org,2002:"
}

/// The decoded text of `!!binary`.
fn binary(text: &str, place: SourcePosition) -> Result<String, YamlError> {
    let packed: String = text.split_ascii_whitespace().collect();
    let bytes = BASE64.decode(packed).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| {
        let message = "the value of `!!binary` is not text in base64";
        error(codes::YAML_FEATURE, place, message)
    })
}

fn new_key(node: YamlNode, keys: &mut HashSet<Arc<str>>) -> Result<Pending, YamlError> {
    let place = node.place;
    let no_text = |help| {
        let message = "the key of a mapping must be text";
        Err(YamlError {
            help,
            ..error(codes::YAML_FEATURE, place, message)
        })
    };
    let scalar = match node.value {
        Value::Scalar(scalar) => scalar,
        Value::Map(_) => return no_text(TEMPLATE),
        Value::List(_) => return no_text(""),
    };
    let text: Arc<str> = match scalar.resolve() {
        ResolvedScalar::Null => return no_text("put it in quotes"),
        ResolvedScalar::Boolean(word) => word.to_string().into(),
        ResolvedScalar::Integer(number) => number.to_string().into(),
        ResolvedScalar::Text | ResolvedScalar::Float(_) => scalar.text,
    };
    if !keys.insert(text.clone()) {
        return Err(error(
            codes::DUPLICATE_KEY,
            place,
            format!("`{}` is written twice", crate::text::clip(&text)),
        ));
    }
    Ok(match scalar.plain && &*text == "<<" {
        true => Pending::Merge,
        false => Pending::Field(MappingKey { place, text }),
    })
}

/// Takes in what a merge key names: a mapping, or several.
fn merge(node: YamlNode, merged: &mut Vec<(MappingKey, YamlNode)>) -> Result<(), YamlError> {
    let place = node.place;
    let refused = || {
        let message = "a merge key (`<<`) takes a mapping, or a list of mappings";
        Err(error(codes::YAML_FEATURE, place, message))
    };
    let mappings = match node.value {
        Value::Map(entries) => vec![Value::Map(entries)],
        Value::List(items) => items.into_iter().map(|item| item.value).collect(),
        Value::Scalar(_) => return refused(),
    };
    for mapping in mappings {
        let Value::Map(entries) = mapping else {
            return refused();
        };
        merged.extend(entries);
    }
    Ok(())
}

fn count_nodes(node: &YamlNode) -> usize {
    match &node.value {
        Value::Scalar(_) => 1,
        Value::List(items) => 1 + items.iter().map(count_nodes).sum::<usize>(),
        Value::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, value)| 1 + count_nodes(value))
                .sum::<usize>()
        }
    }
}

fn depth(node: &YamlNode) -> usize {
    match &node.value {
        Value::Scalar(_) => 0,
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, value)| depth(value))
                .max()
                .unwrap_or(0)
        }
    }
}
