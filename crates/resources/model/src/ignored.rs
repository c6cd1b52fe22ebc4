//! Ignored findings: codes in the annotation `voile.dev/ignore` of a resource hide findings about its document. A
//! document that cannot be parsed hides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::{Source, SourceFile};
use crate::text::clip;
use crate::yaml::{self, Document, SourcePosition, Value, YamlNode};

/// The annotation.
pub const ANNOTATION: &str = "voile.dev/ignore";

/// All that is to be hidden.
#[derive(Debug, Default)]
pub struct IgnoredRules {
    /// By file, in order.
    files: BTreeMap<Arc<str>, Vec<Span>>,
}

/// One resource, from its beginning to that of the next.
#[derive(Debug)]
struct Span {
    from: (u32, u32),
    to: (u32, u32),
    codes: Vec<Arc<str>>,
    /// Location of the annotation.
    source: Source,
}

impl IgnoredRules {
    /// Reads the files again that have the annotation in them.
    #[must_use]
    pub fn of(files: &[SourceFile]) -> Self {
        let mut ignored = Self::default();
        for file in files {
            let Ok(text) = &file.text else { continue };
            if !text.contains(ANNOTATION) {
                continue;
            }
            let mut spans = Vec::new();
            for document in yaml::split(text, file.first_line) {
                if document.text.contains(ANNOTATION) {
                    of_document(&file.name, &document, &mut spans);
                }
            }
            ignored.files.insert(file.name.clone(), spans);
        }
        ignored
    }

    /// Returns true if an annotation hides the diagnostic.
    #[must_use]
    pub fn hides(&self, diagnostic: &Diagnostic) -> bool {
        let place = (diagnostic.source.line, diagnostic.source.column);
        let spans = self.files.get(&diagnostic.source.file);
        spans.into_iter().flatten().any(|span| {
            let inside = span.from <= place && place < span.to;
            inside && span.codes.iter().any(|code| &**code == diagnostic.code)
        })
    }

    /// Words that hide nothing since they are no codes.
    #[must_use]
    pub fn unknown(&self, is_code: impl Fn(&str) -> bool) -> Vec<Diagnostic> {
        let spans = self.files.values().flatten();
        let words = spans.flat_map(|span| span.codes.iter().map(move |code| (code, &span.source)));
        let unknown = words.filter(|(code, _)| !is_code(code));
        unknown
            .map(|(code, source)| {
                let message = format!("`{}` is not a code: it hides nothing", clip(code));
                Diagnostic::warning(codes::UNKNOWN_IGNORED, source.clone(), message)
                    .field(format!("metadata.annotations[{ANNOTATION}]"))
                    .help("write codes such as V0415, separated by commas")
            })
            .collect()
    }
}

fn of_document(file: &Arc<str>, document: &Document<'_>, spans: &mut Vec<Span>) {
    let origin = SourcePosition {
        line: document.first_line,
        column: 1,
    };
    let Ok(Some(root)) = yaml::parse_document(document.text, origin) else {
        return;
    };
    let lines = u32::try_from(document.text.lines().count()).unwrap_or(u32::MAX);
    let end = (document.first_line.saturating_add(lines), 1);
    let all: Vec<&YamlNode> = match root.get("items").map(|items| &items.value) {
        Some(Value::List(items)) => items.iter().collect(),
        _ => vec![&root],
    };
    for (index, node) in all.iter().enumerate() {
        let place = |node: &YamlNode| (node.place.line, node.place.column);
        let next = all.get(index + 1).map_or(end, |next| place(next));
        let from = match all.len() {
            1 => (document.first_line, 1),
            _ => place(node),
        };
        if let Some((codes, at)) = annotated(node) {
            spans.push(Span {
                from,
                to: next,
                codes,
                source: Source {
                    file: file.clone(),
                    line: at.line,
                    column: at.column,
                },
            });
        }
    }
}

fn annotated(resource: &YamlNode) -> Option<(Vec<Arc<str>>, SourcePosition)> {
    let annotations = resource.get("metadata")?.get("annotations")?;
    let node = annotations.get(ANNOTATION)?;
    let Value::Scalar(scalar) = &node.value else {
        return None;
    };
    let words = scalar.text.split([',', ' ', '\n']).map(str::trim);
    let words = words.filter(|word| !word.is_empty()).map(Into::into);
    Some((words.collect(), node.place))
}
