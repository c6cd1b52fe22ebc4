//! All resources of a mesh, and who may see them; swapped whole through a watch channel.

use std::sync::Arc;
use std::time::Instant;

use tonic::Status;
use voile_proto::discovery::Node;

use super::budget::Allowance;

/// Reason given to a caller that left the mesh.
pub const DEPARTED: &str = "this workload is no longer in the mesh";

/// One resource, encoded once and shared by all streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: Arc<str>,
    /// Its other names, by which it may be asked for.
    pub aliases: Vec<Arc<str>>,
    /// Changes when, and only when, the body or the aliases change.
    pub version: Arc<str>,
    /// The encoded message.
    pub body: Arc<[u8]>,
}

/// Resources that a name stands for, for one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// These resources; a service brings its workloads along.
    Found(Vec<Arc<Resource>>),
    /// Nothing has this name.
    Unknown,
    /// It stands for these, of which there is nothing: said of it, and of each of them by its own name.
    Lacking(Vec<Arc<str>>),
    /// The caller may not have it. It is told that there is nothing; the reason is for our log.
    Refused(String),
}

/// All there is at one moment, closed in itself: nothing in it names something that is not there.
pub trait Snapshot<C>: Send + Sync + 'static {
    /// Its version, for people to compare.
    fn version(&self) -> Arc<str>;

    /// Resolves a name.
    fn resolve(&self, caller: &C, type_url: &str, name: &str) -> Resolution;

    /// Everything of a type, for a caller that asked for `*`.
    fn everything(&self, caller: &C, type_url: &str) -> Resolution;

    /// Returns true if the caller takes each answer to a wildcard as complete: a node proxy takes every address that the answer
    /// lacks as outside the mesh. The answer is then one response, however large.
    fn is_told_at_once(&self, _caller: &C, _type_url: &str) -> bool {
        false
    }

    /// Resources that a caller gets in addition to those it asks for: a node proxy waits for the workloads that it serves. `None`
    /// for a caller that gets only what it asks for.
    fn besides(&self, _caller: &C, _type_url: &str) -> Option<Vec<Arc<Resource>>> {
        None
    }

    /// By type and name, what else must change for a name to stand for something else; `Touched` names that.
    fn rests_on(&self, _caller: &C, _type_url: &str, _name: &str) -> Vec<(&'static str, Arc<str>)> {
        Vec::new()
    }

    /// Returns true if any caller gets resources of this type. A request for any other type is answered at once, and not
    /// remembered.
    fn serves(&self, _type_url: &str) -> bool {
        true
    }

    /// By what a caller's budget is kept: whom it proved to be. All those who proved nothing are one.
    fn account(&self, _caller: &C) -> Arc<str> {
        "".into()
    }

    /// Budget of that account.
    fn allowance(&self, _caller: &C) -> Allowance {
        Allowance::default()
    }

    /// The caller says of itself what it did not have to prove; what of that counts is for the snapshot to say.
    fn introduce(&self, _caller: &mut C, _node: &Node) {}

    /// Names of a caller by which `Touched` calls it when its `farewell` changes.
    fn known_as(&self, _caller: &C) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// When a caller that is no longer part of what there is has its last stream ended; `None` for everybody else.
    fn farewell(&self, _caller: &C) -> Option<Instant> {
        None
    }

    /// Status that the caller gets then.
    fn parting(&self, _caller: &C) -> Status {
        Status::permission_denied(DEPARTED)
    }
}
