//! Events to tree, without recursion, under the limits of the parent module.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::node::{Key, Node, Place, Scalar, Value};
use super::{MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_NODES};
use crate::codes;

/// Why a document gives no tree.
#[derive(Debug)]
pub(crate) struct YamlError {
    pub(crate) code: &'static str,
    pub(crate) place: Place,
    pub(crate) message: String,
    pub(crate) help: &'static str,
}

/// Parses one document whose first character stands at `origin` of its file.
pub(crate) fn parse_document(text: &str, origin: Place) -> Result<Option<Node>, YamlError> {
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
    let mut builder = Builder::new(text, origin);
    let mut parser = Parser::new_from_str(text);
    loop {
        let (event, span) = match parser.next_event() {
            None => break,
            Some(Ok(next)) => next,
            Some(Err(error)) => return Err(builder.scan_error(&error)),
        };
        if let Event::StreamEnd = event {
            break;
        }
        builder.event(event, span.start)?;
    }
    Ok(builder.root)
}

/// YAML 1.2 section 5.1: text is printable. The parser takes a NUL for the end of the text, which would hide what follows.
fn refuse_control_characters(text: &str, origin: Place) -> Result<(), YamlError> {
    let bad = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    for (line, number) in text.lines().zip(origin.line..) {
        if let Some((column, found)) = line
            .chars()
            .zip(1u32..)
            .map(|(c, n)| (n, c))
            .find(|(_, c)| bad(*c))
        {
            let place = Place {
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
struct Open {
    anchor: usize,
    place: Place,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map {
        entries: Vec<(Key, Node)>,
        keys: HashSet<Arc<str>>,
        pending: Option<Key>,
    },
}

struct Builder<'a> {
    lines: Vec<&'a str>,
    origin: Place,
    open: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, origin: Place) -> Self {
        Self {
            lines: text.lines().collect(),
            origin,
            open: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            nodes: 0,
        }
    }

    fn place(&self, mark: Marker) -> Place {
        let (line, column) = (mark.line().max(1) as u32, mark.col() as u32 + 1);
        Place {
            line: self.origin.line + line - 1,
            column: self.origin.column + column - 1,
        }
    }

    fn event(&mut self, event: Event<'_>, mark: Marker) -> Result<(), YamlError> {
        let place = self.place(mark);
        match event {
            Event::DocumentStart(_) if self.root.is_some() => Err(error(
                codes::NOT_YAML,
                place,
                "a second document begins without a `---` line",
            )),
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = self.scalar(&text, style, tag.as_deref(), place, mark)?;
                self.add(
                    Node {
                        place,
                        value: Value::Scalar(scalar),
                    },
                    anchor,
                    1,
                )
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), place)?;
                self.push(Open {
                    anchor,
                    place,
                    items: Items::List(Vec::new()),
                })
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), place)?;
                let items = Items::Map {
                    entries: Vec::new(),
                    keys: HashSet::new(),
                    pending: None,
                };
                self.push(Open {
                    anchor,
                    place,
                    items,
                })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, place),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn push(&mut self, open: Open) -> Result<(), YamlError> {
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
        let Some(Open {
            anchor,
            place,
            items,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let value = match items {
            Items::List(list) => Value::List(list),
            Items::Map { entries, .. } => Value::Map(entries),
        };
        let node = Node { place, value };
        self.add(node, anchor, 1)
    }

    /// Puts a finished node where it belongs, and remembers it when it has a name.
    fn add(&mut self, node: Node, anchor: usize, count: usize) -> Result<(), YamlError> {
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
            Some(Items::List(list)) => list.push(node),
            Some(Items::Map {
                entries,
                pending,
                keys,
            }) => match pending.take() {
                Some(key) => entries.push((key, node)),
                None => *pending = Some(new_key(node, keys)?),
            },
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, place: Place) -> Result<(), YamlError> {
        let Some((_, size)) = self.anchors.get(&anchor) else {
            return Err(error(
                codes::YAML_FEATURE,
                place,
                "the alias stands inside the value it names, without end",
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
        place: Place,
        mark: Marker,
    ) -> Result<Scalar, YamlError> {
        self.check_tag(tag, place)?;
        let forced_text = tag
            .is_some_and(|tag| tag.suffix == "str" || (tag.handle == "!" && tag.suffix.is_empty()));
        let content = (style == ScalarStyle::Literal).then(|| {
            // The parser's mark is on the first line that has text; blank lines before it are part of the content.
            let line = self
                .lines
                .get(mark.line().max(1) - 1)
                .copied()
                .unwrap_or("");
            let indent = line.len() - line.trim_start_matches(' ').len();
            let blank = text.len() - text.trim_start_matches('\n').len();
            let column = self.origin.column + indent as u32;
            Place {
                line: place.line.saturating_sub(blank as u32).max(1),
                column,
            }
        });
        Ok(Scalar {
            text: text.into(),
            plain: style == ScalarStyle::Plain && !forced_text,
            content,
        })
    }

    fn check_tag(&self, tag: Option<&Tag>, place: Place) -> Result<(), YamlError> {
        const KNOWN: [&str; 7] = ["str", "int", "float", "bool", "null", "map", "seq"];
        match tag {
            Some(tag) if tag.is_yaml_core_schema() && KNOWN.contains(&tag.suffix.as_str()) => {
                Ok(())
            }
            Some(tag) if tag.handle == "!" && tag.suffix.is_empty() => Ok(()),
            Some(tag) => Err(error(
                codes::YAML_FEATURE,
                place,
                format!("the tag `{tag}` is not used in resources"),
            )),
            None => Ok(()),
        }
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
            "this looks like a template; render it first"
        } else if at_end {
            "the document ends too early: it may have been cut off"
        } else {
            ""
        };
        // The scanner counts the nesting of `[` and `{` in one byte.
        let too_deep = error.info().contains("recursion limit");
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

fn error(code: &'static str, place: Place, message: impl Into<String>) -> YamlError {
    YamlError {
        code,
        place,
        message: message.into(),
        help: "",
    }
}

fn new_key(node: Node, keys: &mut HashSet<Arc<str>>) -> Result<Key, YamlError> {
    let place = node.place;
    let Value::Scalar(Scalar { text, plain, .. }) = node.value else {
        let help = if matches!(node.value, Value::Map(_)) {
            "this looks like a template; render it first"
        } else {
            ""
        };
        return Err(YamlError {
            help,
            ..error(
                codes::YAML_FEATURE,
                place,
                "the key of a mapping must be text",
            )
        });
    };
    if plain && &*text == "<<" {
        let message = "merge keys (`<<`) are not part of YAML 1.2";
        return Err(YamlError {
            help: "write the fields out",
            ..error(codes::YAML_FEATURE, place, message)
        });
    }
    if !keys.insert(text.clone()) {
        return Err(error(
            codes::DUPLICATE_KEY,
            place,
            format!("`{}` is written twice", crate::text::clip(&text)),
        ));
    }
    Ok(Key { place, text })
}

fn count_nodes(node: &Node) -> usize {
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

fn depth(node: &Node) -> usize {
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
