//! Routing of requests, and a route's actions. A table of matches in order of precedence becomes an index (`table`).
//! `matching` defines the matches one by one, and a property test checks that the two agree.
//!
//! The rest are the small decisions of a chosen route: precedence among Gateway API's rules, header edits, rewrites,
//! redirects, CORS. Reasons: docs/decisions/0026-traffic-decisions.md.

mod candidates;
mod connections;
mod cors;
mod edit;
mod matching;
mod precedence;
mod prefixes;
mod redirect;
mod regex;
mod rewrite;
mod syntax;
mod table;
mod texts;

pub use connections::{ConnectionMatch, ConnectionTable};
pub use cors::{Cors, CorsDecision, CorsField, Origin};
pub use edit::{EditError, HeaderEdit, HeaderEdits, is_authority};
pub use matching::{
    ClaimMatch, FieldMatch, Match, PathMatch, RouteInput, TextMatch, ValueMatch, query_parameter,
};
pub use precedence::{RankedMatch, by_precedence};
pub use redirect::{REDIRECT_STATUSES, Redirect, RedirectPort};
pub use regex::{MAX_PATTERN, MAX_PROGRAM, Regex, RegexError};
pub use rewrite::{PathRewrite, RegexRewrite};
pub use table::{RouteTable, SelectedRoute, naive};
