//! The names of what may be switched on in a mesh, and choices of them: one data plane, and features for each request.

use std::collections::BTreeSet;
use std::fmt;

/// How requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataPlane {
    /// Without a mesh.
    None,
    /// A sidecar at both ends, in plaintext.
    Sidecar,
    /// A sidecar at both ends, over mutual TLS.
    MutualTls,
    /// A node proxy at both ends, over mutual TLS.
    Node,
    /// Node proxies, and a waypoint between them.
    Waypoint,
}

impl DataPlane {
    /// All, in the order of tables.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Sidecar,
        Self::MutualTls,
        Self::Node,
        Self::Waypoint,
    ];

    /// Its set in a file of curves.
    #[must_use]
    pub fn set(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sidecar => "sidecar",
            Self::MutualTls => "mtls",
            Self::Node => "node",
            Self::Waypoint => "waypoint",
        }
    }

    /// Words of `--with` that choose it.
    fn words(self) -> &'static str {
        match self {
            Self::MutualTls => "sidecar,mtls",
            Self::Waypoint => "node,waypoint",
            other => other.set(),
        }
    }

    /// The proxies of a call, from the client to the server, by their role in records.
    #[must_use]
    pub fn sides(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Sidecar | Self::MutualTls => &[CLIENT_SIDECAR, SERVER_SIDECAR],
            Self::Node => &[CLIENT_NODE, SERVER_NODE],
            Self::Waypoint => &[CLIENT_NODE, WAYPOINT, SERVER_NODE],
        }
    }

    /// Returns true if a proxy of it reads requests.
    fn reads_requests(self) -> bool {
        matches!(self, Self::Sidecar | Self::MutualTls | Self::Waypoint)
    }
}

/// Roles of proxies, as records name them.
pub const CLIENT_SIDECAR: &str = "client-sidecar";
/// The server's sidecar.
pub const SERVER_SIDECAR: &str = "server-sidecar";
/// The node proxy at the client.
pub const CLIENT_NODE: &str = "client-node";
/// The node proxy at the server.
pub const SERVER_NODE: &str = "server-node";
/// The waypoint.
pub const WAYPOINT: &str = "waypoint";

/// Features of requests, each measured as the difference to two sidecars with mutual TLS.
pub const EXTRAS: [&str; 6] = [
    "policies",
    "tokens",
    "access-logs",
    "tracing",
    "rate-limits",
    "ext-authz",
];

/// A data plane with features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// How requests travel.
    pub plane: DataPlane,
    /// Names of [`EXTRAS`].
    pub extras: BTreeSet<&'static str>,
}

impl Choice {
    /// Reads names with commas between them.
    ///
    /// # Errors
    /// With the name that is wrong, and the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut planes = BTreeSet::new();
        let mut extras = BTreeSet::new();
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let plane = DataPlane::ALL.into_iter().find(|plane| plane.set() == name);
            let extra = EXTRAS.into_iter().find(|extra| *extra == name);
            match (plane, extra) {
                (Some(plane), _) => {
                    planes.insert(plane);
                }
                (None, Some(extra)) => {
                    extras.insert(extra);
                }
                (None, None) => {
                    let known: Vec<&str> = DataPlane::ALL
                        .map(DataPlane::set)
                        .into_iter()
                        .chain(EXTRAS)
                        .collect();
                    return Err(format!(
                        "`{name}` is no feature; cure: one of {}",
                        known.join(", ")
                    ));
                }
            }
        }
        let choice = Self {
            plane: one_plane(&planes, text)?,
            extras,
        };
        choice.possible()?;
        Ok(choice)
    }

    /// The same features on another data plane.
    ///
    /// # Errors
    /// If that plane cannot carry them.
    pub fn on(&self, plane: DataPlane) -> Result<Self, String> {
        let other = Self {
            plane,
            extras: self.extras.clone(),
        };
        other.possible().map(|()| other)
    }

    fn possible(&self) -> Result<(), String> {
        let Some(extra) = self.extras.first() else {
            return Ok(());
        };
        match self.plane {
            plane if plane.reads_requests() => Ok(()),
            DataPlane::Node => Err(format!(
                "`{extra}` needs a proxy that reads requests, and a node proxy reads none; cure: add waypoint"
            )),
            _ => Err(format!(
                "`{extra}` needs a proxy; cure: add sidecar, or node,waypoint"
            )),
        }
    }
}

/// The data plane that these names make together.
fn one_plane(planes: &BTreeSet<DataPlane>, text: &str) -> Result<DataPlane, String> {
    use DataPlane::{MutualTls, Node, None, Sidecar, Waypoint};
    let named: Vec<DataPlane> = planes.iter().copied().collect();
    match named[..] {
        [] | [None] => Ok(None),
        [Sidecar] => Ok(Sidecar),
        [MutualTls] | [Sidecar, MutualTls] => Ok(MutualTls),
        // Node proxies have mutual TLS always.
        [Node] | [MutualTls, Node] => Ok(Node),
        [Waypoint] | [Node | MutualTls, Waypoint] | [MutualTls, Node, Waypoint] => Ok(Waypoint),
        _ => Err(format!(
            "`{text}` names two data planes; cure: none, sidecar, sidecar,mtls, node, or node,waypoint"
        )),
    }
}

/// As [`Choice::parse`] reads it.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plane.words())?;
        self.extras
            .iter()
            .try_for_each(|extra| write!(f, ",{extra}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_shown_alike() {
        for (text, shown) in [
            ("", "none"),
            ("none", "none"),
            ("sidecar", "sidecar"),
            ("mtls", "sidecar,mtls"),
            ("mtls, sidecar", "sidecar,mtls"),
            ("node,mtls", "node"),
            ("waypoint", "node,waypoint"),
            ("sidecar,tracing,access-logs", "sidecar,access-logs,tracing"),
            ("waypoint,policies", "node,waypoint,policies"),
        ] {
            let choice = Choice::parse(text).expect(text);
            assert_eq!(choice.to_string(), shown, "{text}");
            assert_eq!(Choice::parse(shown), Ok(choice));
        }
    }

    #[test]
    fn a_wrong_choice_is_refused_with_its_cure() {
        for (text, words) in [
            ("mTLS", "`mTLS` is no feature; cure: one of none, sidecar"),
            ("sidecar,node", "two data planes"),
            ("none,mtls", "two data planes"),
            ("node,policies", "add waypoint"),
            ("tracing", "add sidecar"),
        ] {
            let why = Choice::parse(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
