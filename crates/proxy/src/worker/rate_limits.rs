//! Whether a request that has leave comes too often, and what its client is told of it. Buckets are the proxy's, by relaxed
//! atomics; which rule takes a request is asked of this worker's own tables.

use std::borrow::Cow;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use voile_traffic::Verdict;
use voile_traffic::route::{Request, RouteTable, is_authority};

use super::Worker;
use super::authorization::{Denied, Granted};
use super::changes::Changes;
use super::inbound::Caller;
use super::routes::{Asked, joined};
use crate::authorization::forwarded_for;
use crate::http::{Amendment, Head, Manner, ResponseFlag, Told};
use crate::moment;
use crate::rate_limits::{RateLimits, Sender};

/// The limits as one worker asks them.
pub(crate) struct Limiting {
    shared: Arc<RateLimits>,
    /// One for each resource; expressions remember their way, each worker's its own.
    tables: Vec<RouteTable>,
}

/// What clients read of the limits that hold for them.
const POLICY: &str = "ratelimit-policy";
/// What is left of them.
const LEFT: &str = "ratelimit";

/// The status of gRPC's that says so: RESOURCE_EXHAUSTED.
const EXHAUSTED: u16 = 8;

/// How a request ended whose path may mean another to whoever reads it next.
const UNREADABLE_PATH: &str = "path_normalization_failed";

impl Limiting {
    /// The same as before, if it is.
    pub(crate) fn follow(
        before: Option<&Rc<Self>>,
        shared: Option<&Arc<RateLimits>>,
    ) -> Option<Rc<Self>> {
        let shared = shared?;
        let same = before.filter(|before| Arc::ptr_eq(&before.shared, shared));
        let fresh = || {
            let tables = shared.resources.iter();
            Rc::new(Self {
                shared: Arc::clone(shared),
                tables: tables.map(|one| one.table.clone()).collect(),
            })
        };
        Some(same.map_or_else(fresh, Rc::clone))
    }

    /// What becomes of a request: it goes on, with what its client is told, or not.
    fn judge(&self, head: &Head<'_>, granted: &mut Granted, caller: &Caller) -> Result<(), Denied> {
        let path = granted.path.as_deref();
        let path = path.unwrap_or_else(|| head.path_and_query());
        let normalized = self.shared.normalization.normalize(path.as_bytes());
        let unreadable = |_| Denied::new(400, UNREADABLE_PATH, UNREADABLE_PATH);
        let normalized = normalized.map_err(unreadable)?;
        let path = std::str::from_utf8(&normalized).unwrap_or(path);
        let asked = GoingOn {
            asked: Asked::of_path(head, path),
            head,
            changes: &granted.changes,
        };
        let peer = caller.client().ip();
        let sender = Sender {
            identity: (!caller.principal.is_empty()).then_some(&*caller.principal),
            address: match self.shared.trusted_proxies {
                0 => peer,
                trusted => forwarded_for(head, trusted).unwrap_or(peer),
            },
        };
        let now = moment::now();
        let mut said = Said::default();
        for (resource, table) in self.shared.resources.iter().zip(&self.tables) {
            let Some(number) = table.choose(&asked) else {
                continue;
            };
            let rule = &resource.rules[number];
            if rule.limits.is_empty() {
                continue;
            }
            said.policy(&rule.policy);
            let taken = self
                .shared
                .take(rule, &asked, sender, now, |name, verdict| {
                    said.left(name, verdict);
                });
            if !taken {
                return Err(said.refusal(&resource.name, &rule.name));
            }
        }
        said.tell(granted);
        Ok(())
    }
}

/// A request as it goes on: what an external service or a token wrote counts, and not what the client wrote in its place.
struct GoingOn<'a> {
    asked: Asked<'a>,
    head: &'a Head<'a>,
    changes: &'a Changes,
}

impl Request for GoingOn<'_> {
    fn method(&self) -> &[u8] {
        self.asked.method()
    }

    fn scheme(&self) -> &[u8] {
        self.asked.scheme()
    }

    fn authority(&self) -> &[u8] {
        self.asked.authority()
    }

    fn path(&self) -> &[u8] {
        self.asked.path()
    }

    fn query(&self) -> &[u8] {
        self.asked.query()
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if self.changes.is_empty() || is_authority(name) {
            return self.asked.header(name);
        }
        let seen = self.changes.seen(self.head);
        let seen =
            seen.filter_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value));
        joined(name, seen)
    }
}

/// Fields for the client, each one line for all limits.
#[derive(Default)]
struct Said {
    policy: String,
    left: String,
    /// Of the last limit that was asked.
    retry_after: u64,
}

impl Said {
    fn policy(&mut self, policy: &str) {
        apart(&mut self.policy);
        self.policy.push_str(policy);
    }

    fn left(&mut self, name: &str, verdict: Verdict) {
        apart(&mut self.left);
        self.left.push_str(&verdict.field(name));
        self.retry_after = verdict.retry_after();
    }

    fn tell(self, granted: &mut Granted) {
        if self.left.is_empty() {
            return;
        }
        for (name, value) in [(POLICY, self.policy), (LEFT, self.left)] {
            granted.changes.amend(Amendment {
                name: name.into(),
                value: value.into_bytes().into(),
                manner: Manner::Append,
            });
        }
    }

    fn refusal(self, resource: &str, rule: &str) -> Denied {
        let mut lines = String::new();
        // Writing into a String cannot fail.
        let _ = write!(
            lines,
            "{POLICY}: {}\r\n{LEFT}: {}\r\nretry-after: {}\r\n",
            self.policy, self.left, self.retry_after
        );
        let details = format!("local_rate_limited[{resource}/{}]", rule.replace(' ', "_"));
        let told = Told {
            lines: lines.into_bytes(),
            grpc_status: Some(EXHAUSTED),
            ..Told::default()
        };
        Denied {
            told: Some(Box::new(told)),
            ..Denied::new(429, details, "rate limited")
        }
    }
}

fn apart(list: &mut String) {
    if !list.is_empty() {
        list.push_str(", ");
    }
}

/// A request that comes too often, and what was said of it before.
pub(super) struct TooMany(pub(super) Denied);

/// Whose fault it is, in Envoy's words.
pub(super) fn flag(denied: &Denied) -> ResponseFlag {
    match denied.status {
        429 => ResponseFlag::RateLimited,
        _ => ResponseFlag::DownstreamProtocolError,
    }
}

/// Whether a request that has leave may go on. Nothing is done where nothing is limited.
pub(super) fn limited(
    worker: &Worker,
    head: &Head<'_>,
    granted: &mut Granted,
    caller: &Caller,
) -> Result<(), Box<TooMany>> {
    let limiting = worker.limiting.borrow();
    let Some(limiting) = limiting.as_ref() else {
        return Ok(());
    };
    limiting.judge(head, granted, caller).map_err(|mut denied| {
        // Who said yes may want something of every answer, a session's cookie maybe.
        let told = denied.told.get_or_insert_default();
        told.amends = granted.changes.amends().to_vec();
        Box::new(TooMany(denied))
    })
}
