//! The control plane's end of ADS: `Stream` (delta) and `SotwStream` (state of the world) decide what one caller must be told,
//! a `Served` stream hears and says it, in bytes, on a connection that is somebody else's.
//! What there is to tell is a `Snapshot`, swapped whole through a watch channel; who may hear it is the snapshot's to say, and who
//! must look again at what changed is in `Interest`.

mod budget;
mod by_type;
mod conversation;
mod doubts;
mod driver;
mod frame;
mod interest;
mod names;
mod places;
mod refused;
mod service;
mod sotw;
mod stream;

use std::sync::Arc;
use std::time::Instant;

use tonic::Status;
use voile_proto::discovery::Node;

pub use budget::{
    Allowance, HELD_PER_RESOURCE, HELD_PER_STREAM, HELD_PER_WORKLOAD, MAX_HELD_PER_IDENTITY,
    MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES_EVER, STREAMS_PER_IDENTITY, STREAMS_PER_WORKLOAD,
};
pub use driver::{Admission, BoundedLife, DEPARTED, Observer, Served, StreamId};
pub use interest::{CALLER, Interest, Publishing, Touched};
pub use names::Names;
pub use service::Streams;
pub use sotw::{Absent, SotwStream};
pub use stream::{Ended, Event, Held, Rejections, Stream};

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

/// What a name stands for, to one caller.
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

    /// What a name stands for.
    fn resolve(&self, caller: &C, type_url: &str, name: &str) -> Resolution;

    /// Everything of a type, for a caller that asked for `*`.
    fn everything(&self, caller: &C, type_url: &str) -> Resolution;

    /// Whether who asks for everything of a type takes each answer for all that is to be said: to a node proxy, whoever it was not told
    /// of is outside the mesh. It is then one response, however large.
    fn is_told_at_once(&self, _caller: &C, _type_url: &str) -> bool {
        false
    }

    /// What a caller that asks for anything of a type is told of besides, although it does not ask for it: a node proxy waits to be
    /// told of the workloads that it serves. None for whoever is told only what it asks for.
    fn besides(&self, _caller: &C, _type_url: &str) -> Option<Vec<Arc<Resource>>> {
        None
    }

    /// By type and name, what else must change for a name to stand for something else; `Touched` names that.
    fn rests_on(&self, _caller: &C, _type_url: &str, _name: &str) -> Vec<(&'static str, Arc<str>)> {
        Vec::new()
    }

    /// Whether anybody is told anything of a type. What is asked of others is answered at once, and not remembered.
    fn serves(&self, _type_url: &str) -> bool {
        true
    }

    /// By what a caller's budget is kept: whom it proved to be. All those who proved nothing are one.
    fn account(&self, _caller: &C) -> Arc<str> {
        "".into()
    }

    /// What may be kept and done for that account.
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

    /// What it is told then.
    fn parting(&self, _caller: &C) -> Status {
        Status::permission_denied(DEPARTED)
    }
}
