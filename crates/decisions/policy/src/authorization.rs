//! May this request pass? Istio's AuthorizationPolicy, as checked types and two evaluators that must agree: `naive`, which
//! says what the policies mean, and `index`, which answers in a time that does not grow with their number.
//!
//! ```text
//! Policy* ──► Engine::new ──► Engine::decide(Facts) ──► Outcome { Verdict, audit, dry run }
//!    └──────► naive::decide(Policy*, Facts) ──────────► the same
//! ```

mod attribute;
mod cidr;
pub mod experiment;
mod facts;
mod glob;
pub mod index;
mod lines;
mod model;
pub mod naive;
mod paths;
mod pattern;
mod policy;
mod template;
mod trust;
mod verdict;
mod weigh;

pub use attribute::{Attribute, KeyError};
pub use cidr::{Cidr, CidrError};
pub use facts::{Headers, HttpFacts, NoHeaders, RequestFacts};
pub use index::Engine;
pub use paths::{PathError, PathNormalization};
pub use pattern::{Pattern, RequestPrincipal, Text, ValueError};
pub use policy::{Action, Policy, PolicyName, PolicyRule, Term, Terms, provider_of};
pub use template::{PathTemplate, TemplateError};
pub use trust::TrustDomains;
pub use verdict::{
    AuthorizationOutcome, CustomCheck, Denial, DenialReason, DryRun, DryRunVerdict, Permit,
    RuleRef, Verdict,
};
