//! A request as tests send it.

use std::borrow::Cow;

use voile_traffic::route::{RouteInput, is_authority};

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) method: String,
    pub(crate) scheme: String,
    pub(crate) authority: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Of its token: paths joined by dots, each with its values; none is no text.
    pub(crate) claims: Vec<(String, Option<String>)>,
}

impl Sent {
    pub(crate) fn get(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method: "GET".to_owned(),
            scheme: "http".to_owned(),
            authority: "shop.example".to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            claims: Vec::new(),
        }
    }

    pub(crate) fn claiming(mut self, path: &str, value: &str) -> Self {
        let text = (value != "#").then(|| value.to_owned());
        self.claims.push((path.to_owned(), text));
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl RouteInput for Sent {
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }
    fn scheme(&self) -> &[u8] {
        self.scheme.as_bytes()
    }
    fn authority(&self) -> &[u8] {
        self.authority.as_bytes()
    }
    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }
    fn query(&self) -> &[u8] {
        self.query.as_bytes()
    }
    fn claim(&self, path: &[String], is: &dyn Fn(Option<&[u8]>) -> bool) -> bool {
        let path = path.join(".");
        let mut values = self.claims.iter().filter(|(known, _)| *known == path);
        values.any(|(_, value)| is(value.as_ref().map(String::as_bytes)))
    }
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if is_authority(name) {
            return Some(Cow::Borrowed(self.authority()));
        }
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        let (_, first) = values.next()?;
        let mut all = Cow::Borrowed(first.as_bytes());
        for (_, value) in values {
            let joined = all.to_mut();
            joined.push(b',');
            joined.extend_from_slice(value.as_bytes());
        }
        Some(all)
    }
}
