//! Trace context and spans: the context of a request, the context that goes on with it, and the span at its end.
//! Pure; randomness is an argument.

mod context;
mod span;

pub use context::{
    CONTEXT_FIELDS, Context, Decision, IncomingContext, SpanId, TraceId, context_lines, request_id,
};
pub use span::{HeaderTag, SpanFacts, SpanSettings, resource, span};
