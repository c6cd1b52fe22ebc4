//! A head or trailers, decoded: one block of text and where its fields lie in it. Names are lower case, pseudo-header
//! fields come first.

use crate::head;
use crate::hpack::known;

/// Position of one field.
#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    at: u32,
    name: u32,
    value: u32,
    origin: Origin,
}

/// Attributes of a field beside its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// The name's number, 0 for a name without one.
    pub(crate) number: u8,
    /// Found to be well formed.
    pub(crate) sound: bool,
    /// No table may keep it (RFC 7541 section 7.1.3).
    pub(crate) never: bool,
}

impl Origin {
    /// Origin of a field that was not checked.
    pub(crate) fn new(number: u8) -> Self {
        Self {
            number,
            sound: false,
            never: false,
        }
    }
}

/// One field, with its attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) number: u8,
    pub(crate) sound: bool,
    pub(crate) never: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    text: Vec<u8>,
    lines: Vec<FieldSpan>,
    /// See [`Fields::is_cut`].
    cut: bool,
    /// See [`Fields::is_http3`].
    http3: bool,
}

/// Kept part of a head that is too large, in bytes: enough to log the caller and the target.
const EXCERPT_BYTES: usize = 2048;

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for a usual head.
    pub fn with_capacity(bytes: usize, lines: usize) -> Self {
        Self {
            text: Vec::with_capacity(bytes),
            lines: Vec::with_capacity(lines),
            cut: false,
            http3: false,
        }
    }

    /// The head of a response.
    pub fn response(status: u16) -> Self {
        let mut fields = Self::new();
        fields.push_status(status);
        fields
    }

    /// Adds `:status`.
    pub fn push_status(&mut self, status: u16) {
        let digit = |value: u16| b'0' + (value % 10) as u8;
        let digits = [digit(status / 100), digit(status / 10), digit(status)];
        self.push(":status", &digits);
    }

    /// Adds a field. The name is in lower case; pseudo-header fields are added before others.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        let number = known::number(name.as_bytes());
        self.add(name.as_bytes(), value, Origin::new(number));
    }

    /// The same of a field that no table may keep (RFC 7541 section 7.1.3), wherever it goes.
    pub fn push_never(&mut self, name: &str, value: &[u8]) {
        let number = known::number(name.as_bytes());
        let origin = Origin {
            never: true,
            ..Origin::new(number)
        };
        self.add(name.as_bytes(), value, origin);
    }

    /// Adds a field whose name may be in any case, if it is one that may travel. Says whether it was.
    pub fn push_checked(&mut self, name: &[u8], value: &[u8]) -> bool {
        if name.is_empty() || !value.iter().all(|byte| is_value(*byte)) {
            return false;
        }
        if !name.iter().all(|byte| is_name(byte.to_ascii_lowercase())) {
            return false;
        }
        let mark = self.mark();
        self.text.extend(name.iter().map(u8::to_ascii_lowercase));
        self.text.extend_from_slice(value);
        let number = known::number(&self.text[mark..mark + name.len()]);
        self.line(mark, name.len(), Origin::new(number));
        true
    }

    /// Adds a field as it is in another block.
    fn add(&mut self, name: &[u8], value: &[u8], origin: Origin) {
        let mark = self.mark();
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.line(mark, name.len(), origin);
    }

    /// Adds the fields of `other`, pseudo-header fields apart, that are wanted.
    pub fn extend_from(&mut self, other: &Self, mut wanted: impl FnMut(&str, &[u8]) -> bool) {
        for line in &other.lines {
            let (name, value) = other.parts(line);
            if !name.starts_with(b":") && wanted(name_text(line.origin.number, name), value) {
                self.add(name, value, line.origin);
            }
        }
    }

    /// Forgets everything, and keeps the room.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        self.cut = false;
        self.http3 = false;
    }

    /// Returns true if this is the head of a request that was made in HTTP/3 and carried here.
    pub fn is_http3(&self) -> bool {
        self.http3
    }

    /// Notes that it is.
    pub fn mark_http3(&mut self) {
        self.http3 = true;
    }

    /// Returns true if this is the kept part of a request's head that is too large. The receiver must refuse it (431)
    /// and must not treat it as a request.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Keeps in `out` the fields that a refusal needs: a request's short pseudo-header fields, and `content-type`,
    /// which identifies gRPC. This head was not checked as a whole, so that only fields of a valid head are taken,
    /// and each once.
    pub fn excerpt(&self, out: &mut Self) {
        out.cut = true;
        let mut seen = 0;
        for (line, field) in self.lines.iter().zip(self.all()) {
            let fits = out.size() + field.name.len() + field.value.len() <= EXCERPT_BYTES;
            if fits && head::in_excerpt(&field, &mut seen) {
                out.add(field.name, field.value, line.origin);
            }
        }
    }

    /// Returns true if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Bytes of text and room for it, for the pool's decision.
    pub fn capacity(&self) -> usize {
        self.text.capacity()
    }

    /// Bytes that it holds: text, and where it lies.
    pub fn size(&self) -> usize {
        self.text.len() + self.lines.len() * size_of::<FieldSpan>()
    }

    /// The first value of that name, which is in lower case.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.lines.iter().find_map(|line| {
            let (known, value) = self.parts(line);
            (known == name.as_bytes()).then_some(value)
        })
    }

    /// Returns true if there is a field of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Every value of that name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.lines.iter().filter_map(move |line| {
            let (known, value) = self.parts(line);
            (known == name.as_bytes()).then_some(value)
        })
    }

    /// Takes every field of that name out.
    pub fn remove(&mut self, name: &str) {
        self.retain(|known, _| known != name);
    }

    /// Removes unwanted fields.
    pub fn retain(&mut self, mut wanted: impl FnMut(&str, &[u8]) -> bool) {
        let text_bytes = &self.text;
        self.lines.retain(|line| {
            let (name, value) = cut(text_bytes, line);
            wanted(name_text(line.origin.number, name), value)
        });
    }

    /// One field of that name, with this value.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// The fields, without pseudo-header fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        let lines = self.lines.iter().map(|line| {
            let (name, value) = self.parts(line);
            (name_text(line.origin.number, name), value)
        });
        lines.filter(|(name, _)| !name.starts_with(':'))
    }

    /// Field lines, with pseudo-header fields.
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Bytes of the fields as HTTP/1.1 writes them, without pseudo-header fields.
    pub fn lines_size(&self) -> usize {
        let lines = self.lines.iter();
        let lines = lines.filter(|line| self.text.get(line.at as usize) != Some(&b':'));
        lines
            .map(|line| line.name as usize + line.value as usize + b": \r\n".len())
            .sum()
    }

    /// All fields, with the attributes for an encoder.
    pub(crate) fn all(&self) -> impl Iterator<Item = Field<'_>> {
        self.lines.iter().map(|line| {
            let (name, value) = self.parts(line);
            let Origin {
                number,
                sound,
                never,
            } = line.origin;
            Field {
                name,
                value,
                number,
                sound,
                never,
            }
        })
    }

    /// `:method`, empty in answers.
    #[inline]
    pub fn method(&self) -> &str {
        self.pseudo(known::METHOD).unwrap_or_default()
    }

    /// `:path`.
    #[inline]
    pub fn path(&self) -> Option<&str> {
        self.pseudo(known::PATH)
    }

    /// `:scheme`.
    pub fn scheme(&self) -> Option<&str> {
        self.pseudo(known::SCHEME)
    }

    /// `:authority`.
    #[inline]
    pub fn authority(&self) -> Option<&str> {
        self.pseudo(known::AUTHORITY)
            .filter(|value| !value.is_empty())
    }

    /// `:protocol` of an extended CONNECT (RFC 8441).
    pub fn protocol(&self) -> Option<&str> {
        self.pseudo(known::PROTOCOL)
    }

    /// `:status`, 0 in requests.
    pub fn status(&self) -> u16 {
        let status = self.pseudo(known::STATUS);
        status.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    #[inline]
    fn pseudo(&self, number: u8) -> Option<&str> {
        // There are few lines, and these come first.
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.origin.number == number)?;
        Some(text(self.parts(line).1))
    }

    #[inline]
    fn parts(&self, line: &FieldSpan) -> (&[u8], &[u8]) {
        cut(&self.text, line)
    }

    pub(crate) fn mark(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn back_to(&mut self, mark: usize) {
        self.text.truncate(mark);
    }

    pub(crate) fn since(&self, mark: usize) -> &[u8] {
        &self.text[mark..]
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Makes a field of the text from `mark` on.
    pub(crate) fn line(&mut self, mark: usize, name: usize, origin: Origin) {
        self.lines.push(FieldSpan {
            at: mark as u32,
            name: name as u32,
            value: (self.text.len() - mark - name) as u32,
            origin,
        });
    }
}

#[inline]
fn cut<'a>(text: &'a [u8], line: &FieldSpan) -> (&'a [u8], &'a [u8]) {
    let (at, name, value) = (line.at as usize, line.name as usize, line.value as usize);
    text[at..at + name + value].split_at(name)
}

/// A name as text; one with a number needs no look at it.
#[inline]
fn name_text(number: u8, name: &[u8]) -> &str {
    known::text(number).unwrap_or_else(|| text(name))
}

/// Returns bytes as text; they were checked to be text when they came.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Returns true for a character of a name: lower-case token characters (RFC 9113 section 8.2.1).
pub(crate) fn is_name(byte: u8) -> bool {
    NAME[usize::from(byte)]
}

static NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = matches!(byte as u8,
            b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
            | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// Returns true for a byte of a value: everything but control bytes.
pub(crate) fn is_value(byte: u8) -> bool {
    (byte >= b' ' && byte != 0x7f) || byte == b'\t'
}
