//! The far end of an experiment on another host (`voile bench agent`): one session at a time, by the messages of `agent`.

mod serve;
mod session;

pub use serve::serve_agent;
pub use session::AgentSettings;

#[cfg(test)]
mod tests;
