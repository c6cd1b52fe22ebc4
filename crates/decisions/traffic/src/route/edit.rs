//! Header edits of a route, in Envoy's order: first remove, then set, then add. A header that is both removed and set
//! is therefore present in the end.

/// Header edits of a route, for a request or a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderEdits {
    /// Names to take off.
    pub remove: Vec<String>,
    /// Names and the one value that each has afterwards.
    pub set: Vec<(String, String)>,
    /// Names and a value that each has as well.
    pub add: Vec<(String, String)>,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderEdit<'e> {
    /// Takes all of this name off.
    Remove(&'e str),
    /// Leaves one of this name, with this value.
    Set(&'e str, &'e str),
    /// One more of this name.
    Add(&'e str, &'e str),
}

/// Why an edit is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// Not a header's name.
    #[error("`{0}` is not a header name: expected letters, digits and !#$%&'*+-.^_`|~")]
    Name(String),
    /// Belongs to the connection or to the message's framing.
    #[error("`{0}` is a framing or hop-by-hop header: a route must not change it")]
    Framing(String),
    /// Not a header's value.
    #[error("the value of `{0}` has a control character")]
    Value(String),
    /// Only set and added; the authority cannot be taken off.
    #[error("`{0}` cannot be removed: a request has an authority")]
    Authority(String),
}

/// Names that no route may edit: an edit would change where the message ends, or an agreement of one hop with the
/// next.
const FRAMING: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Returns true for the authority, which is no header of its own: HTTP/1.1 calls it `Host`, HTTP/2 `:authority`.
#[must_use]
pub fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case(":authority")
}

fn is_name(name: &str) -> bool {
    let mark = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || mark(byte))
}

fn is_value(value: &str) -> bool {
    value
        .bytes()
        .all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

impl HeaderEdits {
    /// Returns true if there is nothing to edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Returns an error if the edits are not allowed. Setting or adding `Host` or `:authority` is good: it names
    /// another authority, see [`Self::authority`].
    pub fn check(&self) -> Result<(), EditError> {
        let name = |name: &str| {
            let lower = name.to_ascii_lowercase();
            match name {
                _ if FRAMING.contains(&&*lower) => Err(EditError::Framing(name.to_owned())),
                _ if is_name(name) || is_authority(name) => Ok(()),
                _ => Err(EditError::Name(name.to_owned())),
            }
        };
        for removed in &self.remove {
            name(removed)?;
            if is_authority(removed) {
                return Err(EditError::Authority(removed.clone()));
            }
        }
        for (edited, value) in self.set.iter().chain(&self.add) {
            name(edited)?;
            if !is_value(value) {
                return Err(EditError::Value(edited.clone()));
            }
        }
        Ok(())
    }

    /// The steps in order, without the authority.
    pub fn steps(&self) -> impl Iterator<Item = HeaderEdit<'_>> {
        let plain = |(name, _): &&(String, String)| !is_authority(name);
        let remove = self.remove.iter().map(|name| HeaderEdit::Remove(name));
        let set = self.set.iter().filter(plain);
        let add = self.add.iter().filter(plain);
        remove
            .chain(set.map(|(name, value)| HeaderEdit::Set(name, value)))
            .chain(add.map(|(name, value)| HeaderEdit::Add(name, value)))
    }

    /// Returns the request's authority after these edits, if they change it: a set value wins over an added one.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        let mut said = self.set.iter().chain(&self.add);
        let (_, authority) = said.find(|(name, _)| is_authority(name))?;
        Some(authority)
    }
}

#[cfg(test)]
mod tests {
    use super::{EditError, HeaderEdit, HeaderEdits};

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn headers_are_taken_off_then_set_then_added() {
        let edits = HeaderEdits {
            remove: vec!["a".to_owned()],
            set: vec![pair("a", "1"), pair("Host", "b.example")],
            add: vec![pair("c", "2"), pair(":authority", "d.example")],
        };
        let steps: Vec<HeaderEdit<'_>> = edits.steps().collect();
        let wanted = [
            HeaderEdit::Remove("a"),
            HeaderEdit::Set("a", "1"),
            HeaderEdit::Add("c", "2"),
        ];
        assert_eq!(steps, wanted);
        assert_eq!(edits.authority(), Some("b.example"));
        assert_eq!((edits.check(), edits.is_empty()), (Ok(()), false));
        assert!(HeaderEdits::default().is_empty());
    }

    #[test]
    fn what_would_break_a_message_is_refused() {
        let removing = |name: &str| HeaderEdits {
            remove: vec![name.to_owned()],
            ..HeaderEdits::default()
        };
        let setting = |name: &str, value: &str| HeaderEdits {
            set: vec![pair(name, value)],
            ..HeaderEdits::default()
        };
        assert!(matches!(
            removing("Content-Length").check(),
            Err(EditError::Framing(_))
        ));
        assert!(matches!(
            removing("host").check(),
            Err(EditError::Authority(_))
        ));
        assert!(matches!(
            setting("TE", "x").check(),
            Err(EditError::Framing(_))
        ));
        assert!(matches!(
            setting("a b", "x").check(),
            Err(EditError::Name(_))
        ));
        assert!(matches!(
            setting(":path", "/").check(),
            Err(EditError::Name(_))
        ));
        assert!(matches!(setting("", "x").check(), Err(EditError::Name(_))));
        assert!(matches!(
            setting("a", "x\r\ny: z").check(),
            Err(EditError::Value(_))
        ));
        assert_eq!(setting("a", "x\ty").check(), Ok(()));
    }
}
