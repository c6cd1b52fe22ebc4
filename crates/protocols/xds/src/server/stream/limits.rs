//! Limits of one stream, by name, with their units and reasons.

use std::time::Duration;

/// Types one stream may ask for: ours, Istio's, and Envoy's, with room.
pub(in crate::server) const MAX_TYPES: usize = 16;
/// Names one stream may ask for by type: above any real proxy, below what would exhaust us.
pub(in crate::server) const MAX_NAMES: usize = 100_000;
/// Longest name that is looked up, and of a type; hostnames are 253 bytes, uids a few hundred.
pub(in crate::server) const MAX_NAME_BYTES: usize = 2048;
/// Longest version that is taken, in bytes: ours and istiod's are hashes of some dozen.
pub(super) const MAX_VERSION_BYTES: usize = 256;
/// Bodies in one response, in bytes, unless a single resource is larger: bounds the memory of a caller that does not read. The
/// answer to a node proxy's wildcard is not divided.
pub(in crate::server) const MAX_RESPONSE_BYTES: usize = 2 * 1024 * 1024;
/// Longest wait for the ACK of a response; beyond it the caller does not read.
pub(in crate::server) const ACK_DEADLINE: Duration = Duration::from_secs(30);

/// Longest time for which what names clusters waits for them, where these are on their way. Envoy acknowledges clusters when they are
/// warm: of those to which we know the way in a moment; of one whose name nobody resolves in half a minute, for which policies and
/// routes of everything else are not to wait.
pub(in crate::server) const WARMING: Duration = Duration::from_secs(2);
