//! Trace context and spans: what a request says of its trace, what goes on with it, and what is told when it is over.
//! Pure; randomness is an argument.

mod context;
mod span;

pub use context::{
    CONTEXT_FIELDS, Context, Decision, Incoming, SpanId, TraceId, context_lines, request_id,
};
pub use span::{HeaderTag, SpanFacts, SpanSettings, resource, span};
