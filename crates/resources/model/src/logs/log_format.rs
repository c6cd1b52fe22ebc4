//! Envoy's access log format language, checked. A format is a list of existing commands, or an error that names the
//! command. `voile-telemetry` computes the values of commands.
//!
//! ```text
//! "[%START_TIME%] %REQ(X-A?Y):10%"  ─parse─▶  Text "[" · StartTime · Text "] " · Header{x-a, y} cut at 10
//! ```

mod command;
mod json;
mod time;

use std::fmt;
use std::sync::Arc;

pub use command::{CommandValue, Fact, FactKind, FormatCommand, HeaderSource};
pub use json::JsonNode;
pub use time::{TimeLayout, TimePart};

use crate::text::clip;

/// Longest format, in bytes: Istio's own has about 700.
pub const MAX_FORMAT_BYTES: usize = 64 * 1024;

/// Istio's default text line.
pub const DEFAULT_TEXT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
    \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
    %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
    \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
    %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Istio's default JSON object.
pub const DEFAULT_JSON: &str = r#"{"start_time":"%START_TIME%","route_name":"%ROUTE_NAME%","method":"%REQ(:METHOD)%","path":"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%","protocol":"%PROTOCOL%","response_code":"%RESPONSE_CODE%","response_flags":"%RESPONSE_FLAGS%","response_code_details":"%RESPONSE_CODE_DETAILS%","connection_termination_details":"%CONNECTION_TERMINATION_DETAILS%","bytes_received":"%BYTES_RECEIVED%","bytes_sent":"%BYTES_SENT%","duration":"%DURATION%","upstream_service_time":"%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%","x_forwarded_for":"%REQ(X-FORWARDED-FOR)%","user_agent":"%REQ(USER-AGENT)%","request_id":"%REQ(X-REQUEST-ID)%","authority":"%REQ(:AUTHORITY)%","upstream_host":"%UPSTREAM_HOST%","upstream_cluster":"%UPSTREAM_CLUSTER_RAW%","upstream_local_address":"%UPSTREAM_LOCAL_ADDRESS%","downstream_local_address":"%DOWNSTREAM_LOCAL_ADDRESS%","downstream_remote_address":"%DOWNSTREAM_REMOTE_ADDRESS%","requested_server_name":"%REQUESTED_SERVER_NAME%","upstream_transport_failure_reason":"%UPSTREAM_TRANSPORT_FAILURE_REASON%"}"#;

/// An error in a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError {
    /// The problem, with the command concerned.
    pub message: String,
    /// The correction; may be empty.
    pub help: String,
}

impl FormatError {
    fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: help.into(),
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.help.as_str() {
            "" => f.write_str(&self.message),
            help => write!(f, "{} ({help})", self.message),
        }
    }
}

impl std::error::Error for FormatError {}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinePiece {
    /// Text as it stands.
    Text(Arc<str>),
    /// Something of the request or connection.
    Command(FormatCommand),
}

/// Layout of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineLayout {
    /// One piece after the other.
    Text(Vec<LinePiece>),
    /// An object a line.
    Json(JsonNode),
}

/// A checked format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat {
    source: Arc<str>,
    layout: LineLayout,
}

impl LogFormat {
    /// Checks a text format.
    ///
    /// # Errors
    /// When a command does not exist or is written wrongly.
    pub fn text(format: &str) -> Result<Self, FormatError> {
        if format.len() > MAX_FORMAT_BYTES {
            return Err(FormatError::new(
                format!("the format has more than {MAX_FORMAT_BYTES} bytes"),
                "",
            ));
        }
        Ok(Self {
            source: format.into(),
            layout: LineLayout::Text(pieces(format)?),
        })
    }

    /// Checks a JSON format: an object whose texts are text formats.
    ///
    /// # Errors
    /// When it is no JSON object, or a command does not exist or is written wrongly.
    pub fn json(format: &str) -> Result<Self, FormatError> {
        let node = json::parse(format)?;
        Ok(Self {
            source: node.to_text().into(),
            layout: LineLayout::Json(node),
        })
    }

    /// The same, from a mapping that is read already.
    pub(crate) fn json_of(node: &crate::yaml::YamlNode) -> Result<Self, FormatError> {
        let node = json::of_node(node)?;
        Ok(Self {
            source: node.to_text().into(),
            layout: LineLayout::Json(node),
        })
    }

    /// Istio's text line.
    #[must_use]
    pub fn default_text() -> Self {
        Self::text(DEFAULT_TEXT).expect("invariant: a constant valid format")
    }

    /// Istio's JSON object.
    #[must_use]
    pub fn default_json() -> Self {
        Self::json(DEFAULT_JSON).expect("invariant: a constant valid format")
    }

    /// Layout of a line.
    #[must_use]
    pub fn layout(&self) -> &LineLayout {
        &self.layout
    }

    /// The format as text: what [`Self::text`] or [`Self::json`] takes.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns true if a line is a JSON object.
    #[must_use]
    pub fn is_json(&self) -> bool {
        matches!(self.layout, LineLayout::Json(_))
    }

    /// Every command, in order.
    pub fn commands(&self) -> Vec<&FormatCommand> {
        fn of<'a>(pieces: &'a [LinePiece], found: &mut Vec<&'a FormatCommand>) {
            found.extend(pieces.iter().filter_map(|piece| match piece {
                LinePiece::Command(command) => Some(command),
                LinePiece::Text(_) => None,
            }));
        }
        fn within<'a>(node: &'a JsonNode, found: &mut Vec<&'a FormatCommand>) {
            match node {
                JsonNode::Object(fields) => fields.iter().for_each(|(_, node)| within(node, found)),
                JsonNode::List(items) => items.iter().for_each(|node| within(node, found)),
                JsonNode::Text { pieces, .. } => of(pieces, found),
                JsonNode::Verbatim(_) => {}
            }
        }
        let mut found = Vec::new();
        match &self.layout {
            LineLayout::Text(pieces) => of(pieces, &mut found),
            LineLayout::Json(node) => within(node, &mut found),
        }
        found
    }
}

/// Cuts a format into its pieces.
fn pieces(format: &str) -> Result<Vec<LinePiece>, FormatError> {
    let mut found = Vec::new();
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        let (command, after) = command::parse(rest)?;
        if !text.is_empty() {
            found.push(LinePiece::Text(std::mem::take(&mut text).into()));
        }
        found.push(LinePiece::Command(command));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() {
        found.push(LinePiece::Text(text.into()));
    }
    Ok(found)
}

/// A piece of a user's format, fit for a message.
fn shown(text: &str) -> String {
    clip(text)
}
